package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
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
	// A single pod needs no spreading, whatever the storage.
	rendering{values: proxyMode(t, "registry.autoscaling={enabled: true, minReplicas: 1, maxReplicas: 1}")}.render(t)
}

func TestReplicasAreSpread(t *testing.T) {
	t.Parallel()
	spec := func(sets ...string) corev1.PodSpec {
		return registryOf(t, rendering{values: proxyMode(t, append(sets, shared)...)}.render(t)).Spec.Template.Spec
	}
	if one := spec(); len(one.TopologySpreadConstraints) != 0 || one.Affinity != nil {
		t.Errorf("with a single pod: %v, %v", one.TopologySpreadConstraints, one.Affinity)
	}
	for _, set := range []string{"registry.replicas=2", "registry.autoscaling.enabled=true"} {
		d := registryOf(t, rendering{values: proxyMode(t, set, shared)}.render(t))
		own := &metav1.LabelSelector{MatchLabels: d.Spec.Selector.MatchLabels}
		// The scheduler ignores all constraints on nodes that lack the label of one. So the only constraint
		// is on a label that all nodes have.
		if diff := cmp.Diff([]corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: own,
			MatchLabelKeys: []string{"pod-template-hash"},
		}}, d.Spec.Template.Spec.TopologySpreadConstraints); diff != "" {
			t.Errorf("%s: %s", set, diff)
		}
		term := corev1.PodAffinityTerm{
			TopologyKey: corev1.LabelTopologyZone, LabelSelector: own, MatchLabelKeys: []string{"pod-template-hash"},
		}
		zones := func(version string) *corev1.PodAntiAffinity {
			out := rendering{
				values: proxyMode(
					t, set, shared, "registry.affinity={podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}",
				),
				version: version,
			}.render(t)
			affinity := registryOf(t, out).Spec.Template.Spec.Affinity
			if affinity.PodAffinity == nil {
				t.Errorf("%s: the affinity of the values is missing", set)
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
				t.Errorf("%s, Kubernetes %s: %s", set, version, diff)
			}
			term.MatchLabelKeys = nil // unknown to Kubernetes 1.30
		}
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

func TestAutoscalerReplacesReplicas(t *testing.T) {
	t.Parallel()
	out := renderedFile(t, "autoscaling")
	if replicas := registryOf(t, out).Spec.Replicas; replicas != nil {
		t.Errorf("the Deployment has %d replicas", *replicas)
	}
	scalers := all[*autoscalingv2.HorizontalPodAutoscaler](out)
	if len(scalers) != 1 {
		t.Fatalf("autoscalers: %d", len(scalers))
	}
	spec := scalers[0].Spec
	if to := spec.ScaleTargetRef; to.APIVersion != "apps/v1" || to.Kind != "Deployment" || to.Name != "zarf-registry" {
		t.Errorf("it scales %v", to)
	}
	if *spec.MinReplicas != 3 || spec.MaxReplicas != 9 || len(spec.Metrics) != 1 ||
		*spec.Metrics[0].Resource.Target.AverageUtilization != 60 {
		t.Errorf("the values are not in %v", spec)
	}
	if b := spec.Behavior; b == nil || *b.ScaleDown.StabilizationWindowSeconds != 600 {
		t.Errorf("the behavior is %v", b)
	}
	for _, c := range matrix(t) {
		if c.file != "autoscaling" && len(all[*autoscalingv2.HorizontalPodAutoscaler](c.output)) != 0 {
			t.Errorf("%s: unexpected autoscaler", c.name)
		}
	}
}

func TestDisruptionBudgetNeverBlocksADrain(t *testing.T) {
	t.Parallel()
	budgets := 0
	for _, c := range matrix(t) {
		found := all[*policyv1.PodDisruptionBudget](c.output)
		var components, want []string
		if decidedMode(c.output) != string(state.ModeExternal) && c.file != "autoscaling" {
			want = append(want, "registry")
		}
		if c.file == "cache" {
			want = append(want, "cache")
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
