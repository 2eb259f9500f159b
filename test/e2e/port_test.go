package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestPort checks that the release owns its node port in both modes, and that a switch, which is a
// patch of one Service, fails neither a pull nor a connection.
func TestPort(t *testing.T) {
	w := ownCluster(t, "e2e-port", layout{open: true})
	helm3, helm4 := w.helm, strings.TrimSpace(run(t, w.testcluster, "tool", "helm4"))
	helm4Upgrades := func(t *testing.T, args ...string) {
		t.Helper()
		w.helm = helm4
		defer func() { w.helm = helm3 }()
		w.helmChart(t, "upgrade", args...)
	}
	must(t, "in nodeport mode no other Service gets the port", func(t *testing.T) {
		w.apply(t, nodePortMode)
		w.pushFresh(t)
		w.portIsOurs(t)
	})
	w.underLoop(t, "Helm 3 switches to proxy mode, and the Job is killed when the proxies take over",
		func(t *testing.T) {
			killed := w.onceServed(t, false, func() error { return w.killJob(t, "finish") })
			w.helmChart(t, "upgrade", proxyMode)
			if err := <-killed; err != nil {
				t.Error(err)
			}
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
	var inProxyMode string
	must(t, "in proxy mode no other Service gets the port", func(t *testing.T) {
		inProxyMode = w.revision(t)
		w.portIsOurs(t)
		w.isHealthy(t)
		output(t, w.command(t, w.helm, "test", release, "-n", namespace, "--filter", "name="+release+"-test-tls"))
	})
	must(t, "a switch to nodeport mode whose verification fails goes back", func(t *testing.T) {
		unblock := w.blockOnce(t, true)
		r := w.install(t, nil, toNodePort.flag)
		unblock()
		if r.err == nil || !strings.Contains(r.err.Error()+r.text, "only reserves the port again: nodes pull as before") {
			t.Fatalf("%v: %s", r.err, r.text)
		}
		for _, node := range w.nodes {
			if err := w.dial(t, node, w.address); err != nil {
				t.Error(err)
			}
		}
	})
	w.underLoop(t, "Helm 4 switches to nodeport mode, and the Job is killed when kube-proxy takes over",
		func(t *testing.T) {
			killed := w.onceServed(t, true, func() error { return w.killJob(t, "finish") })
			helm4Upgrades(t, nodePortMode)
			if err := <-killed; err != nil {
				t.Error(err)
			}
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
	w.underLoop(t, "a rollback switches back to proxy mode and keeps the Service", func(t *testing.T) {
		uid := w.portService(t).UID
		w.rollback(t, inProxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		if w.portService(t).UID != uid {
			t.Error("the Service was deleted in between")
		}
	})
	must(t, "a deleted reservation is reported, and so is who takes the port", func(t *testing.T) { testTaken(t, w) })
	must(t, "helm uninstall releases the port", func(t *testing.T) {
		w.helmUninstall(t)
		if err := w.takePort(t); err != nil {
			t.Error(err)
		}
	})
}

func testTaken(t *testing.T, w *world) {
	services := w.client.CoreV1().Services(namespace)
	require.NoError(t, services.Delete(t.Context(), release+"-nodeport", metav1.DeleteOptions{}))
	reports := func(want string) {
		t.Helper()
		if report, text := w.status(t); report.Healthy || !strings.Contains(text, want) {
			t.Errorf("status is %s, want %q", text, want)
		}
	}
	const missing = "Service " + namespace + "/" + release + "-nodeport is missing"
	reports(missing)
	out, errOut, err := try(w.command(t, w.helm, "test", release, "-n", namespace, "--logs", "--filter",
		"name="+release+"-test-tls"))
	if err == nil || !strings.Contains(out+errOut, "Service "+release+"-nodeport is missing") {
		t.Errorf("helm test: %v: %s%s", err, out, errOut)
	}
	require.NoError(t, w.takePort(t))
	reports("Service default/other has node port 31999, so it answers instead of the proxies")
	if r := w.install(t, nil, toProxy.flag); r.err == nil || !strings.Contains(r.text+r.err.Error(),
		"Service default/other") {
		t.Errorf("the upgrade does not name the Service: %v: %s", r.err, r.text)
	}
	require.NoError(t, w.client.CoreV1().Services("default").Delete(t.Context(), "other", metav1.DeleteOptions{}))
	for _, node := range w.nodes {
		eventually(t, "the port of "+node+" to be free of the other Service", func() error { return w.dial(t, node, w.address) })
	}
	w.apply(t, noMode)
	w.isHealthy(t)
	w.portIsOurs(t)
}

// portService returns the Service that owns the node port.
func (w *world) portService(t *testing.T) *corev1.Service {
	t.Helper()
	return require.Value(w.client.CoreV1().Services(namespace).Get(t.Context(), release+"-nodeport", metav1.GetOptions{}))(t)
}

// takePort creates Service default/other with the registry's port as its node port.
func (w *world) takePort(t *testing.T) error {
	t.Helper()
	_, err := w.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "other"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 31999}}},
	}, metav1.CreateOptions{})
	return err
}

// portIsOurs fails unless the API server refuses the port to another Service.
func (w *world) portIsOurs(t *testing.T) {
	t.Helper()
	if err := w.takePort(t); err == nil || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Fatalf("another Service asked for the port: %v", err)
	}
}

// onceServed calls do when kube-proxy starts to serve the node port, or stops.
func (w *world) onceServed(t *testing.T, served bool, do func() error) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			s, err := w.client.CoreV1().Services(namespace).Get(t.Context(), release+"-nodeport", metav1.GetOptions{})
			if err == nil && (s.Labels[plan.LabelProxyName] == "") == served {
				ended <- do()
				return
			}
		}
		ended <- fmt.Errorf("waited %s for the node port to be served: %t", patience, served)
	}()
	return ended
}

// killJob kills the pods of a hook Job.
func (w *world) killJob(t *testing.T, step string) error {
	now := int64(0)
	return w.client.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + release + "-" + step})
}

// blockOnce makes connections on the first node fail as soon as kube-proxy serves the node port, or
// stops, until the returned function is called.
func (w *world) blockOnce(t *testing.T, served bool) (unblock func()) {
	t.Helper()
	w.provoked = append(w.provoked, w.address+"/zarf-registry/probe-")
	rule := func(verb string) error {
		out, err := w.onNode(t, w.nodes[0], "iptables", "-t", "nat", verb, "OUTPUT", "-p", "tcp", "--dport", "31999", "-j",
			"REDIRECT", "--to-ports", "9")
		if err != nil {
			err = fmt.Errorf("iptables: %w: %s", err, out)
		}
		return err
	}
	blocked := w.onceServed(t, served, func() error { return rule("-I") })
	return func() {
		t.Helper()
		require.NoError(t, <-blocked)
		require.NoError(t, rule("-D"))
	}
}
