package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// servedWithin is how long a node that returns may remain without its proxy.
const servedWithin = 15 * time.Second

// TestNodeOff has proxies with a host port.
func TestNodeOff(t *testing.T) {
	testNodeOff(t, ownCluster(t, "e2e-node-off", layout{open: true}), true)
}

// TestNodeOffHostNetwork has proxies on the host network.
func TestNodeOffHostNetwork(t *testing.T) {
	w := ownCluster(t, "e2e-node-off-6", layout{open: true})
	testNodeOff(t, w, false)
	w.Run(t, "a node's clock is ahead", func(t *testing.T) { testClockAhead(t, w) })
}

// testNodeOff upgrades and switches while one of three nodes is off, and brings it back.
func testNodeOff(t *testing.T, w *world, hostPort bool) {
	w.addNode(t, "n3")
	must(t, "install in proxy mode", func(t *testing.T) {
		if hostPort {
			w.mustInstall(t, toNodePort.flag) // makes the pull credential that the loops use
			w.mustInstall(t, toProxy.flag)
		} else {
			w.mustInstall(t, toProxy.flag)
		}
		w.pushFresh(t)
		w.isHealthy(t)
	})
	all, off := slices.Clone(w.nodes), ""
	must(t, "a node that the registry does not need is off", func(t *testing.T) {
		registry := w.pods(t, "registry")[0].Spec.NodeName
		off = all[slices.IndexFunc(all, func(n string) bool { return n != registry })]
		run(t, w.testcluster, "kill", "--name", w.name, "kubelet."+off)
		w.nodes = slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == off }) // for loops and checks
		eventually(t, "the node to be not ready", func() error { return w.readiness(t, off, false) })
	})
	// The one that was changed refuses connections for a moment; kubelets repeat those pulls.
	accept := map[bool]tolerated{true: refusals, false: nothingFails}[hostPort]
	during(t, "an upgrade updates the others", func(t *testing.T) (stop func()) { return w.freshLoop(t, accept) },
		func(t *testing.T) {
			w.mustInstall(t, "--set=logLevel=debug")
			w.isIn(t, state.ModeProxy, state.SourceValue)
			for _, node := range w.nodes { // on the host network, previous proxies drain beside the current ones
				eventually(t, "the proxy of node "+node+" to be current", func() error { return w.proxyIsCurrent(t, node) })
			}
			w.namesNode(t, off)
		})
	if hostPort {
		w.underLoop(t, "a switch to nodeport mode", func(t *testing.T) {
			w.mustInstall(t, toNodePort.flag)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
		// A previous proxy, which no kubelet ends, holds the port of the node that is off.
		w.underLoop(t, "a switch back to proxy mode", func(t *testing.T) {
			w.mustInstall(t, toProxy.flag)
			w.isIn(t, state.ModeProxy, state.SourceValue)
			w.namesNode(t, off)
		})
	}
	must(t, "the node returns, and is served", func(t *testing.T) {
		run(t, w.testcluster, "restart", "--name", w.name, "kubelet."+off)
		eventually(t, "the node to be ready", func() error { return w.readiness(t, off, true) })
		begin := time.Now()
		eventually(t, "its proxy to be current", func() error { return w.proxyIsCurrent(t, off) })
		took := time.Since(begin)
		t.Logf("figure: the node is served by a current proxy %.1f s after it was ready", took.Seconds())
		if took > servedWithin {
			t.Errorf("it took %s", took)
		}
		if err := w.dial(t, off, w.address); err != nil {
			t.Error(err)
		}
		w.nodes = all
		w.mustInstall(t)
		w.isIn(t, state.ModeProxy, w.saved(t).Desired.DecidedBy)
		w.isHealthy(t)
		if s := w.saved(t); len(s.ExcusedNodes) > 0 {
			t.Errorf("excused nodes remain: %v", s.ExcusedNodes)
		}
	})
}

// readiness returns an error unless a node is ready, or is not.
func (w *world) readiness(t *testing.T, node string, want bool) error {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err == nil && plan.NodeReady(*n) != want {
		err = fmt.Errorf("node %s is ready: %t", node, !want)
	}
	return err
}

// proxyIsCurrent returns an error unless the only proxy of a node is ready and has the current template.
func (w *world) proxyIsCurrent(t *testing.T, node string) error {
	t.Helper()
	pods := w.proxiesOn(t, node)
	if len(pods) != 1 || !ready(pods[0]) {
		return fmt.Errorf("node %s has %d proxies, or its proxy is not ready", node, len(pods))
	}
	set, err := w.client.AppsV1().DaemonSets(w.namespace).Get(t.Context(), pods[0].OwnerReferences[0].Name,
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	if want, got := set.Annotations[rollout.AnnotationGeneration], pods[0].Labels[rollout.LabelGeneration]; got != want {
		return fmt.Errorf("the proxy of node %s has template %s, want %s", node, got, want)
	}
	return nil
}

// namesNode checks that the state and zarf-registry status name a node that no run waits for.
func (w *world) namesNode(t *testing.T, node string) {
	t.Helper()
	if s := w.saved(t); s.ExcusedNodes[node] == "" {
		t.Errorf("the state excuses %v", s.ExcusedNodes)
	}
	if report, text := w.status(t); report.Healthy || !strings.Contains(text, "Node "+node+" is not ready") {
		t.Errorf("status does not name it: %s", text)
	}
}
