package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPauseImages verifies that neither a pod of another namespace nor a node that joins changes which image carries
// the project's programs.
func TestPauseImages(t *testing.T) {
	const evil, late = "localhost:31999/tenant/pause:999.0", "registry.k8s.io/pause:3.9"
	w := ownCluster(t, "e2e-pause-images", layout{bare: true})
	archive := w.makeArchive(t, evil, 0)
	image := ""
	hostile := func(t *testing.T) {
		output(t, w.command(t, w.testcluster, "load", "--name", w.name, "--nodes", "n1,n2", "--wait", archive))
		for _, node := range []string{"n1", "n2"} {
			output(t, w.command(t, w.kubectl, "run", "evil-"+node, "--image="+evil, "--image-pull-policy=Never",
				`--overrides={"spec":{"nodeName":"`+node+`"}}`))
		}
	}
	must(t, "hostile pods before the first installation change nothing", func(t *testing.T) {
		hostile(t)
		w.mustInstall(t, proxyMode)
		if used := w.usedImages(t); !slices.ContainsFunc(used, func(s string) bool {
			return strings.Contains(s, "registry.k8s.io/pause@")
		}) || strings.Contains(strings.Join(used, " "), "tenant") {
			t.Errorf("the release's pods use %s", used)
		}
		image = w.pushHello(t)
	})
	before := w.usedImages(t)
	must(t, "an upgrade with hostile pods restarts nothing", func(t *testing.T) { w.upgradeChangesNothing(t, before) })
	must(t, "a node with another pause image is served", func(t *testing.T) {
		w.firstPull(t, "late", image, "--pause-image", late)
	})
	before = w.usedImages(t)
	pulls := func(t *testing.T) (stop func()) { return w.pullLoop(t, "e2e/hello:1") }
	during(t, "an upgrade after it joined restarts nothing", pulls, func(t *testing.T) {
		w.upgradeChangesNothing(t, before)
	})
	// Two pods cannot share a hostPort, so connections are refused while a proxy is replaced: for 2 to 3 s, longer on a
	// busy machine.
	must(t, "a changed template replaces every proxy, and breaks no pull", func(t *testing.T) {
		stop := w.loopReports(t, w.pullCredential(t), func(stopFile string) []string {
			return []string{"pull", "http://" + w.address, "e2e/hello:1", "", stopFile, "100ms"}
		})
		w.apply(t, noMode, "--set=proxy.podAnnotations.changed=yes")
		w.rolloutsEnd(t)
		time.Sleep(2 * time.Second)
		for node, r := range stop() {
			t.Logf("figure: %s: pulls: %s; connects: %s", node, r.Pulls, r.Connects)
			if r.Pulls.Broken > 0 {
				t.Errorf("%s: pulls: %s", node, r.Pulls)
			}
		}
		after := strings.Join(w.usedImages(t), "\n")
		for _, pod := range before {
			if strings.Contains(pod, "-proxy-") && strings.Contains(after, pod) {
				t.Errorf("not replaced: %s", pod)
			}
		}
	})
	must(t, "a node that ran a copy of the pause image from the registry gets a proxy again", func(t *testing.T) {
		w.mirroredPause(t, "n1")
	})
	// A kubelet reports its 50 largest images only.
	must(t, "an upgrade restarts nothing after nodes ceased to report their pause image", func(t *testing.T) {
		files := map[string][]byte{}
		for i := range 50 {
			content := make([]byte, 2<<20)
			rand.Read(content)
			files[fmt.Sprintf("example.com/large:%d", i)] = content
		}
		output(t, w.command(t, w.testcluster, "load", "--name", w.name, writeArchive(t, files)))
		eventually(t, "nodes to report other images only", func() error {
			nodes, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, n := range nodes.Items {
				for _, image := range n.Status.Images {
					if strings.Contains(strings.Join(image.Names, " "), "registry.k8s.io/pause") {
						return fmt.Errorf("%s reports %s", n.Name, image.Names)
					}
				}
			}
			return nil
		})
		w.upgradeChangesNothing(t, w.usedImages(t), "--set=proxy.podAnnotations.changed=yes")
	})
	must(t, "zarf-registry uninstall leaves the images only", func(t *testing.T) {
		output(t, w.command(t, w.hook, "uninstall", "-n", w.namespace))
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
	})
}

// mirroredPause runs the node's pause image from the registry, and deletes the node's proxy. From Kubernetes 1.35 on, a
// kubelet that pulled an image under one name pulls it again under any other (kubernetes/kubernetes#138175).
func (w *world) mirroredPause(t *testing.T, node string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "pause.tar")
	if out, err := w.onNode(t, node, "ctr", "-n", "k8s.io", "images", "export", "--local", archive, knownPause); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.runPod(t, pod("mirrored-pause", node, w.push(t, archive)))
	previous := w.proxyOn(t, node).Name
	w.deletePod(t, previous, 0)
	begin := time.Now()
	eventually(t, "another proxy on "+node, func() error {
		proxies := w.proxiesOn(t, node)
		for _, p := range proxies {
			if p.Name != previous && ready(p) {
				t.Logf("figure: %.1f s later, a proxy with image %s was ready", time.Since(begin).Seconds(),
					p.Spec.Containers[0].Image)
				return nil
			}
		}
		return errors.New(mustJSON(proxies))
	})
}

// upgradeChangesNothing upgrades the release, which must leave its pods and their images as they were before.
func (w *world) upgradeChangesNothing(t *testing.T, before []string, args ...string) {
	t.Helper()
	w.restartsNothing(t, func() { w.apply(t, append([]string{noMode}, args...)...) })
	if after := w.usedImages(t); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// usedImages lists the release's pods with their restarts and images.
func (w *world) usedImages(t *testing.T) (used []string) {
	t.Helper()
	for _, component := range []string{"registry", "proxy", "healer"} {
		for _, p := range w.pods(t, component) {
			var restarts int32
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				restarts += s.RestartCount
			}
			for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
				used = append(used, fmt.Sprintf("%s on %s, %d restarts: %s", p.Name, p.Spec.NodeName, restarts, c.Image))
			}
		}
	}
	slices.Sort(used)
	return used
}
