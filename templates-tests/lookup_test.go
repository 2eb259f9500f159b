package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
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
	for name, test := range map[string]struct {
		objects []runtime.Object
		values  []string
		want    string
	}{
		"amd64 without a cluster": {want: "amd64"},
		"amd64 if there is any": {
			objects: []runtime.Object{node("a", "arm64", k8s+"3.10"), node("b", "amd64", k8s+"3.9")}, want: "amd64",
		},
		"arm64 if there is no other": {objects: []runtime.Object{node("a", "arm64", k8s+"3.10")}, want: "arm64"},
		"an architecture with a payload": {
			objects: []runtime.Object{node("a", "amd64", k8s+"3.10"), node("b", "arm64", k8s+"3.10")},
			values:  []string{"injector.architectures=[arm64]"}, want: "arm64",
		},
		"the architecture of the values": {
			objects: []runtime.Object{node("a", "amd64", k8s+"3.10"), node("b", "arm64", k8s+"3.8")},
			values:  []string{"registry.architecture=arm64"}, want: "arm64",
		},
		"stays on arm64 when an amd64 node joins": {
			objects: []runtime.Object{node("a", "arm64", k8s+"3.10"), node("b", "amd64", k8s+"3.10"), running("arm64")},
			want:    "arm64",
		},
		"changes its architecture when no node has it": {
			objects: []runtime.Object{node("b", "amd64", k8s+"3.10"), running("arm64")}, want: "amd64",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, test.values...),
				cluster: newCluster(append(test.objects, kubernetes(corev1.IPv4Protocol))...)}.render(t)
			spec := find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec
			if got := spec.NodeSelector["kubernetes.io/arch"]; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestIPFamilyIsDetected(t *testing.T) {
	t.Parallel()
	dual := node("a", "amd64")
	dual.Spec.PodCIDRs = []string{"fd00:244::/64", "10.244.0.0/24"}
	single := node("a", "amd64")
	single.Spec.PodCIDRs = []string{"10.244.0.0/24"}
	for name, test := range map[string]struct {
		objects                     []runtime.Object
		values                      []string
		family, source, hostNetwork string
		address                     string
	}{
		"IPv4 without a cluster": {nil, nil, "IPv4", "default", "false", "127.0.0.1:31999"},
		"IPv4": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, nil, "IPv4", "cluster", "false", "127.0.0.1:31999",
		},
		"IPv6": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), node("a", "amd64")}, nil, "IPv6", "cluster", "true", "[::1]:31999",
		},
		"DualStack by the nodes' pod addresses": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), dual}, nil, "DualStack", "cluster", "false", "127.0.0.1:31999",
		},
		"DualStack by the DNS Service": {
			[]runtime.Object{
				kubernetes(corev1.IPv4Protocol), service("kube-system", "kube-dns", corev1.IPv4Protocol, corev1.IPv6Protocol),
			},
			nil, "DualStack", "cluster", "false", "127.0.0.1:31999",
		},
		"the state overrides the cluster": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), dual, remembers(ready(settings(state.ModeProxy, state.IPv4)))},
			nil, "IPv4", "state", "false", "127.0.0.1:31999",
		},
		"the state says IPv6": {
			[]runtime.Object{
				kubernetes(corev1.IPv4Protocol), single, remembers(ready(settings(state.ModeNodePort, state.IPv6))),
			},
			nil, "IPv6", "state", "true", "[::1]:31999",
		},
		"the value overrides the state": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single, remembers(ready(settings(state.ModeProxy, state.IPv6)))},
			[]string{"ipFamily=IPv4"}, "IPv4", "value", "false", "127.0.0.1:31999",
		},
		"the value overrides the cluster": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, []string{"ipFamily=IPv6"}, "IPv6", "value", "true",
			"[::1]:31999",
		},
		"hostNetwork of the values": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, []string{"proxy.hostNetwork=true"}, "IPv4", "cluster",
			"true", "127.0.0.1:31999",
		},
		"the port is part of the address": {nil, []string{"port=32123"}, "IPv4", "default", "false", "127.0.0.1:32123"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...)}
			if test.objects != nil {
				r.cluster = newCluster(test.objects...)
			}
			out := r.render(t)
			d := decided(out)
			got := []string{string(d.IPFamily), string(d.IPFamilySource), fmt.Sprint(d.Proxy.HostNetwork), d.Address}
			if diff := cmp.Diff([]string{test.family, test.source, test.hostNetwork, test.address}, got); diff != "" {
				t.Errorf("the Jobs are told (-want +got):\n%s", diff)
			}
			if notes := out.files["NOTES.txt"]; !strings.Contains(notes, test.address) {
				t.Errorf("the notes do not name %s:\n%s", test.address, notes)
			}
			spec := daemonSets(out, "proxy")[0].Spec.Template.Spec
			if got := fmt.Sprint(spec.HostNetwork); got != test.hostNetwork {
				t.Errorf("the proxies' hostNetwork is %s", got)
			}
			if !spec.HostNetwork {
				return
			}
			for family, listener := range map[string]string{"IPv4": "--listen=127.0.0.1:31999", "IPv6": "--listen=[::1]:31999"} {
				want := test.family == family || test.family == "DualStack"
				if slices.Contains(spec.Containers[0].Args, listener) != want {
					t.Errorf("%s is there: %t", listener, !want)
				}
			}
		})
	}
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

func TestJobsRunOnNodesWithTheirImage(t *testing.T) {
	t.Parallel()
	notReady := node("c", "amd64", hookImage)
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	nodes := []runtime.Object{
		kubernetes(corev1.IPv4Protocol), node("a", "amd64"), node("b", "amd64", hookImage), notReady,
		node("d", "arm64", "docker.io/library/large:1", hookImage),
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		values  []string
		want    []string
	}{
		"ready nodes that report it":  {nodes, nil, []string{"b", "d"}},
		"any node if none reports it": {nodes[:2], nil, nil},
		"the image of the values":     {nodes, []string{"initHook.image.tag=other"}, nil},
		"by a digest": {
			append(
				[]runtime.Object{node("e", "amd64", "ghcr.io/zarf-dev/zarf-registry/init-hook@sha256:"+strings.Repeat("a", 64))},
				nodes...,
			),
			[]string{"initHook.image.digest=sha256:" + strings.Repeat("a", 64)}, []string{"e"},
		},
		"the node selector": {nodes, []string{"initHook.nodeSelector={disk: fast}"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, test.values...), cluster: newCluster(test.objects...)}.render(t)
			for _, job := range all[*batchv1.Job](out) {
				affinity := job.Spec.Template.Spec.Affinity
				// Rollbacks and cleanup run long after they were rendered, when these nodes may be gone.
				if got, _ := nodeFields(affinity); got != nil {
					t.Errorf("%s requires nodes %s", job.Name, got)
				}
				got, avoided, weight := preferredNodes(affinity)
				// The Jobs tolerate the taints of nodes that are not ready. By itself, and of the control-plane nodes.
				if down := slices.Contains(test.objects, runtime.Object(notReady)); down != slices.Equal(avoided, []string{"c", "c"}) {
					t.Errorf("%s avoids nodes %s", job.Name, avoided)
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("%s: nodes %s, want %s", job.Name, got, test.want)
				}
				// A node can claim to have the image, but not that it is a control-plane node. Only where such a node may be
				// unable to get the image, it counts less than those that have it.
				want := int32(100)
				if test.want != nil {
					want = 10
				}
				if weight != want {
					t.Errorf("%s prefers control-plane nodes with weight %d, want %d", job.Name, weight, want)
				}
			}
		})
	}
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
	worker, idle, alone := node("w", "amd64", hookImage), node("w", "amd64"), []runtime.Object{control(nil)}
	down := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	proxiesOn := func(disk string) []string { return []string{"proxy.nodeSelector={disk: " + disk + "}"} }
	arm := func(n *corev1.Node) { n.Labels["kubernetes.io/arch"] = "arm64" }
	tolerates := func(toleration string) []string { return []string{"initHook.tolerations=[" + toleration + "]"} }
	pushed := remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) {
		s.HookImage = &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}
	}))
	for name, test := range map[string]struct {
		objects []runtime.Object
		values  []string
		want    bool
	}{
		"one has the image":                 {[]runtime.Object{control(nil, hookImage), worker}, nil, true},
		"a worker only has it":              {[]runtime.Object{control(nil), worker}, nil, false},
		"no node has it":                    {[]runtime.Object{control(nil), idle}, nil, true},
		"it is in the registry":             {[]runtime.Object{control(nil), idle, pushed}, nil, true},
		"of another architecture":           {[]runtime.Object{control(arm), pushed}, nil, false},
		"without a proxy":                   {[]runtime.Object{control(nil), pushed}, proxiesOn("slow"), false},
		"with one":                          {[]runtime.Object{control(nil), pushed}, proxiesOn("fast"), true},
		"it is down":                        {[]runtime.Object{control(down, hookImage), worker}, nil, false},
		"a managed control plane":           {[]runtime.Object{worker}, nil, false},
		"no cluster is seen":                {nil, nil, false},
		"the user chose nodes":              {alone, []string{"initHook.nodeSelector={disk: fast}"}, false},
		"its taint is not tolerated":        {alone, tolerates(""), false},
		"another taint is tolerated":        {alone, tolerates("{key: a, operator: Exists}"), false},
		"another effect is tolerated":       {alone, tolerates("{operator: Exists, effect: NoExecute}"), false},
		"its taint is tolerated by its key": {alone, tolerates("{key: " + role + "}"), true},
		"another value is tolerated":        {alone, tolerates("{key: " + role + ", value: a}"), false},
		"a preference needs no toleration": {[]runtime.Object{control(func(n *corev1.Node) {
			n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule
		})}, tolerates(""), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...)}
			if test.objects != nil {
				r.cluster = newCluster(append(test.objects, kubernetes(corev1.IPv4Protocol))...)
			}
			jobs := all[*batchv1.Job](r.render(t))
			for _, job := range jobs {
				got := false
				if r := job.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
					got = len(r.NodeSelectorTerms) == 1 && len(r.NodeSelectorTerms[0].MatchExpressions) == 1 &&
						r.NodeSelectorTerms[0].MatchExpressions[0].Key == role
				}
				if got != test.want {
					t.Errorf("%s requires a control-plane node: %t", job.Name, got)
				}
			}
			if len(jobs) < 4 {
				t.Errorf("%d Jobs", len(jobs))
			}
		})
	}
}

// preferredNodes returns the nodes that an affinity prefers and avoids by name, and how much it prefers control-plane nodes.
func preferredNodes(affinity *corev1.Affinity) (nodes, avoided []string, controlPlane int32) {
	for _, term := range affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		for _, field := range term.Preference.MatchFields {
			if field.Operator == corev1.NodeSelectorOpNotIn {
				avoided = append(avoided, field.Values...)
			} else {
				nodes = append(nodes, field.Values...)
			}
		}
		for _, e := range term.Preference.MatchExpressions {
			if e.Key == "node-role.kubernetes.io/control-plane" && e.Operator == corev1.NodeSelectorOpExists {
				controlPlane = term.Weight
			}
		}
	}
	return nodes, avoided, controlPlane
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
