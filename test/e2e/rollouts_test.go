package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestRollouts makes the table of ways to upgrade and conditions of a node for proxies with a host port.
func TestRollouts(t *testing.T) {
	ownCluster(t, "e2e-rollouts", layout{open: true}).rollOutReleases(t, true)
}

// TestRolloutsHostNetwork makes it for proxies on the host network.
func TestRolloutsHostNetwork(t *testing.T) {
	ownCluster(t, "e2e-rollouts-6", layout{open: true}).rollOutReleases(t, false)
}

// TestRolloutsRendered makes it for ways without releases.
func TestRolloutsRendered(t *testing.T) {
	ownCluster(t, "e2e-rendered", layout{open: true}).rollOutRenderings(t, true)
}

// TestRolloutsRenderedHostNetwork makes it for ways without releases and proxies on the host network.
func TestRolloutsRenderedHostNetwork(t *testing.T) {
	ownCluster(t, "e2e-rendered-6", layout{open: true}).rollOutRenderings(t, false)
}

// way upgrades the release to proxies with that request of CPU time. It returns what it printed.
type way struct {
	name    string
	upgrade func(t *testing.T, cpu string) (text string, err error)
	// waits is true if it waits for the pods of all nodes before finish runs, also of those that are down.
	waits bool
}

// requestCPU is the argument of Helm that changes only the proxies' template.
const requestCPU = "--set=proxy.resources.requests.cpu="

// condition is what is the matter with a node.
type condition struct {
	name string
	// healthy is true if the node's proxy serves, and is updated.
	healthy bool
	// lasts is true if the condition lasts as long as the test wants.
	lasts        bool
	begin, ended func(t *testing.T, node string)
}

// rollOutReleases makes the rows of Helm and the commands that use it.
func (w *world) rollOutReleases(t *testing.T, hostPort bool) {
	w.addNode(t, "n3")
	values := slices.Concat(w.sets, []string{proxyMode, "--set=initHook.maxFailedNodes=1"})
	must(t, "install", func(t *testing.T) {
		w.helmChart(t, "install", values...)
		w.pushFresh(t)
	})
	w.eachWay(t, w.helmWays(t, values), hostPort)
}

// rollOutRenderings makes the rows of those that apply what helm template prints.
func (w *world) rollOutRenderings(t *testing.T, hostPort bool) {
	w.addNode(t, "n3")
	values := slices.Concat(w.sets, []string{proxyMode, "--set=initHook.maxFailedNodes=1", "--set=pki.mode=internal",
		"--set=proxy.tls=never", "--set=registry.architecture=amd64", "--set=injector.architectures={amd64}",
		"--set=ipFamily=" + w.network.Family, "--set=injector.image=" + w.pauseImage(t),
		`--set=initHook.nodeSelector.kubernetes\.io/hostname=` + w.nodes[0]}) // which has its image
	ways := w.renderedWays(t, values)
	must(t, "install", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
		if text, err := ways[0].upgrade(t, "9m"); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		w.pushFresh(t)
	})
	w.eachWay(t, ways, hostPort)
}

// eachWay changes the proxies' template in each way under each condition, while loops pull on the healthy nodes, and
// logs a row of a table for each.
func (w *world) eachWay(t *testing.T, ways []way, hostPort bool) {
	all := slices.Clone(w.nodes)
	registry := w.pods(t, "registry")[0].Spec.NodeName
	changes := 10 // of the template, each of which needs another value
	others := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == registry })
	node := others[len(others)-1] // not the first, where Jobs run
	for _, c := range w.conditions() {
		change := func(t *testing.T, f func(t *testing.T, node string)) {
			t.Helper()
			w.nodes = all
			f(t, node)
			if !c.healthy {
				w.nodes = slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == node })
			}
		}
		for i, way := range ways {
			if i == 0 || !c.lasts {
				must(t, c.name+", before "+way.name, func(t *testing.T) { change(t, c.begin) })
			}
			t.Run(c.name+", "+way.name, func(t *testing.T) {
				changes++
				w.rollsOut(t, way, fmt.Sprintf("%dm", changes), c, hostPort)
			})
			if i == len(ways)-1 || !c.lasts {
				must(t, c.name+", after "+way.name, func(t *testing.T) {
					change(t, c.ended)
					w.nodes = all
					eventually(t, "the node to be ready", func() error { return w.readiness(t, node, true) })
					eventually(t, "its proxy to be current", func() error { return w.proxyIsCurrent(t, node) })
				})
			}
		}
	}
}

// conditions returns what may be the matter with a node.
func (w *world) conditions() []condition {
	cluster := func(verb, component string) func(t *testing.T, node string) {
		return func(t *testing.T, node string) {
			t.Helper()
			run(t, w.testcluster, verb, "--name", w.name, component+"."+node)
		}
	}
	kubectl := func(verb string) func(t *testing.T, node string) {
		return func(t *testing.T, node string) {
			t.Helper()
			output(t, w.command(t, w.kubectl, verb, node))
		}
	}
	return []condition{
		{"all well", true, true, func(*testing.T, string) {}, func(*testing.T, string) {}},
		{"cordoned", true, true, kubectl("cordon"), kubectl("uncordon")},
		{"off", false, true, func(t *testing.T, node string) {
			t.Helper()
			cluster("kill", "kubelet")(t, node)
			eventually(t, "the node to be not ready", func() error { return w.readiness(t, node, false) })
		}, cluster("restart", "kubelet")},
		// The kubelet reports the node as not ready after three minutes.
		{"sick", false, false, cluster("pause", "containerd"), cluster("resume", "containerd")},
	}
}

// helmWays returns the ways that make revisions of a release.
func (w *world) helmWays(t *testing.T, values []string) []way {
	t.Helper()
	helm := func(program string, args ...string) func(t *testing.T, cpu string) (string, error) {
		return func(t *testing.T, cpu string) (string, error) {
			t.Helper()
			with := *w
			with.helm, with.sets = program, nil
			out, errOut, err := try(with.chart(t, "upgrade", slices.Concat(values, args, []string{requestCPU + cpu})...))
			return out + errOut, err
		}
	}
	helm4 := strings.TrimSpace(run(t, w.testcluster, "tool", "helm4"))
	z := newZarf(t, w)
	return []way{
		{"zarf-registry install", func(t *testing.T, cpu string) (string, error) {
			t.Helper()
			r := w.install(t, nil, slices.Concat([]string{"--reset-values"}, values, []string{requestCPU + cpu})...)
			return r.text, r.err
		}, false},
		{"helm 3 upgrade", helm(w.helm), false},
		{"helm 4 upgrade", helm(helm4), false},
		{"helm 3 upgrade --wait", helm(w.helm, "--wait", "--timeout=90s"), true},
		{"helm 4 upgrade --wait", helm(helm4, "--wait", "--timeout=90s"), true},
		{"zarf package deploy", func(t *testing.T, cpu string) (string, error) {
			t.Helper()
			file := z.chartPackage(t, cpu)
			out, errOut, err := try(z.command(t, "package", "deploy", file, "--timeout=90s", "--confirm"))
			return out + errOut, err
		}, true},
	}
}

// renderedWays returns the ways that apply what helm template prints.
func (w *world) renderedWays(t *testing.T, values []string) []way {
	t.Helper()
	argosync := strings.TrimSpace(run(t, w.testcluster, "tool", "argosync"))
	return []way{
		{"Argo CD's engine", func(t *testing.T, cpu string) (string, error) {
			t.Helper()
			a := &argo{world: w, values: values}
			cmd := w.command(t, "timeout", "150", argosync, "sync", namespace, "app.kubernetes.io/instance="+release)
			cmd.Stdin = strings.NewReader(manifests(t, a.render(t, requestCPU+cpu)))
			out, errOut, err := try(cmd)
			if err != nil && w.finished(t) {
				t.Logf("finish has completed, and the sync is in progress: %.500s%.500s", out, errOut)
				// Argo CD removes it when its sync ends, which the engine was not left to do.
				_, _, err = try(w.command(t, w.kubectl, "patch", "job", release+"-finish", "-n", namespace, "--type=json",
					`--patch=[{"op": "remove", "path": "/metadata/finalizers"}]`))
			}
			return out + errOut, err
		}, false},
		{"kubectl apply", func(t *testing.T, cpu string) (string, error) {
			t.Helper()
			rendering{w, append(slices.Clone(values), requestCPU+cpu)}.apply(t)
			return "", nil
		}, false},
	}
}

// finished reports whether the Job finish has completed.
func (w *world) finished(t *testing.T) bool {
	t.Helper()
	job, err := w.client.BatchV1().Jobs(w.namespace).Get(t.Context(), release+"-finish", metav1.GetOptions{})
	return err == nil && job.Status.Succeeded > 0
}

// chartPackage makes a package, for clusters that Zarf has not initialized, which upgrades the release to proxies with that
// request of CPU time, and returns its path.
func (z *zarf) chartPackage(t *testing.T, cpu string) string {
	t.Helper()
	dir := t.TempDir()
	for file, content := range map[string]string{
		"zarf.yaml": `kind: ZarfPackageConfig
metadata:
  name: registry
  yolo: true
components:
  - name: registry
    required: true
    charts:
      - name: zarf-registry
        namespace: ` + namespace + `
        releaseName: ` + release + `
        localPath: ` + built(t, "E2E_CHART") + `
        version: 0.1.0
        valuesFiles: [values.yaml, change.yaml]
`,
		"values.yaml": output(t, z.w.command(t, z.w.helm, "get", "values", release, "-n", namespace, "-o", "yaml")),
		"change.yaml": "proxy: {resources: {requests: {cpu: " + cpu + "}}}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
	}
	return z.create(t, dir)
}

// rollsOut upgrades in one way and logs a row. Ways that wait for all nodes may fail while one is down.
func (w *world) rollsOut(t *testing.T, way way, cpu string, c condition, hostPort bool) {
	loop := w.loopReports(t, w.pullCredential(t), func(stopFile string) []string {
		return []string{"crictl", w.address + "/" + freshImages, strconv.Itoa(fresh), slowImage, stopFile, freshPause}
	})
	begin := time.Now()
	text, err := way.upgrade(t, cpu)
	took := time.Since(begin)
	time.Sleep(2 * time.Second)
	var pulls, connects count
	for node, r := range loop() {
		pulls.include(node, r.Pulls)
		connects.include(node, r.Connects)
	}
	updated := 0
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Second) { // previous pods drain for 20 s
		updated = 0
		for _, node := range w.nodes {
			if w.proxyIsCurrent(t, node) == nil {
				updated++
			}
		}
		if updated == len(w.nodes) || err != nil || time.Now().After(end) {
			break
		}
	}
	network := map[bool]string{true: "host port", false: "host network"}[hostPort]
	t.Logf("figure: |%s|%s|%s|%t|%.0f s|%d of %d|%d|%d|%d|%.1f s|", way.name, c.name, network, err == nil, took.Seconds(),
		updated, len(w.nodes), pulls.Attempts, pulls.Failures, connects.Failures, connects.Gap.Seconds())
	jobs := w.pods(t, "init-hook")
	onSick := slices.IndexFunc(jobs, func(p corev1.Pod) bool { return !slices.Contains(w.nodes, p.Spec.NodeName) })
	switch {
	case err != nil && c.name == "sick" && onSick >= 0:
		t.Logf("pod %s is on the node, which Kubernetes takes for a good one: %.2000s", jobs[onSick].Name, text)
	case err != nil && (c.healthy || !way.waits):
		t.Errorf("%v: %s", err, text)
	case err != nil:
		t.Logf("it waits for all nodes: %v: %.2000s", err, text)
	case updated < len(w.nodes):
		t.Errorf("only %d of %d healthy nodes are updated: %s", updated, len(w.nodes), text)
	}
	if !hostPort && pulls.Failures+connects.Failures > 0 {
		t.Errorf("pulls failed: %s; %s", pulls, connects)
	}
	if set, err := w.client.AppsV1().DaemonSets(w.namespace).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Logf("status of %d DaemonSets: %s", len(set.Items), mustJSON(set.Items[0].Status))
	}
}
