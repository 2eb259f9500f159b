package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// network is the network of a test cluster: its IP family (IPv4, IPv6 or DualStack) and
// kube-proxy's mode (iptables or nftables).
type network struct{ family, kubeProxy string }

func (n network) String() string { return n.family + "/" + n.kubeProxy }

var (
	ipv4, ipv4nft           = network{"IPv4", "iptables"}, network{"IPv4", "nftables"}
	ipv6, ipv6nft           = network{"IPv6", "iptables"}, network{"IPv6", "nftables"}
	dualStack, dualStackNFT = network{"DualStack", "iptables"}, network{"DualStack", "nftables"}

	everywhere = []network{ipv4, ipv4nft, ipv6, ipv6nft, dualStack, dualStackNFT}
	// nodePorts are those where kube-proxy serves node ports on the loopback address: 127.0.0.1 with
	// iptables.
	nodePorts = []network{ipv4, dualStack}
	withIPv4  = []network{ipv4, ipv4nft, dualStack, dualStackNFT}
)

// scenarios says on which network each cluster runs. make test runs each scenario once, on the first
// network; make e2e-networks runs those with more, the deep ones, on all of theirs. Scenarios that switch
// modes need node ports, and expose.hosts accepts no IPv6 address. On IPv6, proxies use the host network and
// are updated with maxSurge, which Kubernetes 1.36.3 may stall for minutes after nodes have been removed, as
// TestHealer does. NetworkPolicies are enforced on IPv4, unless the layout is open.
//
//	cluster          deep scenarios
//	e2e              late node, registry killed, registry moved, its node lost, node reboot, reachability
//	e2e-crash        crash recovery
//	e2e-expose       expose
//	e2e-garbage      garbage collection
//	e2e-healer       late node with another pause image, registry moved, all nodes replaced
//	e2e-helm         switch, rollback
//	e2e-node-config  node configuration, late node
//	e2e-nodes        late node without a healer, where only proxies can work
//	e2e-port         switch, crash recovery of a switch, rollback
var scenarios = map[string][]network{
	"e2e":             first(ipv4nft, everywhere),
	"e2e-crash":       first(ipv4, nodePorts),
	"e2e-expose":      first(dualStack, withIPv4),
	"e2e-garbage":     first(ipv6, everywhere),
	"e2e-healer":      first(dualStackNFT, withIPv4),
	"e2e-helm":        first(dualStack, nodePorts),
	"e2e-node-config": first(dualStackNFT, everywhere),
	"e2e-nodes":       {ipv6nft, ipv6},
	"e2e-port":        first(ipv4, nodePorts),

	"e2e-argo":          {ipv4},
	"e2e-certificates":  {ipv4},
	"e2e-cache":         {ipv4},
	"e2e-chart-testing": {ipv4},
	"e2e-clients":       {ipv4},
	"e2e-crio":          {ipv4},
	"e2e-crio-nodes":    {ipv4},
	"e2e-disaster":      {ipv4},
	"e2e-external":      {ipv4nft},
	"e2e-helm-versions": {ipv4},
	"e2e-kube-proxy":    {ipv4},
	"e2e-migration":     {ipv4},
	"e2e-missing":       {ipv4},
	"e2e-policies":      {dualStackNFT},
	"e2e-preflight":     {ipv6},
	"e2e-replicas":      {ipv4},
	"e2e-rewrite":       {ipv4},
	"e2e-rewrite-beta":  {ipv4},
	"e2e-rewrite-off":   {ipv4},
	"e2e-rights":        {ipv4},
	"e2e-signatures":    {ipv4},
	"e2e-unattended":    {ipv4},
	"e2e-upgrade":       {ipv4},
	"e2e-volumes":       {ipv4},
	"e2e-warm":          {ipv4},
	"e2e-workstation":   {ipv4},
	"e2e-zarf":          {ipv4},
	"e2e-zarf-ipv6":     {ipv6},
	"e2e-zarf-init":     {ipv4},
	"e2e-zarf-init6":    {ipv6nft},
	"soak":              {ipv4},
}

// first returns the networks with that one first.
func first(n network, all []network) []network {
	rest := slices.DeleteFunc(slices.Clone(all), func(other network) bool { return other == n })
	return append([]network{n}, rest...)
}

// networkOf returns the network for a cluster: that of E2E_NETWORK, for which only deep scenarios run, or
// its first one.
func networkOf(t *testing.T, cluster string) network {
	t.Helper()
	networks := scenarios[cluster]
	if len(networks) == 0 {
		t.Fatalf("cluster %s is not in the table of scenarios", cluster)
	}
	want := os.Getenv("E2E_NETWORK")
	if want == "" {
		return networks[0]
	}
	if !slices.ContainsFunc(everywhere, func(n network) bool { return n.String() == want }) {
		t.Fatalf("invalid E2E_NETWORK %q: want one of %v", want, everywhere)
	}
	i := slices.IndexFunc(networks, func(n network) bool { return n.String() == want })
	if i < 0 || len(networks) == 1 {
		t.Skipf("SKIPPED, NOTHING CHECKED: %s runs on %v, not on E2E_NETWORK=%s", cluster, networks, want)
	}
	return networks[i]
}

// loopback returns the host of w.address.
func (w *world) loopback() string {
	if w.network.family == "IPv6" {
		return "::1"
	}
	return "127.0.0.1"
}

func TestEveryNetworkIsCovered(t *testing.T) {
	deep := map[network]bool{}
	for _, networks := range scenarios {
		if len(networks) > 1 {
			deep[networks[0]] = true
		}
	}
	for _, n := range everywhere {
		if !deep[n] {
			t.Errorf("make test runs no deep scenario on %s", n)
		}
	}
}

// nodePortNeedsProxy checks that nodeport mode fails with a helpful message on a cluster
// whose node ports do not answer on the loopback address.
func (w *world) nodePortNeedsProxy(t *testing.T) {
	w.provoked = append(w.provoked, w.address+"/zarf-registry/probe-nodeport")
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
	if err != nil {
		t.Fatalf("ss: %v: %s", err, out)
	}
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
	if err != nil {
		t.Fatalf("ip: %v: %s", err, out)
	}
	for line := range strings.Lines(out) {
		address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
		addresses = append(addresses, address)
	}
	return addresses
}

// long reports whether scenarios run at full length, as make e2e-long does.
func long() bool { return os.Getenv("E2E_LONG") != "" }
