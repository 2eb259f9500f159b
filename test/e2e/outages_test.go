package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// outage is a row of the table in docs/reference/scaling.md: the registry's node loses power.
type outage struct {
	name string
	args []string
	// unattended is true if Kubernetes replaces the registry, and pulls work, without anybody.
	unattended bool
	// back makes pulls work again, as the advice of zarf-registry status says, which has these words.
	advice []string
	back   func(t *testing.T, node string)
	// returned undoes a part of it when the node is back.
	returned func(t *testing.T, node string)
}

const (
	caches        = "--set=cache.replicas=2"
	readWriteMany = "--set=registry.persistence.accessModes={ReadWriteMany}"
	// unpulled are images that no cache has. A node pulls one every two seconds.
	unpulled = "e2e/unpulled:tag"
	// untilAdvice is when a volume of a lost node holds up the registry for sure.
	untilAdvice = 3 * time.Minute
)

// TestOutages measures how long pulls fail after the registry's node has lost power, with the chart's default values, by
// kind of storage, and does what zarf-registry status advises.
func TestOutages(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-outages", layout{open: true, aside: true}) // it mostly waits
	w.provoked = []string{w.address}                                   // pulls of verification while nodes come back
	w.addNode(t, "n3")
	s3 := w.installOnS3(t)
	free := func(t *testing.T, node string) {
		w.kubectlRun(t, "taint", "nodes", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	}
	restore := func(t *testing.T, _ string) {
		w.mustInstall(t)
		w.pushFresh(t)
		w.push(t, makeTinyArchive(t, "example.com/"+unpulled, fresh))
	}
	for _, o := range []outage{
		{name: "ReadWriteMany", args: []string{readWriteMany}, unattended: true},
		{name: "ReadWriteOnce, attached to a node", args: []string{storageOn("attached")},
			advice: []string{"has its volume", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}, back: free,
			returned: func(t *testing.T, node string) {
				w.kubectlRun(t, "taint", "nodes", node, "node.kubernetes.io/out-of-service-")
			}},
		{name: "S3, two replicas", args: []string{s3, "--set=registry.replicas=2"}, unattended: true},
		{name: "ReadWriteMany, two caches", args: []string{readWriteMany, caches}, unattended: true},
		{name: "ReadWriteOnce, on the node's disk, which is lost", args: []string{storageOn("local")},
			advice: []string{"its volume is on node", "delete persistentvolumeclaim zarf-registry"},
			back: func(t *testing.T, node string) {
				w.kubectlRun(t, "delete", "node", node)
				w.kubectlRun(t, "-n", w.namespace, "delete", "persistentvolumeclaim", release)
				restore(t, node)
			}},
		{name: "no volume", args: []string{"--set=registry.persistence.enabled=false"},
			advice: []string{"has lost its content", "zarf-registry install"}, back: restore},
	} {
		must(t, o.name, func(t *testing.T) { w.loseRegistryNode(t, o) })
	}
}

// loseRegistryNode installs, switches the registry's node off, and logs a row.
func (w *world) loseRegistryNode(t *testing.T, o outage) {
	w.mustInstall(t, append([]string{"--reset-values", proxyMode}, o.args...)...)
	w.isHealthy(t)
	w.pushFresh(t)
	w.push(t, makeTinyArchive(t, "example.com/"+unpulled, fresh))
	before := w.pods(t, "registry")
	lost := before[0]
	node := lost.Spec.NodeName
	left := w.without(node)
	loop := func(images, pause string) func() map[string]report {
		return left.loopReports(t, nil, func(stopFile string) []string {
			return []string{"crictl", w.address + "/" + images, strconv.Itoa(fresh), "", stopFile, pause}
		})
	}
	var loops []func() map[string]report
	if slices.Contains(o.args, caches) {
		loops = append(loops, loop(freshImages, "300ms"))
		time.Sleep(75 * time.Second) // caches get all of them
	}
	loops = slices.Insert(loops, 0, loop(unpulled, "2s"))
	begin := time.Now()
	run(t, w.testcluster, "off", "--name", w.name, node)
	advised := time.Duration(0)
	if !o.unattended {
		if o.advice[0] != "has lost its content" {
			time.Sleep(untilAdvice)
		} else {
			w.waitForSuccessor(t, lost.Name, 1)
		}
		w.advises(t, o.advice...)
		advised = time.Since(begin)
		o.back(t, node)
	}
	w.waitForSuccessor(t, lost.Name, len(before))
	replaced := time.Since(begin)
	time.Sleep(20 * time.Second) // of pulls that work again
	row := fmt.Sprintf("|%s|%.0f s|", o.name, replaced.Seconds())
	if !o.unattended {
		row = fmt.Sprintf("|%s|%.0f s, of which %.0f s until a person acted|", o.name, replaced.Seconds(), advised.Seconds())
	}
	for _, stop := range loops {
		var pulls count
		for n, r := range stop() {
			pulls.include(n, r.Pulls)
		}
		row += fmt.Sprintf("%.0f s, %d of %d failed|", pulls.Gap.Seconds(), pulls.Failures, pulls.Attempts)
		t.Logf("pulls: %s", pulls)
	}
	t.Logf("figure: %s", row)
	run(t, w.testcluster, "on", "--name", w.name, node)
	if o.returned != nil {
		o.returned(t, node)
	}
	w.becomesHealthy(t)
	w.helmUninstall(t)
	w.kubectlRun(t, "delete", "persistentvolumeclaim", "-n", w.namespace, release, "--ignore-not-found")
}

// waitForSuccessor waits until that number of the registry's pods, without the lost one, is ready, for longer than the
// five minutes after which Kubernetes replaces pods by default.
func (w *world) waitForSuccessor(t *testing.T, lost string, number int) {
	t.Helper()
	for end := time.Now().Add(8 * time.Minute); ; time.Sleep(time.Second) {
		running := 0
		for _, p := range w.pods(t, "registry") {
			if p.Name != lost && ready(p) && p.DeletionTimestamp == nil {
				running++
			}
		}
		if running >= number {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nothing replaces %s", lost)
		}
	}
}

// controlPlaneProcesses are what runs beside the nodes, in the order of a start.
var controlPlaneProcesses = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// TestNights switches all nodes and the control plane off and on, in a random order, while pulls go on. Nobody does
// anything, and each node pulls again. One node has another pause image.
func TestNights(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-nights", layout{open: true})
	w.provoked = []string{w.address} // of pulls before the registry is back
	w.addNode(t, "n3", "--pause-image=registry.k8s.io/pause:3.9")
	must(t, "install", func(t *testing.T) {
		w.mustInstall(t, proxyMode, readWriteMany)
		w.pushFresh(t)
		w.isHealthy(t)
	})
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("E2E_SEED"); text != "" {
		seed = require.Value(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("E2E_SEED=%d repeats the order", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var longest time.Duration
	for cycle := range 5 {
		must(t, fmt.Sprintf("night %d", cycle+1), func(t *testing.T) {
			took := w.night(t, random)
			longest = max(longest, took)
			t.Logf("figure: night %d: each node pulled %.0f s after the last had power", cycle+1, took.Seconds())
		})
	}
	t.Logf("figure: the longest time of five nights is %.0f s", longest.Seconds())
	must(t, "a night in which the certificates expire", func(t *testing.T) {
		// The last run was due 40 minutes ago.
		due := time.Now().Add(-40 * time.Minute)
		w.mustInstall(t, fmt.Sprintf("--set=pki.rotation.schedule=%d * * * *", due.Minute()))
		const cronJob = "cronjob/" + release + "-certificates"
		w.kubectlRun(t, "-n", namespace, "create", "job", "earlier", "--from="+cronJob) // the node has its image
		w.kubectlRun(t, "-n", namespace, "wait", "job/earlier", "--for=condition=complete", "--timeout=3m")
		run(t, w.testcluster, "kill", "--name", w.name, "kube-controller-manager")
		w.kubectlRun(t, "-n", namespace, "patch", cronJob, "--subresource=status", "--type=merge", "--patch",
			fmt.Sprintf(`{"status":{"lastScheduleTime":%q}}`, due.Add(-time.Hour).UTC().Format(time.RFC3339)))
		expired := w.age(t, 10*time.Minute, 10*time.Minute+30*time.Second)
		took := w.night(t, random)
		t.Logf("figure: with expired certificates, each node pulled %.0f s after the last had power", took.Seconds())
		w.changed(t, expired, "server", "node", "push")
	})
	must(t, "certificates have expired, and no CronJob renews them", func(t *testing.T) {
		w.mustInstall(t)
		w.age(t, 10*time.Minute, 10*time.Minute+10*time.Second)
		w.powerCycle(t, random)
		if out, err := w.pullOn(t, w.nodes[0], 0); err == nil {
			t.Errorf("it pulls: %s", out)
		}
		w.advises(t, "expired", "certs renew")
		begin := time.Now()
		w.certs(t, "renew")
		t.Logf("figure: each node pulled %.0f s after certs renew began", w.served(t, begin).Seconds())
	})
}

// night switches all off and on. It returns how long after the last start each node pulls a new image.
func (w *world) night(t *testing.T, random *rand.Rand) time.Duration {
	t.Helper()
	return w.served(t, w.powerCycle(t, random))
}

// powerCycle switches all nodes and the control plane off and on. It returns when the last start began.
func (w *world) powerCycle(t *testing.T, random *rand.Rand) (begin time.Time) {
	t.Helper()
	members := append(slices.Clone(w.nodes), "cp")
	order := func() []string {
		random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return slices.Clone(members)
	}
	off := order()
	for _, member := range off {
		if member != "cp" {
			run(t, w.testcluster, "off", "--name", w.name, member)
			continue
		}
		for _, process := range slices.Backward(controlPlaneProcesses) {
			_, text, err := try(exec.Command(w.testcluster, "kill", "--name", w.name, process))
			if err != nil && !strings.Contains(text, "is not running") {
				t.Fatalf("%v: %s", err, text)
			}
		}
	}
	time.Sleep(time.Duration(5+random.IntN(60)) * time.Second)
	on := order()
	t.Logf("off: %v, on: %v", off, on)
	var group sync.WaitGroup
	problems := make([]error, len(on))
	for i, member := range on {
		begin = time.Now()
		if member == "cp" {
			for _, process := range controlPlaneProcesses {
				run(t, w.testcluster, "restart", "--name", w.name, process)
			}
		} else {
			group.Go(func() {
				_, text, err := try(exec.Command(w.testcluster, "on", "--name", w.name, member))
				if err != nil {
					problems[i] = fmt.Errorf("switching %s on: %w: %s", member, err, text)
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(10)) * time.Second)
	}
	group.Wait()
	require.NoError(t, errors.Join(problems...))
	return begin
}

// pullOn pulls one of the fresh images on a node.
func (w *world) pullOn(t *testing.T, node string, image int) (string, error) {
	t.Helper()
	reference := fmt.Sprintf("%s/%s-%d", w.address, freshImages, image)
	_, _ = w.onNode(t, node, "crictl", "rmi", reference) // which it may not have
	return w.onNode(t, node, "crictl", "pull", reference)
}

// served waits until each node pulls and the cluster is healthy. It returns how long after begin the last node pulled.
func (w *world) served(t *testing.T, begin time.Time) (took time.Duration) {
	t.Helper()
	for i, node := range w.nodes {
		eventually(t, "node "+node+" to pull", func() error {
			out, err := w.pullOn(t, node, i)
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
			}
			return nil
		})
		took = max(took, time.Since(begin))
	}
	stop := w.freshLoop(t, nothingFails)
	time.Sleep(10 * time.Second)
	stop()
	w.becomesHealthy(t)
	return took
}
