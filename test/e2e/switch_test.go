package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// TestSwitch switches between the modes while every node pulls, and fails if one
// pull does.
func TestSwitch(t *testing.T) {
	w := ownCluster(t, "e2e-switch", layout{})
	must(t, "install in nodeport mode", func(t *testing.T) {
		w.helmChart(t, "install", nodePortMode)
		w.pushHello(t)
		w.pushFresh(t)
		w.onlyNodePortAnswers(t)
	})
	underLoop := func(name string, f func(t *testing.T)) { w.underLoop(t, name, "150ms", f) }
	underLoop("helm upgrade to proxy mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "then only the proxies answer", w.onlyProxiesAnswer)
	underLoop("helm upgrade to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "then only the node port answers", w.onlyNodePortAnswers)
	underLoop("helm rollback to the revision in proxy mode", func(t *testing.T) {
		w.rollback(t, "2")
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "then only the proxies answer, again", w.onlyProxiesAnswer)
	underLoop("helm upgrade without a mode keeps the one of the rollback", func(t *testing.T) {
		w.restartsNothing(t, func() { w.helmChart(t, "upgrade", noMode) })
		w.isIn(t, state.ModeProxy, state.SourceState)
	})
	must(t, "helm uninstall half-way through a switch leaves nothing but the volume", func(t *testing.T) {
		upgrade := w.chart(t, "upgrade", nodePortMode)
		if err := upgrade.Start(); err != nil {
			t.Fatal(err)
		}
		job := w.waitForJobPod(t, "finish")
		if err := upgrade.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		upgrade.Wait()
		foreground := metav1.DeletePropagationForeground
		if err := w.client.BatchV1().Jobs(namespace).Delete(t.Context(), release+"-finish", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
			t.Fatal(err)
		}
		w.deletePod(t, job.Name, 0)
		if s := w.saved(t); s.Phase != state.PhasePrepared || s.Desired.Mode != state.ModeNodePort {
			t.Fatalf("this is not half-way: %s", mustJSON(s))
		}
		w.uninstall(t)
	})
}

// rollback runs helm rollback to a revision.
func (w *world) rollback(t *testing.T, revision string) {
	t.Helper()
	begin := time.Now()
	output(t, w.command(t, w.helm, "rollback", release, revision, "-n", namespace, "--timeout", "5m"))
	t.Logf("figure: helm rollback returned after %.1f s, proof on every node included", time.Since(begin).Seconds())
}

// nodeAddress is a node's own address, as others reach it.
func (w *world) nodeAddress(t *testing.T, node string) string {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	t.Fatalf("node %s has no address", node)
	return ""
}

// answers are the ways to the registry beside the nodes' loopback addresses: the
// node's own address from outside of all nodes, and the registry's plain port from a
// pod.
func (w *world) answers(t *testing.T) (fromOutside, fromPod bool) {
	t.Helper()
	node := w.nodes[0]
	fromOutside = w.dial(t, "cp", net.JoinHostPort(w.nodeAddress(t, node), "31999")) == nil
	registry := w.waitForRegistry(t, "")
	fromPod = w.podReaches(t, "dials-the-plain-port", node, w.address+"/e2e/hello:1", net.JoinHostPort(registry.Status.PodIP, "5001"))
	return fromOutside, fromPod
}

func (w *world) onlyNodePortAnswers(t *testing.T) {
	eventually(t, time.Minute, "the proxies to be gone", func() error {
		if pods := w.pods(t, "proxy"); len(pods) > 0 {
			return fmt.Errorf("%d are left", len(pods))
		}
		return nil
	})
	if fromOutside, fromPod := w.answers(t); !fromOutside || !fromPod {
		t.Errorf("the node port answers from outside: %t; the plain port from a pod: %t; want both", fromOutside, fromPod)
	}
}

func (w *world) onlyProxiesAnswer(t *testing.T) {
	services, err := w.client.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		if s.Spec.Type == corev1.ServiceTypeNodePort {
			t.Errorf("Service %s/%s has a node port", s.Namespace, s.Name)
		}
	}
	if fromOutside, fromPod := w.answers(t); fromOutside || fromPod {
		t.Errorf("the node's address answers from outside: %t; the registry's plain port from a pod: %t; want neither", fromOutside, fromPod)
	}
}
