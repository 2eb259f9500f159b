package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

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
