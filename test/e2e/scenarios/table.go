package scenarios

// The versions that some clusters run beside the default ones.
const (
	// Oldest is the oldest supported version of Kubernetes, with the container runtime of its time.
	Oldest = "--kubernetes 1.30 --runtime containerd-1.7"
	crio   = "--runtime crio-1.34"
)

// chart returns patterns of the chart's templates.
func chart(parts ...string) []string {
	for i, part := range parts {
		parts[i] = "charts/zarf-registry/templates/" + part
	}
	return parts
}

// internal returns the folders of internal packages.
func internal(packages ...string) []string {
	for i, name := range packages {
		packages[i] = "internal/" + name
	}
	return packages
}

// and joins lists of paths.
func and(lists ...[]string) (all []string) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// All are all scenarios. The deep ones, which support more than one network:
//
//	TestMainJob            late node, registry killed, registry moved, its node lost, node reboot, reachability
//	TestCrash              crash recovery
//	TestExpose             expose
//	TestGarbageCollection  garbage collection
//	TestHealer             late node with another pause image, registry moved, all nodes replaced
//	TestHelm               switch, rollback
//	TestNodeConfig         node configuration, late node
//	TestNodes              late node without a healer, where only proxies can work
//	TestPort               switch, crash recovery of a switch, rollback
//
// Scenarios that switch modes need node ports, and expose.hosts accepts no IPv6 address. On IPv6, proxies use the
// host network and are updated with maxSurge, which Kubernetes 1.36.3 may stall for minutes after nodes have been
// removed, as TestHealer does. NetworkPolicies are enforced on IPv4, unless the layout is open.
var All = []Scenario{
	// The core: the main job, IPv6 and a CA rotation, switches and a rollback, upgrades under load, Zarf, ct install.
	{Test: "TestMainJob", Clusters: []string{"e2e"}, Networks: first(ipv4nft, Everywhere), Core: true, Minutes: 5.1},
	{Test: "TestPort", Clusters: []string{"e2e-port"}, Networks: first(ipv4, NodePorts), Core: true, Minutes: 2.6,
		Tools: []string{"helm4"}},
	{Test: "TestPauseImages", Clusters: []string{"e2e-pause-images"}, Networks: []Network{ipv4}, Core: true, Minutes: 2.3},
	{Test: "TestUpgrade", Clusters: []string{"e2e-upgrade"}, Networks: []Network{ipv4}, Core: true, Minutes: 2.5,
		Candidate: true},
	{Test: "TestNodes", Clusters: []string{"e2e-nodes"}, Networks: []Network{ipv6nft, ipv6}, Core: true, Minutes: 1.1},
	{Test: "TestChartTesting", Clusters: []string{"e2e-chart-testing"}, Networks: []Network{ipv4}, Core: true,
		Minutes: 2, Tools: []string{"ct"}, CertManager: true},
	{Test: "TestZarfInit", Clusters: []string{"e2e-zarf-init"}, Networks: []Network{ipv4}, Core: true, Minutes: 2,
		Tools: []string{"zarf"}},
	// One of three nodes is off: with a host port, and on the host network.
	{Test: "TestNodeOff", Clusters: []string{"e2e-node-off"}, Networks: []Network{ipv4}, Core: true, Minutes: 2.8},
	{Test: "TestNodeOffHostNetwork", Clusters: []string{"e2e-node-off-6"}, Networks: []Network{ipv6}, Core: true,
		Minutes: 2.2},

	// Others run before a merge that changes what concerns them.
	// Each way to upgrade, with a node that is off, cordoned or sick.
	{Test: "TestRollouts", Clusters: []string{"e2e-rollouts"}, Networks: []Network{ipv4}, Long: true, Minutes: 20,
		Tools: []string{"helm4", "zarf"}},
	{Test: "TestRolloutsHostNetwork", Clusters: []string{"e2e-rollouts-6"}, Networks: []Network{ipv6}, Long: true,
		Minutes: 20, Tools: []string{"helm4", "zarf"}},
	{Test: "TestRolloutsRendered", Clusters: []string{"e2e-rendered"}, Networks: []Network{ipv4}, Long: true, Minutes: 7,
		Tools: []string{"argosync"}},
	{Test: "TestRolloutsRenderedHostNetwork", Clusters: []string{"e2e-rendered-6"}, Networks: []Network{ipv6}, Long: true,
		Minutes: 7, Tools: []string{"argosync"}},
	{Test: "TestArgo", Clusters: []string{"e2e-argo"}, Networks: []Network{ipv4}, Minutes: 1.7,
		Paths: and(chart("init-hook", "_*.tpl"), []string{"docs/reference/helm.md"})},
	{Test: "TestCache", Clusters: []string{"e2e-cache"}, Networks: []Network{ipv4}, Minutes: 2.5, Versions: []string{crio},
		Paths: and(chart("cache"), internal("node/cache", "node/proxy", "hook/pulltest", "registry/spec", "registry/front"))},
	{Test: "TestCertificates", Clusters: []string{"e2e-certificates"}, Networks: []Network{ipv4}, Minutes: 2.3,
		CertManager: true, Paths: and(internal("hook/certs", "hook/credentials", "pki", "net/tlsfiles", "node/proxy"),
			chart("certificates"))},
	{Test: "TestCertificateSources", Clusters: []string{"e2e-certificate-sources"}, Networks: []Network{ipv4},
		Minutes: 2.9, CertManager: true, Paths: and(internal("hook/certs", "hook/credentials", "pki", "net/tlsfiles"),
			chart("certificates"),
			[]string{"test/certmanager"})},
	{Test: "TestClients", Clusters: []string{"e2e-clients"}, Networks: []Network{ipv4}, Minutes: 1.6, Clients: true,
		Tools: []string{"crane"}, LongTools: []string{"regctl", "oras", "cosign", "crio", "containerd-shim-runc-v2"},
		Paths: and(internal("registry", "images/dockerdaemon"), chart("expose"), []string{"docs/reference/clients.md"})},
	{Test: "TestCrash", Clusters: []string{"e2e-crash"}, Networks: first(ipv4, NodePorts), Minutes: 2.5,
		Paths: internal("hook", "release/state")},
	{Test: "TestDisaster", Clusters: []string{"e2e-disaster"}, Networks: []Network{ipv4}, Minutes: 3.4,
		Paths: append(internal("status", "hook", "release/state", "hook/certs"), "docs/reference/disaster-recovery.md")},
	{Test: "TestExpose", Clusters: []string{"e2e-expose"}, Networks: first(dualStack, withIPv4), Minutes: 1.9,
		Tools: []string{"crane"}, Paths: and(chart("expose"), internal("registry", "install"))},
	{Test: "TestGarbageCollection", Clusters: []string{"e2e-garbage"}, Networks: first(ipv6, Everywhere), Minutes: 3.4,
		Paths: and(chart("garbage-collection"), internal("api/gc", "images/blobstore", "api/space"),
			[]string{"test/e2e/fullvolume_test.go"})},
	{Test: "TestHealer", Clusters: []string{"e2e-healer"}, Networks: first(dualStackNFT, withIPv4), Minutes: 3.9,
		Paths: and(chart("healer", "proxy"), internal("node/heal", "release/nodeimages"))},
	{Test: "TestHelm", Clusters: []string{"e2e-helm"}, Networks: first(dualStack, NodePorts), Minutes: 4.1,
		Tools: []string{"helm4"}, Paths: and(chart("init-hook", "_*.tpl"), internal("install", "hook/nodeport"))},
	{Test: "TestHostileImage", Clusters: []string{"e2e-hostile"}, Networks: []Network{ipv4}, Minutes: 4,
		Paths: append(chart("_pod.tpl", "registry/admission*.yaml", "pause-images", "init-hook/_job.tpl"), "loader",
			"docs/reference/policies/egress.yaml")},
	{Test: "TestImages", Clusters: []string{"e2e-images"}, Networks: []Network{ipv4}, Minutes: 1.4, Clients: true,
		Paths: append(internal("images", "oci", "api/catalog", "status/browse", "cli"),
			"test/e2e/browse_test.go", "test/e2e/lifecycle_test.go", "test/e2e/missing_test.go")},
	{Test: "TestLeastPrivilege", Clusters: []string{"e2e-rights"}, Networks: []Network{ipv4}, Minutes: 3,
		Paths: append(chart("*/*role*.yaml", "*/cronjob.yaml", "init-hook"), "test/e2e/rights")},
	{Test: "TestNodeConfig", Clusters: []string{"e2e-node-config"}, Networks: first(dualStackNFT, Everywhere),
		Minutes: 3.4, Paths: and(chart("node-config"), internal("node/noderuntime", "node/nodeconfig", "node/hostfiles",
			"hook/nodes", "status/support", "mask"))},
	{Test: "TestOldestKubernetes", Clusters: []string{"e2e-oldest"}, Networks: []Network{ipv4}, Minutes: 1.7,
		Versions: []string{Oldest}, Paths: append(internal("release/plan", "cluster", "hook/pulltest"),
			"charts/zarf-registry/Chart.yaml", "test/cluster/internal/build")},
	{Test: "TestPolicies", Clusters: []string{"e2e-policies"}, Networks: []Network{dualStackNFT}, Minutes: 1.4,
		Paths: []string{"docs/reference/policies"}},
	{Test: "TestPreflight", Clusters: []string{"e2e-preflight"}, Networks: []Network{ipv6}, Minutes: 3.8,
		Paths: append(internal("hook/preflight", "release/plan", "status"), "test/e2e/volumes_test.go")},
	{Test: "TestReplicas", Clusters: []string{"e2e-replicas"}, Networks: []Network{ipv4}, Minutes: 3.7,
		Versions: []string{crio}, Tools: []string{"versitygw"},
		Paths: append(internal("registry", "images/blobstore"), "test/s3test", "test/e2e/s3_test.go",
			"charts/zarf-registry/templates/registry")},
	{Test: "TestRewrite", Clusters: []string{"e2e-rewrite"}, Networks: []Network{ipv4}, Minutes: 2.1,
		Paths: chart("rewrite")},
	{Test: "TestRewriteMissing", Clusters: []string{"e2e-missing"}, Networks: []Network{ipv4}, Minutes: 1.4,
		Paths: and(chart("rewrite"), internal("api/catalog"))},
	{Test: "TestTemplates", Clusters: []string{"e2e-templates"}, Networks: []Network{ipv4}, Minutes: 1.7,
		Tools: []string{"helm4"}, Paths: append(chart("init-hook"), "docs/reference/helm.md")},
	// It mostly waits, beside the others.
	{Test: "TestUnattended", Clusters: []string{"e2e-unattended"}, Networks: []Network{ipv4}, Minutes: 0.7,
		Paths: append(internal("hook/certs", "pki"), "charts/zarf-registry/templates/certificates")},
	{Test: "TestWorkstation", Clusters: []string{"e2e-workstation"}, Networks: []Network{ipv4}, Minutes: 2.5,
		Tools: []string{"cosign", "crane"},
		Paths: and(internal("install", "cli"), []string{"docs/guide", "docs/reference/helm.md", "tools/release"})},
	{Test: "TestZarf", Clusters: []string{"e2e-zarf"}, Networks: []Network{ipv4}, Minutes: 4.5, Tools: []string{"zarf"},
		Paths: zarf},

	// Long runs.
	{Test: "TestCRIONodes", Clusters: []string{"e2e-crio-nodes"}, Networks: []Network{ipv4}, Long: true, Minutes: 4.1,
		Versions: []string{crio}},
	{Test: "TestFlux", Clusters: []string{"e2e-flux"}, Networks: []Network{ipv4}, Long: true, Minutes: 4.8,
		Tools: []string{"source-controller", "helm4"}},
	{Test: "TestHostileImageRuntimes", Long: true, Minutes: 6.2, Networks: []Network{ipv4},
		Clusters: []string{"e2e-hostile-containerd-1-7", "e2e-hostile-containerd-2-1", "e2e-hostile-crio-1-34"},
		Versions: []string{"--runtime containerd-1.7", "--runtime containerd-2.1", crio}},
	{Test: "TestHelm318", Clusters: []string{"e2e-helm-318"}, Networks: []Network{ipv4}, Long: true,
		Minutes: 10, Tools: []string{"helm-3.18"}},
	{Test: "TestHelm321", Clusters: []string{"e2e-helm-321"}, Networks: []Network{ipv4}, Long: true,
		Minutes: 10, Tools: []string{"helm-3.21"}},
	{Test: "TestHelm4", Clusters: []string{"e2e-helm-4"}, Networks: []Network{ipv4}, Long: true,
		Minutes: 10, Tools: []string{"helm4"}},
	{Test: "TestKubeadm", Clusters: []string{"e2e-kubeadm"}, Networks: []Network{ipv4, dualStackNFT}, Long: true,
		Minutes: 15, Versions: []string{"--kubeadm --kubernetes 1.36", "--kubeadm --kubernetes 1.37"}},
	{Test: "TestKubeProxyVersions", Clusters: []string{"e2e-kube-proxy"}, Networks: []Network{ipv4}, Long: true,
		Minutes: 3.4, Tools: []string{"kube-proxy-1.34"}},
	{Test: "TestLargeImage", Clusters: []string{"e2e-large"}, Networks: []Network{ipv4}, Long: true, Minutes: 5.5},
	{Test: "TestMistakes", Clusters: []string{"e2e-mistakes"}, Networks: []Network{ipv4}, Long: true, Minutes: 3.4},
	// All nodes are off at night.
	{Test: "TestNights", Clusters: []string{"e2e-nights"}, Networks: []Network{ipv4}, Long: true, Minutes: 13},
	{Test: "TestNoExec", Clusters: []string{"e2e-noexec"}, Networks: []Network{ipv4}, Long: true, Minutes: 0.7,
		Tools: []string{"runc-1.1"}},
	// The registry's node is lost, with default values.
	{Test: "TestOutages", Clusters: []string{"e2e-outages"}, Networks: []Network{ipv4}, Long: true, Minutes: 30,
		Tools: []string{"versitygw"}},
	{Test: "TestRewriteBeta", Clusters: []string{"e2e-rewrite-beta", "e2e-rewrite-off"}, Networks: []Network{ipv4},
		Long: true, Minutes: 3.4, Versions: []string{"--kubernetes 1.34"}},
	{Test: "TestVolumes", Clusters: []string{"e2e-volumes"}, Networks: []Network{ipv4}, Long: true, Minutes: 3.4},
	{Test: "TestZarfIPv6", Clusters: []string{"e2e-zarf-ipv6"}, Networks: []Network{ipv6}, Long: true, Minutes: 2.8,
		Tools: []string{"zarf"}},
	{Test: "TestZarfInitIPv6", Clusters: []string{"e2e-zarf-init6"}, Networks: []Network{ipv6nft}, Long: true,
		Minutes: 2.8, Tools: []string{"zarf"}},
	{Test: "TestZarfMigration", Clusters: []string{"e2e-migration"}, Networks: []Network{ipv4}, Long: true, Minutes: 4.1,
		Tools: []string{"zarf"}},

	// make soak and make matrix build what these need.
	{Test: "TestSoak", Clusters: []string{"soak"}, Networks: []Network{ipv4}, Alone: true},
	{Test: "TestCell", Alone: true},
}

// zarf are the paths that concern Zarf.
var zarf = append(internal("registry", "cli", "hook", "release/plan"), "charts/zarf-registry/templates/zarf",
	"docs/reference/zarf.md", "examples", "test/e2e/zarf_cli_test.go", "test/e2e/zarf_init_test.go")
