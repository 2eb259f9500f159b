package e2e

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// kind is the network of a test cluster: its IP family (IPv4, IPv6 or DualStack) and
// kube-proxy's mode (iptables or nftables).
type kind struct{ family, kubeProxy string }

var commonKind = kind{"IPv4", "iptables"}

// kinds lists the clusters that are not of the common kind, by name. The scenarios together cover
// every kind. kube-proxy serves node ports on 127.0.0.1 only with iptables, and never on [::1]:
// scenarios that use nodeport mode need iptables with IPv4 or DualStack.
var kinds = map[string]kind{
	"e2e-external":  {"IPv4", "nftables"},
	"e2e-helm":      {"DualStack", "iptables"},
	"e2e-policies":  {"DualStack", "nftables"},
	"e2e-preflight": {"IPv6", "iptables"},
	"e2e-nodes":     {"IPv6", "nftables"},
}

func TestEveryKindOfClusterIsCovered(t *testing.T) {
	var covered []kind
	for _, k := range kinds {
		covered = append(covered, k)
	}
	for _, family := range []string{"IPv4", "DualStack", "IPv6"} {
		for _, kubeProxy := range []string{"iptables", "nftables"} {
			if k := (kind{family, kubeProxy}); k != commonKind && !slices.Contains(covered, k) {
				t.Errorf("no scenario runs on %s with %s", family, kubeProxy)
			}
		}
	}
}

// nodePortNeedsProxy checks that nodeport mode fails with a helpful message on a cluster
// whose node ports do not answer on the loopback address.
func (w *world) nodePortNeedsProxy(t *testing.T) {
	must(t, "helm install in nodeport mode fails and recommends a proxy", func(t *testing.T) {
		begin := time.Now()
		w.helmChartFails(t, []string{"registryProxy=true"}, "install", nodePortMode, "--set=initHook.timeout=90s",
			"--set=registry.persistence.enabled=false")
		// Two Jobs, and the time until Helm notices that the second one failed.
		if took := time.Since(begin); took > 3*time.Minute {
			t.Errorf("helm install took %s with a Job timeout of 90 s", took)
		}
	})
	must(t, "helm uninstall after the failure leaves nothing", w.uninstall)
}

// checkProxyMode checks an installation in proxy mode: only loopback addresses answer,
// and an upgrade with args, but without registryProxy, keeps the mode.
func (w *world) checkProxyMode(t *testing.T, args ...string) {
	t.Run("the registry answers on loopback addresses only", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyLoopbackAnswers(t, node)
		}
	})
	must(t, "helm upgrade without registryProxy keeps proxy mode and restarts nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { w.helmChart(t, "upgrade", append(args, noMode)...) })
		w.isIn(t, state.ModeProxy, state.SourceState)
	})
}

// onlyLoopbackAnswers fails unless the registry answers on the node's loopback address
// and on none of the node's other addresses, neither from other nodes nor from outside.
func (w *world) onlyLoopbackAnswers(t *testing.T, node string) {
	t.Helper()
	if err := w.dial(t, node, w.address); err != nil {
		t.Error(err)
	}
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		for _, from := range append([]string{"cp"}, w.nodes...) {
			if w.dial(t, from, net.JoinHostPort(a.Address, "31999")) == nil {
				t.Errorf("the proxy's port is open on %s from %s", a.Address, from)
			}
		}
	}
	// Host ports do not show here, because they are iptables rules; listeners on the host network do.
	out, err := w.onNode(t, node, "ss", "-Hltn", "sport = :31999")
	if err != nil {
		t.Fatalf("ss: %v: %s", err, out)
	}
	for line := range strings.Lines(out) {
		if local := strings.Fields(line)[3]; local != "[::1]:31999" && local != "127.0.0.1:31999" {
			t.Errorf("node %s listens on %s", node, local)
		}
	}
}

// long reports whether scenarios run at full length, as make e2e-long does.
func long() bool { return os.Getenv("E2E_LONG") != "" }
