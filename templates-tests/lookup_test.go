package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// running returns the registry's Deployment of a previous rendering.
func running(architecture string) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry"},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/arch": architecture},
		}}},
	}
}

func TestRegistryKeepsItsArchitecture(t *testing.T) {
	t.Parallel()
	const k8s = "registry.k8s.io/pause:"
	amd64, arm64 := node("b", "amd64", k8s+"3.10"), node("a", "arm64", k8s+"3.10")
	inSituations(t, "architecture", map[string]situation{
		"amd64 without a cluster":                      {},
		"amd64 if there is any":                        {objects: objects{arm64, node("b", "amd64", k8s+"3.9")}},
		"arm64 if there is no other":                   {objects: objects{arm64}},
		"an architecture with a payload":               {objects: objects{amd64, arm64}, values: []string{"injector.architectures=[arm64]"}},
		"the architecture of the values":               {objects: objects{amd64, node("a", "arm64", k8s+"3.8")}, values: []string{"registry.architecture=arm64"}},
		"stays on arm64 when an amd64 node joins":      {objects: objects{arm64, amd64, running("arm64")}},
		"changes its architecture when no node has it": {objects: objects{amd64, running("arm64")}},
	}, func(out *output) string {
		return ofComponent[*appsv1.Deployment](out, "registry")[0].Spec.Template.Spec.NodeSelector["kubernetes.io/arch"]
	})
}

// The golden file has what the Jobs are told, the notes, and how proxies listen.
func TestIPFamilyIsDetected(t *testing.T) {
	t.Parallel()
	dual := node("a", "amd64")
	dual.Spec.PodCIDRs = []string{"fd00:244::/64", "10.244.0.0/24"}
	single := node("a", "amd64")
	single.Spec.PodCIDRs = []string{"10.244.0.0/24"}
	v4, v6 := kubernetes(corev1.IPv4Protocol), kubernetes(corev1.IPv6Protocol)
	knows := func(mode state.Mode, family state.IPFamily) runtime.Object {
		return remembers(ready(settings(mode, family)))
	}
	inSituations(t, "ipfamily", map[string]situation{
		"IPv4 without a cluster":                {},
		"IPv4":                                  {objects: objects{v4, single}},
		"IPv6":                                  {objects: objects{v6, node("a", "amd64")}},
		"DualStack by the nodes' pod addresses": {objects: objects{v6, dual}},
		"DualStack by the DNS Service": {
			objects: objects{v4, service("kube-system", "kube-dns", corev1.IPv4Protocol, corev1.IPv6Protocol)}},
		"the state overrides the cluster": {objects: objects{v6, dual, knows(state.ModeProxy, state.IPv4)}},
		"the state says IPv6":             {objects: objects{v4, single, knows(state.ModeNodePort, state.IPv6)}},
		"the value overrides the state":   {objects: objects{v4, single, knows(state.ModeProxy, state.IPv6)}, values: []string{"ipFamily=IPv4"}},
		"the value overrides the cluster": {objects: objects{v4, single}, values: []string{"ipFamily=IPv6"}},
		"hostNetwork of the values":       {objects: objects{v4, single}, values: []string{"proxy.hostNetwork=true"}},
		"the port is part of the address": {values: []string{"port=32123"}},
	}, func(out *output) string {
		d, spec := decided(out), daemonSets(out, "proxy")[0].Spec.Template.Spec
		listeners := slices.DeleteFunc(spec.Containers[0].Args, func(a string) bool { return !strings.Contains(a, "listen=") })
		return fmt.Sprintf("%s (%s), hostNetwork: %t, %t\n%s, in the notes: %t\n%s", d.IPFamily, d.IPFamilySource, d.Proxy.HostNetwork,
			spec.HostNetwork, d.Address, strings.Contains(out.files["NOTES.txt"], d.Address), strings.Join(listeners, " "))
	})
}

func TestProxyServesTLSForCRIO(t *testing.T) {
	t.Parallel()
	for runtimeVersion, want := range map[string]string{
		"containerd://2.1.4":       "never",
		"cri-o://1.34.9":           "never",
		"cri-o://1.35.0":           "always",
		"cri-o://1.35.2-rhaos4.22": "always",
		"cri-o://v1.36.0-dev":      "always",
		"cri-o://2.0.0":            "always",
		"cri-o://unknown":          "never",
		"":                         "never",
	} {
		n := node("b", "amd64")
		n.Status.NodeInfo.ContainerRuntimeVersion = runtimeVersion
		if reason := plan.RequiresTLS(*n); (reason != "") != (want == "always") {
			t.Errorf("with %q, init-hook's reason for TLS is %q, want %s", runtimeVersion, reason, want)
		}
		out := rendering{
			values: proxyMode(t), cluster: newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64"), n),
		}.render(t)
		for _, d := range daemonSets(out, "proxy") {
			if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--tls="+want) {
				t.Errorf("with %q: %s, want --tls=%s", runtimeVersion, args, want)
			}
		}
	}
}

func TestProxiesUseTheNodesNetworkOnCRIO(t *testing.T) {
	t.Parallel()
	for runtimeVersion, want := range map[string]bool{
		"containerd://2.1.4": false,
		"cri-o://1.28.0":     true,
		"cri-o://1.35.0":     true,
		"":                   false,
	} {
		n := node("b", "amd64")
		n.Status.NodeInfo.ContainerRuntimeVersion = runtimeVersion
		if reason := plan.HostPortUnreachable(*n); (reason != "") != want {
			t.Errorf("with %q, init-hook's reason against host ports is %q", runtimeVersion, reason)
		}
		cluster := newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64"), n)
		for setting, want := range map[string]bool{"null": want, "false": false, "true": true} {
			out := rendering{values: proxyMode(t, "proxy.hostNetwork="+setting), cluster: cluster}.render(t)
			for _, d := range daemonSets(out, "proxy") {
				if d.Spec.Template.Spec.HostNetwork != want {
					t.Errorf("with %q and proxy.hostNetwork=%s, hostNetwork of %s is not %t", runtimeVersion, setting, d.Name, want)
				}
			}
		}
	}
}

// A node can claim to have the image, but not that it is a control-plane node: only where such a node may be unable to get
// the image, it counts less than those that have it. Rollbacks and cleanup run long after they were rendered, when nodes
// may be gone. The Jobs tolerate the taints of nodes that are not ready.
func TestJobsRunOnNodesWithTheirImage(t *testing.T) {
	t.Parallel()
	notReady := node("c", "amd64", hookImage)
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	nodes := objects{node("a", "amd64"), node("b", "amd64", hookImage), notReady,
		node("d", "arm64", "docker.io/library/large:1", hookImage)}
	digest := "sha256:" + strings.Repeat("a", 64)
	pulled := node("e", "amd64", "ghcr.io/zarf-dev/zarf-registry/init-hook@"+digest)
	inSituations(t, "job-nodes", map[string]situation{
		"ready nodes that report it":  {objects: nodes},
		"any node if none reports it": {objects: nodes[:1]},
		"the image of the values":     {objects: nodes, values: []string{"initHook.image.tag=other"}},
		"by a digest":                 {objects: append(objects{pulled}, nodes...), values: []string{"initHook.image.digest=" + digest}},
		"the node selector":           {objects: nodes, values: []string{"initHook.nodeSelector={disk: fast}"}},
	}, hookPods)
}

// A compromised node reports any images and resources, which outweigh every preference of the scheduler.
//
// Claim: Where a control-plane node can run them, other nodes do not get the hook Jobs, whatever they report.
func TestJobsRequireControlPlaneNodesThatCanRunThem(t *testing.T) {
	t.Parallel()
	const role = "node-role.kubernetes.io/control-plane"
	control := func(change func(*corev1.Node), images ...string) *corev1.Node {
		n := node("c", "amd64", images...)
		n.Labels = map[string]string{role: "", "kubernetes.io/arch": "amd64", "disk": "fast"}
		n.Spec.Taints = []corev1.Taint{{Key: role, Effect: corev1.TaintEffectNoSchedule}}
		if change != nil {
			change(n)
		}
		return n
	}
	worker, idle, alone := node("w", "amd64", hookImage), node("w", "amd64"), objects{control(nil)}
	down := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	proxiesOn := func(disk string) []string { return []string{"proxy.nodeSelector={disk: " + disk + "}"} }
	arm := func(n *corev1.Node) { n.Labels["kubernetes.io/arch"] = "arm64" }
	tolerates := func(toleration string) []string { return []string{"initHook.tolerations=[" + toleration + "]"} }
	pushed := remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) {
		s.HookImage = &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}
	}))
	inSituations(t, "control-plane", map[string]situation{
		"one has the image":                 {objects: objects{control(nil, hookImage), worker}},
		"a worker only has it":              {objects: objects{control(nil), worker}},
		"no node has it":                    {objects: objects{control(nil), idle}},
		"it is in the registry":             {objects: objects{control(nil), idle, pushed}},
		"of another architecture":           {objects: objects{control(arm), pushed}},
		"without a proxy":                   {objects: objects{control(nil), pushed}, values: proxiesOn("slow")},
		"with one":                          {objects: objects{control(nil), pushed}, values: proxiesOn("fast")},
		"it is down":                        {objects: objects{control(down, hookImage), worker}},
		"a managed control plane":           {objects: objects{worker}},
		"no cluster is seen":                {},
		"the user chose nodes":              {objects: alone, values: []string{"initHook.nodeSelector={disk: fast}"}},
		"its taint is not tolerated":        {objects: alone, values: tolerates("")},
		"another taint is tolerated":        {objects: alone, values: tolerates("{key: a, operator: Exists}")},
		"another effect is tolerated":       {objects: alone, values: tolerates("{operator: Exists, effect: NoExecute}")},
		"its taint is tolerated by its key": {objects: alone, values: tolerates("{key: " + role + "}")},
		"another value is tolerated":        {objects: alone, values: tolerates("{key: " + role + ", value: a}")},
		"a preference needs no toleration": {objects: objects{control(func(n *corev1.Node) {
			n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule
		})}, values: tolerates("")},
	}, hookPods)
}

// With explicit values the chart looks up only the state Secret, and `helm template` renders the same for
// GitOps as `helm install`.
func TestExplicitValuesNeedNoLookup(t *testing.T) {
	t.Parallel()
	values := ciValues(t)["explicit"]
	alone := rendering{values: values}.render(t).text()
	for where, make := range clusters() {
		cluster := make()
		if cluster == nil {
			continue
		}
		if diff := cmp.Diff(alone, rendering{values: values, cluster: cluster}.render(t).text()); diff != "" {
			t.Errorf("%s changes the rendering:\n%s", where, diff)
		}
		if !slices.Equal(cluster.asked, []string{"v1 Secret"}) {
			t.Errorf("%s was asked for %s", where, cluster.asked)
		}
	}
}

// In a large cluster lookups are slow: one for each kind, not one for each template.
func TestEachResourceIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	cluster := newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10"))
	rendering{values: proxyMode(t), cluster: cluster}.render(t)
	times := map[string]int{}
	for _, kind := range cluster.asked {
		times[kind]++
	}
	// The two Services are default/kubernetes and the cluster's DNS.
	if want := map[string]int{
		"v1 Node": 1, "v1 Service": 2, "v1 Secret": 1, "apps/v1 Deployment": 1,
	}; !maps.Equal(times, want) {
		t.Errorf("asked %v, want %v", times, want)
	}
}

// Processes on the node's network can share the port of a proxy with the same user.
//
// Claim: With `proxy.hostNetwork`, proxies have a user of their own.
func TestProxiesOnTheNodesNetworkHaveTheirOwnUser(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]int64{
		"proxy.hostNetwork=true": proxyUser, "ipFamily=IPv6": proxyUser, "proxy.hostNetwork=false": 65532,
	} {
		proxies := daemonSets(rendering{values: proxyMode(t, set)}.render(t), "proxy")
		if len(proxies) == 0 {
			t.Errorf("%s: there are no proxies", set)
		}
		for _, d := range proxies {
			if c := d.Spec.Template.Spec.SecurityContext; !is(c.RunAsUser, want) || !is(c.FSGroup, want) {
				t.Errorf("%s: %s runs as %d with the group %d, want %d", set, d.Name, *c.RunAsUser, *c.FSGroup, want)
			}
		}
	}
}
