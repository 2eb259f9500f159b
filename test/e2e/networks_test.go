package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// network is the network of a test cluster.
type network = scenarios.Network

// networkOf returns the network for a cluster: that of E2E_NETWORK, for which only deep scenarios run, or
// its first one.
func networkOf(t *testing.T, cluster string) network {
	t.Helper()
	scenario, ok := scenarios.ByCluster(cluster)
	if !ok {
		t.Fatalf("cluster %s is not in the table of scenarios", cluster)
	}
	want := os.Getenv("E2E_NETWORK")
	if want == "" {
		return scenario.Networks[0]
	}
	i := slices.IndexFunc(scenario.Networks, func(n network) bool { return n.String() == want })
	if i < 0 || !scenario.Deep() {
		t.Skipf("SKIPPED, NOTHING CHECKED: %s runs on %v, not on E2E_NETWORK=%s", cluster, scenario.Networks, want)
	}
	return scenario.Networks[i]
}

// loopback returns the host of w.address.
func (w *world) loopback() string {
	if w.network.Family == "IPv6" {
		return "::1"
	}
	return "127.0.0.1"
}

// nodePortNeedsProxy checks that nodeport mode fails with a helpful message on a cluster
// whose node ports do not answer on the loopback address.
func (w *world) nodePortNeedsProxy(t *testing.T) {
	w.provoked = append(w.provoked, w.address+"/zarf-registry/probe-nodeport")
	must(t, "helm install in nodeport mode fails and recommends a proxy", func(t *testing.T) {
		w.helmChartFails(t, []string{"registryProxy=true"}, "install", nodePortMode, "--set=initHook.timeout=90s",
			"--set=registry.persistence.enabled=false")
	})
	must(t, "helm uninstall after the failure leaves nothing", w.uninstall)
}

// loopbackOnly checks on all nodes that the registry answers on loopback addresses only.
func (w *world) loopbackOnly(t *testing.T) {
	t.Run("the registry answers on loopback addresses only", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyLoopbackAnswers(t, node)
		}
	})
}

// onlyLoopbackAnswers fails unless the registry answers on the node's loopback address
// and on none of the node's other addresses, neither from the node, other nodes nor from outside.
func (w *world) onlyLoopbackAnswers(t *testing.T, node string) {
	t.Helper()
	if err := w.dial(t, node, w.address); err != nil {
		t.Error(err)
	}
	addresses := w.globalAddresses(t, node)
	for _, address := range w.nodeAddresses(t, node) {
		if !slices.Contains(addresses, address) {
			t.Fatalf("address %s of node %s is not in %v", address, node, addresses)
		}
	}
	for _, from := range append([]string{"cp"}, w.nodes...) {
		if open := w.scan(t, from, "31999", addresses...); len(open) > 0 {
			t.Errorf("from %s, the proxy's port is open on node %s: %v", from, node, open)
		}
	}
	// Host ports do not show here, because they are iptables rules; listeners on the host network do.
	out, err := w.onNode(t, node, "ss", "-Hltn", "sport = :31999")
	require.NoError(t, err, "ss", out)
	for line := range strings.Lines(out) {
		if local := strings.Fields(line)[3]; local != "[::1]:31999" && local != "127.0.0.1:31999" {
			t.Errorf("node %s listens on %s", node, local)
		}
	}
}

// globalAddresses returns all addresses of a node but loopback and link-local ones: those of its network and
// of the bridge to its pods.
func (w *world) globalAddresses(t *testing.T, node string) (addresses []string) {
	t.Helper()
	out, err := w.onNode(t, node, "ip", "-oneline", "address", "show", "scope", "global")
	require.NoError(t, err, "ip", out)
	for line := range strings.Lines(out) {
		address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
		addresses = append(addresses, address)
	}
	return addresses
}
