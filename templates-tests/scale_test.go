package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// shared are values for storage that several pods can use.
const shared = "registry.persistence.accessModes=[ReadWriteMany]"

func registryOf(t testing.TB, out *output) *appsv1.Deployment {
	t.Helper()
	return find[*appsv1.Deployment](t, out, "zarf-registry")
}

func TestReplicasRequireSharedStorage(t *testing.T) {
	t.Parallel()
	s3 := []string{"registry.storage.type=s3", "registry.storage.s3={bucket: b, region: r}"}
	for name, sets := range map[string][]string{
		"a claim with ReadWriteMany":           {shared},
		"an existing claim with ReadWriteMany": {shared, "registry.persistence.existingClaim=mine"},
		"S3":                                   s3,
		"S3 with any access mode": append(
			[]string{"registry.persistence.enabled=false"}, s3...,
		),
	} {
		d := registryOf(t, rendering{values: proxyMode(t, append(sets, "registry.replicas=2")...)}.render(t))
		if d.Spec.Replicas == nil || *d.Spec.Replicas != 2 {
			t.Errorf("%s: replicas %v", name, d.Spec.Replicas)
		}
		if max := d.Spec.Strategy.RollingUpdate; max == nil || max.MaxUnavailable.IntValue() != 0 {
			t.Errorf("%s: strategy %v", name, d.Spec.Strategy)
		}
	}
}

func TestReplicasAreSpread(t *testing.T) {
	t.Parallel()
	spec := func(sets ...string) corev1.PodSpec {
		return registryOf(t, rendering{values: proxyMode(t, append(sets, shared)...)}.render(t)).Spec.Template.Spec
	}
	if one := spec(); len(one.TopologySpreadConstraints) != 0 || one.Affinity != nil {
		t.Errorf("with a single pod: %v, %v", one.TopologySpreadConstraints, one.Affinity)
	}
	d := registryOf(t, rendering{values: proxyMode(t, "registry.replicas=2", shared)}.render(t))
	own := &metav1.LabelSelector{MatchLabels: d.Spec.Selector.MatchLabels}
	// The scheduler ignores all constraints on nodes that lack the label of one. So the only constraint
	// is on a label that all nodes have.
	if diff := cmp.Diff([]corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: own,
		MatchLabelKeys: []string{"pod-template-hash"},
	}}, d.Spec.Template.Spec.TopologySpreadConstraints); diff != "" {
		t.Error(diff)
	}
	term := corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelTopologyZone, LabelSelector: own, MatchLabelKeys: []string{"pod-template-hash"},
	}
	zones := func(version string) *corev1.PodAntiAffinity {
		out := rendering{
			values: proxyMode(
				t, "registry.replicas=2", shared, "registry.affinity={podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}",
			),
			version: version,
		}.render(t)
		affinity := registryOf(t, out).Spec.Template.Spec.Affinity
		if affinity.PodAffinity == nil {
			t.Error("the affinity of the values is missing")
		}
		return affinity.PodAntiAffinity
	}
	for _, version := range []string{"v1.31.0", "v1.30.9"} {
		if diff := cmp.Diff(
			&corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 100, PodAffinityTerm: term},
				},
			},
			zones(version),
		); diff != "" {
			t.Errorf("Kubernetes %s: %s", version, diff)
		}
		term.MatchLabelKeys = nil // unknown to Kubernetes 1.30
	}
	for _, own := range []string{
		"registry.affinity.podAntiAffinity={requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: " +
			"kubernetes.io/hostname, labelSelector: {}}]}",
		"registry.topologySpreadConstraints=[{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway, " +
			"labelSelector: {}}]",
	} {
		s := spec("registry.replicas=2", own)
		if s.Affinity != nil && len(s.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 ||
			len(s.TopologySpreadConstraints) > 0 && s.TopologySpreadConstraints[0].TopologyKey != "rack" {
			t.Errorf("with rules in the values: %v, %v", s.Affinity, s.TopologySpreadConstraints)
		}
	}
}

func TestDisruptionBudgetNeverBlocksADrain(t *testing.T) {
	t.Parallel()
	budgets := 0
	for _, c := range matrix(t) {
		found := all[*policyv1.PodDisruptionBudget](c.output)
		var components, want []string
		if decidedMode(c.output) != string(state.ModeExternal) {
			want = append(want, "registry")
		}
		if c.file == "cache" {
			want = append(want, "cache")
		}
		if len(healers(c.output)) > 0 {
			want = append(want, "healer")
		}
		for _, b := range found {
			components = append(components, b.Labels["app.kubernetes.io/component"])
		}
		if !slices.Equal(slices.Sorted(slices.Values(components)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: budgets of %s, want %s", c.name, components, want)
		}
		for _, b := range found {
			budgets++
			if b.Spec.MinAvailable != nil || b.Spec.MaxUnavailable == nil {
				t.Fatalf("%s: it has minAvailable: %v", c.name, b.Spec)
			}
			// At least one pod of any number may be evicted.
			if n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, 1, true); err != nil || n < 1 {
				t.Errorf("%s: %d of one pod may be evicted, error %v", c.name, n, err)
			}
			if p := b.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow {
				t.Errorf("%s: an unhealthy pod blocks a drain: %v", c.name, p)
			}
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			for _, w := range workloads(c.output) {
				own := w.component() == b.Labels["app.kubernetes.io/component"]
				if err != nil || selector.Matches(labels.Set(w.pod.Labels)) != own {
					t.Errorf("%s: %s is selected: %t, error %v", c.name, w.object, !own, err)
				}
			}
		}
	}
	if budgets == 0 {
		t.Fatal("nothing was checked")
	}
}

func TestReplacedPodsKeepServingDuringShutdownDelay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		sets []string
		want bool
	}{
		{"one pod on a volume of its own: nobody could take over", nil, false},
		{"one pod on a shared volume", []string{shared}, true},
		{"two pods", []string{shared, "registry.replicas=2"}, true},
	} {
		args := registryOf(t, rendering{values: proxyMode(t, test.sets...)}.render(t)).Spec.Template.Spec.Containers[0].Args
		if has := slices.ContainsFunc(
			args, func(a string) bool { return strings.HasPrefix(a, "--shutdown-delay=") },
		); has != test.want {
			t.Errorf("%s: --shutdown-delay is set: %t", test.name, has)
		}
	}
}
