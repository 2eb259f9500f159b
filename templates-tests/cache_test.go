package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// A Service with an unknown field, or an unknown value, is refused.
func TestCachesNearbyByVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.30.9":       "",
		"v1.31.0":       corev1.ServiceTrafficDistributionPreferClose,
		"v1.34.2+k3s1":  corev1.ServiceTrafficDistributionPreferClose,
		"v1.35.0":       corev1.ServiceTrafficDistributionPreferSameZone,
		"v1.36.0-gke.1": corev1.ServiceTrafficDistributionPreferSameZone,
	} {
		out := rendering{values: proxyMode(t, "cache.replicas=2"), version: version}.render(t)
		got := ""
		if d := find[*corev1.Service](t, out, "zarf-registry-cache").Spec.TrafficDistribution; d != nil {
			got = *d
		}
		if got != want {
			t.Errorf("Kubernetes %s: trafficDistribution %q, want %q", version, got, want)
		}
	}
}

// One DaemonSet for each architecture: the healer serves nodes with another pause image.
func TestCachesOnNodes(t *testing.T) {
	t.Parallel()
	out := rendering{
		values: proxyMode(t, "cache.nodeSelector={rack: switch}"),
		cluster: newCluster(kubernetes(corev1.IPv4Protocol),
			node("a", "amd64", "registry.k8s.io/pause:3.9"), node("b", "amd64", "registry.k8s.io/pause:3.10")),
	}.render(t)
	sets := daemonSets(out, names.ComponentCache)
	for i, architecture := range []string{"amd64", "arm64"} {
		if len(sets) != 2 {
			t.Fatalf("%d DaemonSets", len(sets))
		}
		if diff := cmp.Diff(map[string]string{
			"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux", "rack": "switch",
		}, sets[i].Spec.Template.Spec.NodeSelector); diff != "" {
			t.Errorf("%s: node selector:\n%s", sets[i].Name, diff)
		}
	}
}

// What a cache is for: one of several is left when a node or a zone is lost, and the others when it is replaced.
func TestCachesAreApart(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "cache.replicas=3", "registry.replicas=3", shared)}.render(t)
	caches, registry := find[*appsv1.Deployment](t, out, "zarf-registry-cache"), registryOf(t, out)
	own := func(d *appsv1.Deployment) (terms []map[string]string) {
		spec := d.Spec.Template.Spec
		for _, c := range spec.TopologySpreadConstraints {
			if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
				t.Errorf("%s: pods may not start: %v", d.Name, c)
			}
			terms = append(terms, map[string]string{c.TopologyKey: c.LabelSelector.MatchLabels[names.LabelComponent]})
		}
		for _, p := range spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			component := p.PodAffinityTerm.LabelSelector.MatchLabels[names.LabelComponent]
			terms = append(terms, map[string]string{p.PodAffinityTerm.TopologyKey: component})
		}
		return terms
	}
	for _, d := range []*appsv1.Deployment{caches, registry} {
		component := d.Labels[names.LabelComponent]
		want := []map[string]string{{corev1.LabelHostname: component}, {corev1.LabelTopologyZone: component}}
		if d == caches {
			want = append(want, map[string]string{corev1.LabelHostname: "registry"})
		}
		if diff := cmp.Diff(want, own(d)); diff != "" {
			t.Errorf("%s:\n%s", d.Name, diff)
		}
	}
	if r := caches.Spec.Strategy.RollingUpdate; r.MaxSurge.IntValue() != 0 || r.MaxUnavailable.IntValue() != 1 {
		t.Errorf("strategy %v", r)
	}
	budgets := func(sets ...string) (found []string) {
		for _, b := range all[*policyv1.PodDisruptionBudget](rendering{values: proxyMode(t, sets...)}.render(t)) {
			found = append(found, b.Name)
		}
		return found
	}
	for replicas, want := range map[string]bool{"1": false, "2": true} {
		if got := slices.Contains(budgets("cache.replicas="+replicas), "zarf-registry-cache"); got != want {
			t.Errorf("%s caches: a disruption budget: %t", replicas, got)
		}
	}
}

// A payload is for one architecture, an image for all.
func TestCachesRunWhereTheirProgramDoes(t *testing.T) {
	t.Parallel()
	for description, c := range map[string]struct {
		sets []string
		want string
	}{
		"injected": {[]string{"registry.architecture=arm64"}, "arm64"},
		"an image": {[]string{"injector.enabled=false"}, ""},
	} {
		out := rendering{values: proxyMode(t, append(c.sets, "cache.replicas=1")...)}.render(t)
		pod := find[*appsv1.Deployment](t, out, "zarf-registry-cache").Spec.Template.Spec
		if got := pod.NodeSelector[corev1.LabelArchStable]; got != c.want {
			t.Errorf("%s: architecture %q, want %q", description, got, c.want)
		}
		injected := slices.Contains(pod.Containers[0].Args, "--ready-fd=3")
		if version := slices.ContainsFunc(pod.Containers[0].Args, func(arg string) bool {
			return strings.HasPrefix(arg, "--program-version=")
		}); injected != (c.want != "") || version == injected {
			t.Errorf("%s: arguments %s", description, pod.Containers[0].Args)
		}
	}
}
