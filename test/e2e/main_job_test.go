package e2e

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMainJob covers the life of an installation in proxy mode on an IPv4 cluster whose nodes hold
// only the pause image, and one node the init-hook image. The subtests build on each other.
//
// Claim (the proxy is reachable on its node's loopback address only): In proxy mode, only the loopback
// address answers on the node, and pods of other namespaces reach neither the registry nor a proxy.
func TestMainJob(t *testing.T) {
	t.Parallel()
	place(t)
	w := newWorld(t, "e2e", layout{})
	w.noFailedPulls(t)
	// Kubernetes would wait five minutes before it replaces the pods of a lost node. Pulls wait until that is done, also
	// on a busy machine.
	w.sets = []string{noRotation, `--set-json=registry.tolerations=[{"key":"node.kubernetes.io/unreachable",` +
		`"operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]`, "--set=proxy.retryTimeout=4m"}
	if len(w.nodes) < 2 {
		t.Fatalf("the cluster has the nodes %v; want at least two", w.nodes)
	}
	hookNode := w.nodes[0]

	must(t, "nodes hold only pause, and one of them init-hook", func(t *testing.T) {
		w.testClusterOnly(t)
		for _, node := range w.nodes {
			if node == hookNode {
				w.onlyPause(t, node, "/init-hook")
			} else {
				w.onlyPause(t, node)
			}
		}
	})
	must(t, "helm install succeeds at the first attempt", func(t *testing.T) {
		w.helmChart(t, "install", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.reportInstall(t)
	})
	archive := w.makeArchive(t, "example.com/e2e/hello:1", 3<<20)
	must(t, "images push fills the registry", func(t *testing.T) {
		if got, want := w.push(t, archive), w.address+"/e2e/hello:1"; got != want {
			t.Errorf("push printed %q, want %q", got, want)
		}
	})
	must(t, "every node pulls through its loopback address", func(t *testing.T) {
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
	})
	w.Run(t, "the proxies are small", func(t *testing.T) {
		w.testClusterOnly(t)
		for _, p := range w.pods(t, "proxy") {
			_, after, found := strings.Cut(w.scrape(t, p, "9102"), "\nprocess_resident_memory_bytes ")
			resident, _, _ := strings.Cut(after, "\n")
			if !found {
				t.Fatalf("metrics of %s lack the memory", p.Name)
			}
			t.Logf("figure: proxy on %s, after its first pulls: %s bytes resident", p.Spec.NodeName, resident)
		}
	})
	w.Run(t, "changing the ClusterIP and deleting the registry pod during a pull loop fails no pull",
		func(t *testing.T) { testRegistryRestart(t, w) })
	w.Run(t, "a proxy that ends delivers the responses it has written", func(t *testing.T) { testSlowClient(t, w) })
	w.Run(t, "a client that stalls on 1000 downloads delays no other", func(t *testing.T) { testStalledDownloads(t, w) })
	w.Run(t, "a Service that takes the port is reported", w.portIsOurs)
	w.Run(t, "the registry moves to a node that never ran it", func(t *testing.T) { testRegistryMoves(t, w) })
	w.Run(t, "a node added later pulls without another run of the hook", func(t *testing.T) { testNodeAdded(t, w) })
	w.Run(t, "the registry's node is lost", func(t *testing.T) { testRegistryNodeLost(t, w) })
	w.Run(t, "the registry's node reboots", func(t *testing.T) { testNodeReboots(t, w) })
	w.Run(t, "the pods expose the metrics that alerts and dashboard use", func(t *testing.T) { testMetrics(t, w, false) })
	w.Run(t, "the proxy is reachable on its node's loopback address only", func(t *testing.T) { testReach(t, w) })
	w.Run(t, "helm upgrade without changes restarts nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { w.helmChart(t, "upgrade", proxyMode) })
	})
	w.Run(t, "a second install is refused and changes nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { w.helmChartFails(t, []string{"name that is still in use"}, "install", proxyMode) })
	})
	w.Run(t, "a broken payload is reported and recovers", func(t *testing.T) { testBrokenPayload(t, w) })
	must(t, "helm uninstall leaves only the volume", w.uninstall)
}

// TestImages uses the commands of zarf-registry images, which reach the registry through the API server.
func TestImages(t *testing.T) {
	w := ownCluster(t, "e2e-images", layout{open: true, args: []string{"--nodes", "1"}})
	must(t, "install", func(t *testing.T) {
		w.apply(t, proxyMode)
		w.pushHello(t)
	})
	w.Run(t, "images copy and images list", func(t *testing.T) { testCopyAndList(t, w) })
	w.Run(t, "images missing", func(t *testing.T) { testMissing(t, w) })
	w.Run(t, "images list, delete and prune", func(t *testing.T) { testLifecycle(t, w) })
	w.Run(t, "images export restores", func(t *testing.T) { testExport(t, w) })
	w.Run(t, "images browse", func(t *testing.T) { testBrowse(t, w) })
	w.Run(t, "images inventory and a thin archive", func(t *testing.T) { testThinArchive(t, w) })
	w.Run(t, "an interrupted push resumes", func(t *testing.T) { testInterruptedPush(t, w) })
	w.Run(t, "a push continues when the registry's pod dies", func(t *testing.T) { testPushOutlivesPod(t, w) })
	w.Run(t, "an invalid archive is refused before anything is sent", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "rubbish.tar")
		require.NoError(t, os.WriteFile(file, []byte("rubbish"), 0o600))
		_, errOut, err := try(w.command(t, w.hook, "images", "push", file))
		if err == nil || !strings.Contains(errOut, file) {
			t.Errorf("the error is %v: %s", err, errOut)
		}
	})
	w.Run(t, "missing permissions are named", func(t *testing.T) { testPermissions(t, w) })
}

// reportInstall logs figures of the installation.
func (w *world) reportInstall(t *testing.T) {
	t.Helper()
	cms, err := w.client.CoreV1().ConfigMaps(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	require.NoError(t, err)
	total, node := 0, 0
	for _, cm := range cms.Items {
		for key, data := range cm.BinaryData {
			total += len(data)
			if strings.Contains(cm.Name, "-registry-node-") {
				node += len(data)
			}
			if key == "loader" {
				t.Logf("figure: loader %d bytes in %s", len(data), cm.Name)
			}
		}
	}
	t.Logf("figure: payload %d bytes in etcd in %d ConfigMaps, of which a node fetches %d (the registry's node %d)", total,
		len(cms.Items), node, total)
	jobs, err := w.client.CoreV1().Events(namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=Started"})
	require.NoError(t, err)
	var prepared time.Time
	for _, e := range jobs.Items {
		if strings.Contains(e.InvolvedObject.Name, "-prepare-") {
			prepared = e.FirstTimestamp.Time
		}
	}
	for _, p := range w.pods(t, "registry") {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && !prepared.IsZero() {
				t.Logf("figure: registry ready %.0f s after the prepare Job's pod started (events have whole seconds)",
					c.LastTransitionTime.Sub(prepared).Seconds())
			}
		}
	}
}

// testInterruptedPush interrupts a push when the registry has a blob. The next one must send only the others.
func testInterruptedPush(t *testing.T, w *world) {
	w.testClusterOnly(t)
	const number, size = 8, 20 << 20
	files := map[string][]byte{}
	for i := range number {
		content := make([]byte, size)
		rand.Read(content)
		files[fmt.Sprintf("example.com/e2e/part-%d:1", i)] = content
	}
	archive := writeArchive(t, files)
	before := w.stored(t)
	push := w.command(t, w.hook, "images", "push", archive)
	w.stopOnce(t, push, "a blob to be stored", func() bool { return w.stored(t).blobs >= before.blobs+size })
	require.NoError(t, errors.Join(push.Process.Signal(os.Interrupt), push.Process.Signal(syscall.SIGCONT)))
	if err := push.Wait(); err == nil {
		t.Fatal("the interrupted push succeeded")
	}
	kept := w.stored(t).blobs - before.blobs
	sent, _ := w.pushed(t, archive)
	t.Logf("figure: %.1f MB of an interrupted push were stored; the next one sent %.1f MB", float64(kept)/1e6,
		float64(sent)/1e6)
	const overhead = 1 << 20                           // of compression and manifests
	if sent == 0 || sent > number*size-kept+overhead { // what is on its way when a push ends may still be stored
		t.Errorf("%d bytes were stored, and the next push sent %d of %d", kept, sent, number*size)
	}
	if sent, skipped := w.pushed(t, archive); sent != 0 || skipped < number*size {
		t.Errorf("pushing existing images again sent %d bytes and skipped %d", sent, skipped)
	}
}

// pushed pushes an archive, and returns how many bytes were sent and how many the registry had.
func (w *world) pushed(t *testing.T, archive string) (sent, skipped int64) {
	t.Helper()
	var results struct {
		Items []struct{ BytesSent, BytesSkipped int64 }
	}
	require.NoError(t, json.Unmarshal([]byte(output(t, w.command(t, w.hook, "images", "push", "-o", "json", archive))),
		&results))
	for _, r := range results.Items {
		sent, skipped = sent+r.BytesSent, skipped+r.BytesSkipped
	}
	return sent, skipped
}

// stopOnce starts a command and stops it with a signal once a condition holds, so that a fast machine does not
// complete it before.
func (w *world) stopOnce(t *testing.T, cmd *exec.Cmd, what string, condition func() bool) {
	t.Helper()
	require.NoError(t, cmd.Start())
	for end := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			cmd.Process.Kill()
			t.Fatalf("waited %s for %s: %v", patience, what, cmd.Wait())
		}
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
}

// content is how many bytes of blobs and of unfinished uploads the registry's volume has, which is a directory
// of this machine.
type content struct{ blobs, uploads int64 }

func (w *world) stored(t *testing.T) (c content) {
	t.Helper()
	for part, size := range map[string]*int64{
		"blobs/*/*/*/data": &c.blobs, "repositories/e2e/*/_uploads/*/data": &c.uploads,
	} {
		files := require.Value(filepath.Glob(w.stateOf("volumes/*/docker/registry/v2", part)))(t)
		for _, file := range files {
			if info, err := os.Stat(file); err == nil { // an upload that ends moves its file
				*size += info.Size()
			}
		}
	}
	if c.blobs == 0 {
		t.Fatal("the volume has no blobs")
	}
	return c
}

// testCopyAndList copies images from a registry outside the cluster. copy and list both default to
// the platforms of the nodes.
func testCopyAndList(t *testing.T, w *world) {
	connected := connectedRegistry(t)
	output(t, w.command(t, w.hook, "images", "push", makeTinyArchive(t, "example.com/e2e/copied", 3), "--to", connected,
		"--plain-http"))
	args := []string{"images", "copy", "--from-plain-http", "--prefix=carried", "--store-dir", t.TempDir()}
	want := ""
	for i := range 3 {
		args = append(args, fmt.Sprintf("%s/e2e/copied-%d", connected, i))
		want += fmt.Sprintf("%s/carried/e2e/copied-%d:latest\n", w.address, i)
	}
	if got := output(t, w.command(t, w.hook, args...)); got != want {
		t.Errorf("copy printed %q, want %q", got, want)
	}
	var listed struct{ Items []struct{ Reference string } }
	require.NoError(t, json.Unmarshal([]byte(output(t, w.command(t, w.hook, "images", "list", "-o", "json", "--store-dir",
		t.TempDir()))), &listed))
	var found []string
	for _, image := range listed.Items {
		found = append(found, image.Reference)
	}
	for line := range strings.Lines(want) {
		if !slices.Contains(found, strings.TrimSpace(line)) {
			t.Errorf("list lacks %s: %q", line, found)
		}
	}
}

// testPushOutlivesPod kills the registry while a blob is uploaded: the port-forward breaks, and the
// push must find the next pod.
func testPushOutlivesPod(t *testing.T, w *world) {
	w.testClusterOnly(t)
	const size = 150 << 20
	push := w.command(t, w.hook, "images", "push", "--output=json", w.makeArchive(t, "example.com/e2e/lasting:1", size))
	var out, errOut bytes.Buffer
	push.Stdout, push.Stderr = &out, &errOut
	previous := w.waitForRegistry(t, "")
	w.stopOnce(t, push, "a part of a blob to be stored", func() bool { return w.stored(t).uploads >= 20<<20 })
	w.deletePod(t, previous.Name, 0)
	require.NoError(t, push.Process.Signal(syscall.SIGCONT))
	require.NoError(t, push.Wait(), errOut.String())
	var results struct{ Items []struct{ BytesSent int64 } }
	if err := json.Unmarshal(out.Bytes(), &results); err != nil || len(results.Items) != 1 {
		t.Fatalf("%v: %s", err, out.String())
	}
	sent := results.Items[0].BytesSent
	t.Logf("figure: %.1f MB sent of an image of %.1f MB and a program; output:\n%s", float64(sent)/1e6, float64(size)/1e6,
		errOut.String())
	// Whatever the API server had buffered is lost with the pod, which on a busy machine can be any
	// amount; but nothing is sent a third time.
	if sent < size || sent > size*2+(32<<20) {
		t.Errorf("%d bytes sent", sent)
	}
	w.waitForRegistry(t, previous.Name)
	took, event := w.runPod(t, pod("lasting", w.nodes[0], w.address+"/e2e/lasting:1"))
	t.Logf("after %.1f s: %s", took.Seconds(), event)
}

// testReach scans the pods' ports from every place. NetworkPolicies let the release's own pods reach the
// registry, and nobody else. Where they are not enforced, and for proxies with host network, which no selector
// matches, mutual TLS alone protects the registry.
func testReach(t *testing.T, w *world) {
	w.testClusterOnly(t)
	node := w.nodes[1]
	w.onlyLoopbackAnswers(t, node)
	listens := map[string][]int{"registry": {5000, 5080, 5090}, "proxy": {5000, 9102}, "healer": {9103}}
	pods := map[string]corev1.Pod{} // by address
	for component := range listens {
		for _, p := range w.pods(t, component) {
			if hostNetwork := component == "proxy" && w.network.Family == "IPv6"; p.Spec.HostNetwork != hostNetwork {
				t.Errorf("pod %s uses the host network: %t, want %t", p.Name, p.Spec.HostNetwork, hostNetwork)
			}
			if !p.Spec.HostNetwork {
				pods[p.Status.PodIP] = p
			}
		}
	}
	if len(pods) < 3 {
		t.Fatalf("found only %d pods", len(pods))
	}
	if !w.policies {
		w.isRefused(t, nil)
		return
	}
	others := w.globalAddresses(t, node)
	targets := append(slices.Collect(maps.Keys(pods)), others...)
	// check returns an error unless exactly those ports are open that reachable tells, of a component on a node.
	check := func(from string, open map[string][]int, reachable func(component, node string) []int) error {
		var errs []error
		for _, address := range targets {
			want := []int{10250} // the node's kubelet: a scan that misses it is worthless
			if p, ok := pods[address]; ok {
				want = reachable(p.Labels["app.kubernetes.io/component"], p.Spec.NodeName)
			}
			if !slices.Equal(open[address], want) {
				errs = append(errs, fmt.Errorf("from %s, open ports of %s %s: %v, want %v", from, pods[address].Name, address,
					open[address], want))
			}
		}
		return errors.Join(errs...)
	}
	toRegistry := func(component, _ string) []int {
		if component == "registry" {
			return []int{5000}
		}
		return nil
	}
	toNothing := func(string, string) []int { return nil }
	const ports = "5000,5001,5080,5090,5443,9102,9103,10250,31999"
	labels := map[string]string{"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": release,
		"app.kubernetes.io/component": "init-hook"}
	fromPod := func(p *corev1.Pod) map[string][]int {
		out, errOut, err := try(w.command(t, w.kubectl, slices.Concat([]string{"exec", "-n", p.Namespace, p.Name, "--",
			"/tool", "scan", ports}, targets)...))
		return openPorts(t, p.Name, out+errOut, err)
	}
	scanner := func(name, namespace string, labels map[string]string) *corev1.Pod {
		p := pod(name, node, w.address+"/e2e/hello:1")
		p.Namespace, p.Labels = namespace, labels
		w.runPod(t, p)
		return p
	}
	strangers := []*corev1.Pod{scanner("scanner-of-another-namespace", workloads, labels),
		scanner("scanner", namespace, nil)}
	ours := scanner("scanner-with-our-labels", namespace, labels)
	// The network plugin takes a moment to notice new pods. Then it has noticed the older ones too.
	eventually(t, "the release's pods to reach the registry only",
		func() error { return check(ours.Name, fromPod(ours), toRegistry) })
	var scans sync.WaitGroup // closed ports take ten seconds
	defer scans.Wait()
	for _, p := range strangers {
		scans.Go(func() {
			if err := check(p.Name, fromPod(p), toNothing); err != nil {
				t.Error(err)
			}
		})
	}
	for _, from := range append([]string{"cp"}, w.nodes...) {
		scans.Go(func() {
			if err := check(from, w.scan(t, from, ports, targets...), func(component, node string) []int {
				if node == from {
					return listens[component] // which shows that these ports are open
				}
				return toNothing(component, node)
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// testRegistryRestart ends the registry's pod, gracefully and by force, after its Service has got another ClusterIP.
func testRegistryRestart(t *testing.T, w *world) {
	stop := w.pullLoop(t, "e2e/hello:1")
	w.changeClusterIP(t)
	for _, grace := range []int64{30, 0} { // graceful, and killed
		old := w.pods(t, "registry")[0]
		begin := time.Now()
		w.deletePod(t, old.Name, grace)
		w.waitForRegistry(t, old.Name)
		t.Logf("figure: registry deleted with grace %d s, ready again after %.1f s", grace, time.Since(begin).Seconds())
		time.Sleep(2 * time.Second)
	}
	stop()
	for _, p := range w.pods(t, "proxy") {
		if log := output(t, w.command(t, w.kubectl, "-n", namespace, "logs", p.Name)); !strings.Contains(log,
			"using the address from DNS") {
			t.Errorf("proxy %s does not report the changed ClusterIP: %s", p.Name, log)
		}
	}
}

// changeClusterIP deletes the registry's Service and creates it again with another address. The environment of
// the proxies names the previous one, so new connections need DNS.
func (w *world) changeClusterIP(t *testing.T) {
	t.Helper()
	services := w.client.CoreV1().Services(namespace)
	before := require.Value(services.Get(t.Context(), release, metav1.GetOptions{}))(t)
	require.NoError(t, services.Delete(t.Context(), release, metav1.DeleteOptions{}))
	again := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: release, Labels: before.Labels,
		Annotations: before.Annotations}, Spec: before.Spec}
	again.Spec.ClusterIP, again.Spec.ClusterIPs = "", nil
	after := require.Value(services.Create(t.Context(), again, metav1.CreateOptions{}))(t)
	if after.Spec.ClusterIP == before.Spec.ClusterIP {
		t.Errorf("the ClusterIP is %s again", after.Spec.ClusterIP)
	}
}

// testStalledDownloads lets a client on a node not read 1000 downloads. Requests of others must not
// fail, and not take much longer; and the proxy must not run out of memory.
func testStalledDownloads(t *testing.T, w *world) {
	w.testClusterOnly(t)
	w.push(t, w.makeArchive(t, "example.com/e2e/stalled:1", 8<<20))
	before := w.restarts(t)
	out, err := w.onNode(t, w.nodes[1], w.tool, "stall", "http://"+w.address, "e2e/stalled:1", "1000")
	require.NoError(t, err, out)
	var result struct {
		Idle             time.Duration
		Stalled, Slowest []time.Duration
		Requests, Failed int
		First            string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &result), out)
	t.Logf("figure: p99 of %d requests: idle %s, with 1000 stalled downloads %s; slowest %s", result.Requests, result.Idle,
		result.Stalled, result.Slowest)
	if result.Failed > 0 {
		t.Errorf("%d of %d requests failed, the first with %s", result.Failed, result.Requests, result.First)
	}
	// What else runs on this machine delays some rounds, and requests that take less.
	if best := slices.Min(result.Stalled); best > max(10*result.Idle, 10*time.Second) {
		t.Errorf("p99 is %s, want at most ten times %s", best, result.Idle)
	}
	if after := w.restarts(t); after != before {
		t.Errorf("pods before:\n%s\nafter:\n%s", before, after)
	}
}

// testSlowClient deletes a proxy's pod while a slow client reads a blob. In hostPort mode everything that
// is still in the proxy's socket buffers then would be lost with the pod's network namespace, and the
// client would wait for its own timeout.
func testSlowClient(t *testing.T, w *world) {
	w.testClusterOnly(t)
	w.push(t, w.makeArchive(t, "example.com/e2e/slowly:1", 6<<20))
	for _, p := range w.pods(t, "proxy") {
		pulled, begun := make(chan error, 1), filepath.Join(t.TempDir(), "begun")
		begin := time.Now()
		go func() {
			out, err := w.onNode(t, p.Spec.NodeName, w.tool, "slowly", "http://"+w.address, "e2e/slowly:1", begun)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			pulled <- err
		}()
		eventually(t, "the slow pull to begin", func() error { _, err := os.Stat(begun); return err })
		w.deletePod(t, p.Name, 30)
		if err := <-pulled; err != nil {
			t.Errorf("a slow pull on %s while its proxy ended: %v", p.Spec.NodeName, err)
		}
		t.Logf("figure: a pull at 1 MB/s took %.1f s", time.Since(begin).Seconds())
	}
	eventually(t, "proxies on all nodes", func() error {
		n := 0
		for _, p := range w.pods(t, "proxy") {
			if p.DeletionTimestamp == nil && ready(p) {
				n++
			}
		}
		if n < len(w.nodes) {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
}

func testRegistryMoves(t *testing.T, w *world) {
	claim, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), release, metav1.GetOptions{})
	require.NoError(t, err)
	volume, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	if w.name == "" && volume.Spec.NodeAffinity != nil { // as those of kind and K3s
		t.Skip("SKIPPED, NOTHING CHECKED: the volume of the registry is bound to a node")
	}
	old := w.pods(t, "registry")[0]
	cordon := func(on bool) {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
		require.Value(w.client.CoreV1().Nodes().Patch(t.Context(), old.Spec.NodeName, "application/merge-patch+json",
			[]byte(patch), metav1.PatchOptions{}))(t)
	}
	archive := w.makeArchive(t, "example.com/e2e/moved:1", 1<<20) // which no node has
	w.push(t, archive)
	cordon(true)
	defer cordon(false)
	begin := time.Now()
	w.deletePod(t, old.Name, 30)
	moved := w.waitForRegistry(t, old.Name)
	if moved.Spec.NodeName == old.Spec.NodeName {
		t.Fatalf("the registry is on %s again", moved.Spec.NodeName)
	}
	t.Logf("figure: registry moved from %s to %s in %.1f s", old.Spec.NodeName, moved.Spec.NodeName,
		time.Since(begin).Seconds())
	w.runPod(t, pod("after-move", old.Spec.NodeName, w.address+"/e2e/moved:1"))
}

func testNodeAdded(t *testing.T, w *world) {
	w.testClusterOnly(t)
	w.addNode(t, "late")
	begin := time.Now()
	eventually(t, "node late to be ready", func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				begin = c.LastTransitionTime.Time
				return nil
			}
		}
		return errors.New("not ready yet")
	})
	// Without the kubelet: if its first attempt fails, it retries only after 10 s.
	eventually(t, "the loopback address of node late to answer", func() error { return w.dial(t, "late", w.address) })
	_, event := w.runPod(t, pod("first-on-late", "late", w.address+"/e2e/hello:1"))
	t.Logf("figure: node added, Ready -> first pod with a pulled image running in %.1f s (Ready has whole seconds): %s",
		time.Since(begin).Seconds(), event)
	t.Logf("afterwards late holds %v", w.nodeImages(t, "late"))
}

// without returns the world without a node, for loops on the others.
func (w *world) without(node string) *world {
	others := *w
	others.nodes = slices.DeleteFunc(slices.Clone(w.nodes), func(n string) bool { return n == node })
	return &others
}

// testRegistryNodeLost cuts the registry's node off until the registry runs elsewhere, and reconnects it.
// The proxies of the other nodes must hold pulls for so long.
func testRegistryNodeLost(t *testing.T, w *world) {
	w.testClusterOnly(t)
	lost := w.waitForRegistry(t, "")
	node := lost.Spec.NodeName
	stop := w.without(node).pullLoop(t, "e2e/hello:1")
	begin := time.Now()
	run(t, w.testcluster, "unplug", "--name", w.name, node)
	plug := sync.OnceFunc(func() { run(t, w.testcluster, "plug", "--name", w.name, node) })
	defer plug()
	moved := w.waitForRegistry(t, lost.Name)
	t.Logf("figure: node %s lost, the registry ready on %s after %.1f s", node, moved.Spec.NodeName,
		time.Since(begin).Seconds())
	time.Sleep(2 * time.Second)
	stop()
	plug()
	w.recovers(t)
	w.runPod(t, pod("after-loss", node, w.address+"/e2e/hello:1"))
}

// testNodeReboots reboots the registry's node. Its disk keeps what CNI plugins and container runtime knew
// about the previous pods.
func testNodeReboots(t *testing.T, w *world) {
	w.testClusterOnly(t)
	node := w.waitForRegistry(t, "").Spec.NodeName
	stop := w.without(node).pullLoop(t, "e2e/hello:1")
	begin := time.Now()
	run(t, w.testcluster, "reboot", "--name", w.name, node)
	booted := time.Now()
	eventually(t, "the loopback address of "+node+" to answer", func() error { return w.dial(t, node, w.address) })
	answered := time.Now()
	w.runPod(t, pod("after-reboot", node, w.address+"/e2e/hello:1"))
	t.Logf("figure: node %s rebooted in %.1f s, its proxy answered after another %.1f s, and its first pod ran after "+
		"another %.1f s", node, booted.Sub(begin).Seconds(), answered.Sub(booted).Seconds(), time.Since(answered).Seconds())
	stop()
	w.onlyLoopbackAnswers(t, node)
	w.recovers(t)
}

// recovers waits until there is one registry pod and the cluster is healthy.
func (w *world) recovers(t *testing.T) {
	t.Helper()
	eventually(t, "one registry, and a healthy cluster", func() error {
		if pods := w.pods(t, "registry"); len(pods) != 1 {
			return fmt.Errorf("%d registry pods", len(pods))
		}
		if report, text := w.status(t); !report.Healthy {
			return errors.New(text)
		}
		return nil
	})
}

// testBrokenPayload breaks the payload, restarts a proxy, and repairs the payload: a missing chunk
// on a new node, and a modified one on a node that has run the program before.
func testBrokenPayload(t *testing.T, w *world) {
	w.testClusterOnly(t)
	cms := w.client.CoreV1().ConfigMaps(namespace)
	list, err := cms.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	require.NoError(t, err)
	i := slices.IndexFunc(list.Items, func(cm corev1.ConfigMap) bool {
		return strings.HasSuffix(cm.Name, "-registry-node-amd64-01")
	})
	if i < 0 {
		t.Fatal("chunk 01 of registry-node is missing")
	}
	good := list.Items[i]
	remove := func(t *testing.T) { require.NoError(t, cms.Delete(t.Context(), good.Name, metav1.DeleteOptions{})) }
	create := func(t *testing.T, change func(chunk []byte)) {
		cm := good.DeepCopy()
		cm.ResourceVersion, cm.UID = "", ""
		change(cm.BinaryData["chunk-01"])
		require.Value(cms.Create(t.Context(), cm, metav1.CreateOptions{}))(t)
	}
	complains := func(t *testing.T, node, previous string) {
		t.Helper()
		eventually(t, "the proxy on node "+node+" to report the cause", func() error {
			for _, p := range w.proxiesOn(t, node) {
				if p.Name == previous {
					continue
				}
				if ready(p) {
					t.Fatal("the proxy started from a broken payload")
				}
				for _, s := range p.Status.ContainerStatuses {
					if end := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); end != nil &&
						strings.Contains(end.Message, "chunk 01") {
						t.Logf("exit code %d: %s", end.ExitCode, strings.TrimSpace(end.Message))
						return nil
					}
				}
			}
			return errors.New("not reported yet")
		})
	}
	recovers := func(t *testing.T, node string) {
		t.Helper()
		begin := time.Now()
		eventually(t, "the proxy to be ready", func() error {
			for _, p := range w.proxiesOn(t, node) {
				if p.DeletionTimestamp == nil && ready(p) {
					return nil
				}
			}
			return errors.New("not ready yet")
		})
		t.Logf("figure: proxy ready %.1f s after its payload was repaired", time.Since(begin).Seconds())
	}

	t.Run("a missing chunk on a new node, repaired by hand", func(t *testing.T) {
		const node = "unlucky"
		remove(t)
		w.addNode(t, node)
		defer w.removeNode(t, node)
		complains(t, node, "")
		create(t, func([]byte) {})
		recovers(t, node)
	})
	t.Run("a modified chunk on a node that had the right one, repaired by helm upgrade", func(t *testing.T) {
		node := w.nodes[1]
		remove(t)
		create(t, func(chunk []byte) { chunk[100] ^= 1 })
		time.Sleep(15 * time.Second) // time for the kubelet's watch to see the change
		previous := w.proxyOn(t, node).Name
		w.deletePod(t, previous, 30)
		complains(t, node, previous)
		w.helmChart(t, "upgrade", proxyMode)
		recovers(t, node)
	})
}

func testPermissions(t *testing.T, w *world) {
	archive := w.makeArchive(t, "example.com/e2e/none:1", 8)
	without := w.command(t, w.hook, "images", "push", archive)
	without.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "KUBECONFIG=") || strings.HasPrefix(e, "HOME=") || strings.HasPrefix(e, "KUBERNETES_")
	}), "HOME="+t.TempDir())
	for name, c := range map[string]struct {
		cmd  *exec.Cmd
		want []string
	}{
		"no kubeconfig": {without, []string{"--kubeconfig"}},
		"no such file": {w.command(t, w.hook, "images", "push", "--kubeconfig", "/nonexistent", archive),
			[]string{"/nonexistent", "--kubeconfig"}},
		"wrong namespace": {w.command(t, w.hook, "images", "push", "-n", "elsewhere", archive),
			[]string{"elsewhere/zarf-registry-state", "--namespace"}},
		"no permission": {w.command(t, w.hook, "images", "push", "--kubeconfig", w.kubeconfigOfNobody(t), archive),
			[]string{"cannot get resource", "secrets", "zarf", "request that permission"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, err := try(c.cmd)
			if err == nil {
				t.Fatal("the command succeeded")
			}
			t.Log(strings.TrimSpace(errOut))
			for _, want := range c.want {
				if !strings.Contains(errOut, want) {
					t.Errorf("the error lacks %q", want)
				}
			}
		})
	}
}

// kubeconfigOfNobody returns a kubeconfig for the default service account, which has no
// permissions.
func (w *world) kubeconfigOfNobody(t *testing.T) string {
	t.Helper()
	token := strings.TrimSpace(output(t, w.command(t, w.kubectl, "create", "token", "default", "-n", "default")))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	authority := w.config.CAData
	if len(authority) == 0 {
		authority = require.Value(os.ReadFile(w.config.CAFile))(t)
	}
	require.NoError(t, os.WriteFile(ca, authority, 0o600))
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, "+
		"certificate-authority: %q}}]\nusers: [{name: u, user: {token: %q}}]\ncontexts: [{name: x, context: {cluster: c, "+
		"user: u}}]\ncurrent-context: x\n", w.config.Host, ca, token)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}
