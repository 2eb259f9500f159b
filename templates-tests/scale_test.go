package templates

import (
	"slices"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

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
