package templates

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

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
func unguarded(out *output) (wrong []string) {
	if out.value("networkPolicy.enabled") == false {
		return nil
	}
	for _, w := range workloads(out) {
		if decidedMode(out) == "external" && !w.ofNodes() {
			continue // only hook Jobs, and a policy that is no hook would outlive them
		}
		policies := all[*networkingv1.NetworkPolicy](out)
		guarded := slices.ContainsFunc(policies, func(p *networkingv1.NetworkPolicy) bool {
			selected := selects(p.Name, &p.Spec.PodSelector, []workload{w}, func(workload) bool { return true })
			return len(selected) == 0
		})
		// A policy has no effect on pods in the network of their node.
		if !guarded && !w.pod.Spec.HostNetwork {
			wrong = append(wrong, fmt.Sprintf("%s: no policy", w.object))
		}
	}
	return wrong
}
