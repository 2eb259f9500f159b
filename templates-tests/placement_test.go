package templates

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

func registryOf(t testing.TB, out *output) *appsv1.Deployment {
	t.Helper()
	return find[*appsv1.Deployment](t, out, "zarf-registry")
}

// The golden file shows how many pods of each Deployment there are, where they and those that configure nodes run, and
// how they are replaced. The
// scheduler ignores all spread constraints on nodes that lack the label of one, so each is on a label that all nodes
// have. Kubernetes before 1.31 does not know matchLabelKeys of affinities, and refuses unknown values of
// trafficDistribution.
func TestPlacement(t *testing.T) {
	t.Parallel()
	underHeadings(t, "placement", func(_ string, out *output) (text string) {
		for _, d := range all[*appsv1.Deployment](out) {
			spec := d.Spec.Template.Spec
			delay := slices.DeleteFunc(spec.Containers[0].Args, func(a string) bool {
				return !strings.HasPrefix(a, "--shutdown-delay=")
			})
			text += d.Name + ":\n" + mustYAML(t, map[string]any{
				"replicas": d.Spec.Replicas, "strategy": d.Spec.Strategy, "nodeSelector": spec.NodeSelector,
				"affinity": spec.Affinity, "topologySpreadConstraints": spec.TopologySpreadConstraints, "args": delay,
			})
		}
		for _, d := range append(daemonSets(out, "node-config"), daemonSets(out, "node-restore")...) {
			spec := d.Spec.Template.Spec
			text += d.Name + ":\n" + mustYAML(t, map[string]any{
				"updateStrategy": d.Spec.UpdateStrategy, "nodeSelector": spec.NodeSelector, "tolerations": spec.Tolerations,
				"resources": spec.Containers[0].Resources,
			})
		}
		for _, b := range all[*policyv1.PodDisruptionBudget](out) {
			text += "budget " + b.Name + ": " + b.Spec.MaxUnavailable.String() + "\n"
		}
		for _, s := range all[*corev1.Service](out) {
			if d := s.Spec.TrafficDistribution; d != nil {
				text += s.Name + ": " + *d + "\n"
			}
		}
		return text
	})
}
