package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestNodes uses proxy mode on unequal nodes: two pause images, a taint, and a node that joins later with
// an image that is only called pause.
func TestNodes(t *testing.T) {
	const common, rare, strange = "registry.k8s.io/pause:3.10.1", "docker.io/rancher/mirrored-pause:3.6",
		"example.com/k8s/pause:3.9"
	w := ownCluster(t, "e2e-nodes", layout{args: []string{"--pause-image", common, "--pause-image", "n2=" + rare}})
	w.provoked = []string{common, rare, strange} // by the nodes that lack them
	if long() {
		w.nodePortNeedsProxy(t)
	}
	w.addNode(t, "tainted", "--register-with-taints", "dedicated=edge:NoExecute")
	must(t, "the nodes have two pause images", func(t *testing.T) {
		for node, image := range map[string]string{"n1": common, "n2": rare, "tainted": common} {
			w.waitForImage(t, node, image)
		}
	})
	must(t, "all three pull", func(t *testing.T) {
		w.helmChart(t, "install", noMode)
		w.isIn(t, state.ModeProxy, state.SourceCluster) // no node port answers on [::1]
		w.pullEverywhere(t, w.pushHello(t))
		w.isHealthy(t)
	})
	w.loopbackOnly(t)
	// On IPv6 the proxies use the host network, and report on the node's loopback address
	// which certificates they have loaded.
	must(t, "certs rotate --ca reaches the proxies of all nodes", func(t *testing.T) {
		before := w.certificates(t)
		stop := w.pullLoop(t, "e2e/hello:1")
		w.restartsNothing(t, func() { w.certs(t, "rotate", "--ca") })
		stop()
		w.changed(t, before, "ca", "server", "node", "push")
	})
	must(t, "a node that joins with an untrusted pause image is reported with a remedy", func(t *testing.T) {
		w.addNode(t, "late", "--pause-image", strange)
		w.waitForImage(t, "late", strange)
		eventually(t, "zarf-registry status to report it", func() error {
			report, text := w.status(t)
			named := slices.ContainsFunc(report.Next, func(next string) bool {
				repository, _, _ := strings.Cut(strange, ":")
				return strings.Contains(next, "late") && strings.Contains(next, repository+"@sha256:") &&
					strings.Contains(next, "injector.image")
			})
			if report.Healthy || !named || !strings.Contains(text, "late") {
				return errors.New(text)
			}
			t.Logf("output:\n%s", text)
			return nil
		})
	})
	must(t, "the remedy works, on all nodes", func(t *testing.T) {
		w.apply(t, noMode, "--set=injector.image="+strange)
		w.isIn(t, state.ModeProxy, state.SourceState)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		w.isHealthy(t)
	})
	must(t, "helm uninstall leaves only the volume", w.uninstall)
}
