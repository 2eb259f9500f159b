package templates

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The golden file shows what exposes the registry outside of the cluster: what the Jobs are told, arguments and volumes
// of the registry, and objects. The Jobs may read the Secrets (TestPermissions).
func TestExpose(t *testing.T) {
	t.Parallel()
	underHeadings(t, "expose", func(_ string, out *output) string {
		told := decided(out)
		pod := registryOf(t, out).Spec.Template.Spec
		args := slices.DeleteFunc(pod.Containers[0].Args, func(a string) bool { return !strings.HasPrefix(a, "--expose") })
		volumes := slices.DeleteFunc(pod.Volumes, func(v corev1.Volume) bool { return !strings.HasPrefix(v.Name, "expose-") })
		text := mustYAML(t, map[string]any{"localRegistryHosting": told.Finish.LocalRegistryHosting, "settings": told.Expose,
			"args": args, "volumes": volumes})
		for _, o := range out.objects {
			if spec := o.Object["spec"]; strings.HasPrefix(o.file, "expose/") {
				text += o.String() + ":\n" + mustYAML(t, map[string]any{"annotations": o.GetAnnotations(), "spec": spec})
			}
		}
		return text
	})
}
