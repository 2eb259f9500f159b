package templates

import (
	"encoding/json"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// The golden file has the whole NetworkPolicy of each component, and when the chart renders it.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	whenRendered(t, "networkpolicies", func(out *output) map[string][]string {
		found := map[string][]string{}
		for _, p := range all[*networkingv1.NetworkPolicy](out) {
			component := p.Labels["app.kubernetes.io/component"]
			spec := require.Value(json.Marshal(p.Spec))(t)
			found[component] = append(found[component], string(spec))
		}
		return found
	})
}

// unguarded reports pods that no NetworkPolicy selects.
func unguarded(out *output, wrong report) {
	if out.value("networkPolicy.enabled") == false {
		return
	}
	for _, w := range workloads(out) {
		if decidedMode(out) == "external" && !w.ofNodes() {
			continue // only hook Jobs, and a policy that is no hook would outlive them
		}
		policies := all[*networkingv1.NetworkPolicy](out)
		guarded := slices.ContainsFunc(policies, func(p *networkingv1.NetworkPolicy) bool {
			selected, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			return err == nil && selected.Matches(labels.Set(w.pod.Labels))
		})
		// A policy has no effect on pods in the network of their node.
		if !guarded && !w.pod.Spec.HostNetwork {
			wrong("%s: no policy", w.object)
		}
	}
}
