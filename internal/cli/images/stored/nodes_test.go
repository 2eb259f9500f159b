package stored

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func TestThePlatformsAreThoseOfTheLinuxNodes(t *testing.T) {
	node := func(name, system, architecture string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.Architecture = system, architecture
		return n
	}
	for name, c := range map[string]struct {
		nodes []runtime.Object
		want  string
		fail  string
	}{
		"one": {[]runtime.Object{node("a", "linux", "arm64")}, "linux/arm64", ""},
		"several": {[]runtime.Object{node("a", "linux", "arm64"), node("b", "linux", "amd64"),
			node("c", "linux", "arm64")}, "linux/amd64,linux/arm64", ""},
		"Windows":    {[]runtime.Object{node("a", "windows", "amd64"), node("b", "linux", "amd64")}, "linux/amd64", ""},
		"not up yet": {[]runtime.Object{node("a", "", "")}, "", "the cluster has no Linux node"},
		"none":       {nil, "", "the cluster has no Linux node"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := NodePlatforms(t.Context(), fake.NewClientset(c.nodes...))
			if got != c.want || (err == nil) != (c.fail == "") || err != nil && err.Error() != c.fail {
				t.Errorf("platforms %q, %v; want %q, %q", got, err, c.want, c.fail)
			}
		})
	}
}
