package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/plan"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// proxies describes the DaemonSets of an architecture: the image, and the nodes that it requires (=)
// or excludes (≠).
func proxies(out *output, architecture string) []string {
	var found []string
	for _, d := range daemonSets(out, "proxy") {
		spec := d.Spec.Template.Spec
		if spec.NodeSelector["kubernetes.io/arch"] != architecture {
			continue
		}
		line := spec.Containers[0].Image
		in, notIn := nodeFields(spec.Affinity)
		if len(in) > 0 {
			line += " = " + strings.Join(in, " ")
		}
		if len(notIn) > 0 {
			line += " ≠ " + strings.Join(notIn, " ")
		}
		found = append(found, line)
	}
	slices.Sort(found)
	return found
}

func TestProxiesRunInThePauseImagesOfTheirNodes(t *testing.T) {
	t.Parallel()
	const k8s = "registry.k8s.io/pause:"
	windows := node("w", "amd64", k8s+"9.9")
	windows.Status.NodeInfo.OperatingSystem = "windows"
	digest := "sha256:" + strings.Repeat("e", 64)
	twoNames := holding("a", "amd64", image(3e5, "registry.k8s.io/pause@"+digest, k8s+"3.10"))
	for name, test := range map[string]struct {
		nodes        []runtime.Object
		amd64, arm64 []string // arm64: nil means the default image
		unseen       bool     // no image for the registry is found
	}{
		"no nodes: kubeadm's current pause image": {
			amd64: []string{k8s + "3.10.1"},
		},
		"an image that all nodes have": {
			nodes: []runtime.Object{node("a", "amd64", "docker.io/library/app:1", k8s+"3.9"), node("b", "amd64", k8s+"3.9")},
			amd64: []string{k8s + "3.9"},
		},
		"the newest, except on nodes that lack it": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.9"), node("b", "amd64", k8s+"3.10"), node("c", "amd64", k8s+"3.9"),
				node("d", "amd64", k8s+"3.8"),
			},
			amd64: []string{k8s + "3.10 ≠ d a c", k8s + "3.8 = d", k8s + "3.9 = a c"},
		},
		"versions are compared as numbers": {
			nodes: []runtime.Object{node("a", "amd64", k8s+"3.10", k8s+"3.9"), node("b", "amd64", k8s+"3.10.1", k8s+"3.10")},
			amd64: []string{k8s + "3.10 = a", k8s + "3.10.1 ≠ a"},
		},
		"a node with the newest among others": {
			nodes: []runtime.Object{node("a", "amd64", k8s+"3.8", k8s+"3.10"), node("b", "amd64", k8s+"3.10")},
			amd64: []string{k8s + "3.10"},
		},
		"a node with a truncated list uses its smallest image": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"),
				crowded("b", "amd64", image(9e6, "docker.io/library/tool@"+digest, "docker.io/library/tool:1")),
			},
			amd64: []string{"docker.io/library/tool:1 = b", k8s + "3.10 ≠ b"},
		},
		"nodes with truncated lists use their smallest common image": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"),
				crowded(
					"b", "amd64", image(8e6, "docker.io/library/only-b:1"), image(9e6, "docker.io/library/small:1"),
					image(10e6, "docker.io/library/tool:1"),
				),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1"), image(10e6, "docker.io/library/tool:1")),
				crowded("d", "amd64", image(10e6, "docker.io/library/tool:1"), image(9e6, "docker.io/library/small:1")),
			},
			amd64: []string{"docker.io/library/small:1 = b c d", k8s + "3.10 ≠ b c d"},
		},
		"nodes with truncated lists and no common image use the majority's": {
			nodes: []runtime.Object{node("a", "amd64", k8s+"3.10"), crowded("b", "amd64"), crowded("c", "amd64")},
			amd64: []string{k8s + "3.10"},
		},
		"nodes with truncated lists and other exceptions": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), node("b", "amd64", k8s+"3.9"),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1")),
			},
			amd64: []string{"docker.io/library/small:1 = c", k8s + "3.10 ≠ c b", k8s + "3.9 = b"},
		},
		"no pause image: the smallest common image, for new nodes too": {
			nodes: []runtime.Object{
				crowded("a", "amd64", image(9e6, "docker.io/library/small:1")),
				crowded("b", "amd64", image(9e6, "docker.io/library/small:1")),
			},
			amd64: []string{"docker.io/library/small:1"},
		},
		"a node whose list was truncated later keeps the image of its proxy": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), proxyOn("a", k8s+"3.10"),
				crowded("b", "amd64", image(9e6, "docker.io/library/small:1")), proxyOn("b", k8s+"3.10"),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1")), proxyOn("c", k8s+"3.9"),
				crowded("d", "amd64", image(9e6, "docker.io/library/small:1")), proxyOn("d", "docker.io/library/tool:1"),
				crowded("e", "amd64", image(9e6, "docker.io/library/small:1")),
				node("f", "amd64", k8s+"3.9"), proxyOn("f", k8s+"3.9"),
			},
			amd64: []string{
				"docker.io/library/small:1 = e", "docker.io/library/tool:1 = d", k8s + "3.10 ≠ e d c f", k8s + "3.9 = c f",
			},
		},
		"a proxy that does not run, or is not of this release, shows no image": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"),
				crowded("b", "amd64", image(9e6, "docker.io/library/small:1")), waiting(proxyOn("b", k8s+"3.10")),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1")),
				labelled(proxyOn("c", k8s+"3.10"), "app.kubernetes.io/instance", "another"),
				crowded("d", "amd64", image(9e6, "docker.io/library/small:1")),
				labelled(proxyOn("d", k8s+"3.10"), "app.kubernetes.io/component", "probe"),
			},
			amd64: []string{"docker.io/library/small:1 = b c d", k8s + "3.10 ≠ b c d"},
		},
		"a node whose list is truncated runs other pods of the release": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"),
				crowded("b", "amd64", image(9e6, "docker.io/library/small:1")),
				labelled(proxyOn("b", k8s+"3.10"), "app.kubernetes.io/component", "healer"),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1")),
				labelled(proxyOn("c", k8s+"3.10"), "app.kubernetes.io/component", "registry"),
			},
			amd64: []string{k8s + "3.10"},
		},
		"a proxy with an image of its own keeps it when its node reports a pause image again": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), node("b", "amd64", k8s+"3.10"),
				labelled(proxyOn("b", "docker.io/library/tool:1"), "zarf-registry/proxies", "amd64-12345678"),
				node("c", "amd64", k8s+"3.9"),
				labelled(proxyOn("c", "docker.io/library/tool:1"), "zarf-registry/proxies", "amd64-12345678"),
			},
			amd64: []string{"docker.io/library/tool:1 = b c", k8s + "3.10 ≠ b c"},
		},
		"unless the healer has replaced it by the one of the other nodes": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), node("b", "amd64", k8s+"3.10"),
				labelled(proxyOn("b", k8s+"3.10"), "zarf-registry/proxies", "amd64-12345678"),
			},
			amd64: []string{k8s + "3.10"},
		},
		"other proxies follow the newest": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), node("b", "amd64", k8s+"3.9", k8s+"3.10"),
				labelled(proxyOn("b", k8s+"3.9"), "zarf-registry/proxies", "amd64"),
			},
			amd64: []string{k8s + "3.10"},
		},
		"no pause image: the image that most proxies run in": {
			nodes: []runtime.Object{
				crowded("a", "amd64", image(9e6, "docker.io/library/small:1")), proxyOn("a", k8s+"3.9"),
				crowded("b", "amd64", image(9e6, "docker.io/library/small:1")), proxyOn("b", k8s+"3.10"),
				crowded("c", "amd64", image(9e6, "docker.io/library/small:1")),
				labelled(proxyOn("c", k8s+"3.9"), "app.kubernetes.io/component", "node-config"),
				crowded("d", "amd64", image(9e6, "docker.io/library/small:1")),
			},
			amd64: []string{"docker.io/library/small:1 = d", k8s + "3.10 = b", k8s + "3.9 ≠ d b"},
		},
		"no pause image and no common image: the default": {
			nodes: []runtime.Object{crowded("a", "amd64"), crowded("b", "amd64")}, unseen: true,
			amd64: []string{k8s + "3.10.1"},
		},
		"a pause image at the end of a full list": {
			nodes: []runtime.Object{node("a", "amd64", k8s+"3.9"), crowded("b", "amd64", image(3e5, k8s+"3.9"))},
			amd64: []string{k8s + "3.9"},
		},
		"CRI-O without pause images": {
			nodes: []runtime.Object{
				holding("a", "amd64", image(4e8, "quay.io/cni:1"), image(9e6, "quay.io/small@"+digest)),
				holding("b", "amd64", image(9e6, "quay.io/small@"+digest)),
			},
			amd64: []string{"quay.io/small@" + digest},
		},
		"a common digest is preferred to a tag of one node": {
			nodes: []runtime.Object{node("z", "amd64", k8s+"3.9"),
				holding("a", "amd64", image(9e6, "quay.io/small@"+digest)),
				holding("b", "amd64", image(8e6, "quay.io/smaller:1"), image(9e6, "quay.io/small@"+digest))},
			amd64: []string{"quay.io/small@" + digest + " = a b", k8s + "3.9 ≠ a b"},
		},
		"of the same size, a tag is preferred to a digest": {
			nodes: []runtime.Object{holding("a", "amd64", image(9e6, "quay.io/a@"+digest), image(9e6, "quay.io/b:1"))},
			amd64: []string{"quay.io/b:1"},
		},
		"images of this registry and unnamed images are ignored": {
			nodes: []runtime.Object{node("z", "amd64", k8s+"3.9"), holding("a", "amd64",
				image(1, "127.0.0.1:31999/team/tiny:1"), image(2, "[::1]:31999/team/tiny:1"),
				image(3, "<none>@<none>", "<none>:<none>"), image(4, "127.0.0.1:31999/pause:9.9"), image(9e6, "quay.io/small:1"))},
			amd64: []string{"quay.io/small:1 = a", k8s + "3.9 ≠ a"},
		},
		"a node without images uses the majority's image": {
			nodes: []runtime.Object{node("a", "amd64", k8s+"3.9"), node("b", "amd64")},
			amd64: []string{k8s + "3.9"},
		},
		"truncated lists on one architecture only": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.9"), crowded("b", "amd64", image(9e6, "quay.io/small:1")),
				crowded("c", "arm64", image(8e6, "quay.io/arm:1")),
			},
			amd64: []string{"quay.io/small:1 = b", k8s + "3.9 ≠ b"},
			arm64: []string{"quay.io/arm:1"},
		},
		"of the same version, the image of more nodes": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.9"), node("b", "amd64", "k8s.gcr.io/pause:3.9"),
				node("c", "amd64", "k8s.gcr.io/pause:3.9"),
			},
			amd64: []string{"k8s.gcr.io/pause:3.9 ≠ a", k8s + "3.9 = a"},
		},
		"architectures are independent": {
			nodes: []runtime.Object{
				node("a", "amd64", k8s+"3.9"), node("b", "arm64", k8s+"3.10"), node("c", "arm64", "k8s.gcr.io/pause-arm64:3.1"),
			},
			amd64: []string{k8s + "3.9"},
			arm64: []string{"k8s.gcr.io/pause-arm64:3.1 = c", k8s + "3.10 ≠ c"},
		},
		"a tag is preferred to a digest of the same image": {
			nodes: []runtime.Object{twoNames},
			amd64: []string{k8s + "3.10"},
		},
		"a digest without a tag": {
			nodes: []runtime.Object{node("a", "amd64", "registry.k8s.io/pause@sha256:"+strings.Repeat("e", 64))},
			amd64: []string{"registry.k8s.io/pause@sha256:" + strings.Repeat("e", 64)},
		},
		"Windows nodes are ignored": {
			nodes: []runtime.Object{windows, node("a", "amd64", k8s+"3.9")},
			amd64: []string{k8s + "3.9"},
		},
		"RKE2": {
			nodes: []runtime.Object{node("a", "amd64", "docker.io/rancher/mirrored-pause:3.6")},
			amd64: []string{"docker.io/rancher/mirrored-pause:3.6"},
		},
		"EKS": {
			nodes: []runtime.Object{node("a", "amd64", "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/pause:3.10")},
			amd64: []string{"602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/pause:3.10"},
		},
		"AKS": {
			nodes: []runtime.Object{node("a", "amd64", "mcr.microsoft.com/oss/v2/kubernetes/pause:3.6")},
			amd64: []string{"mcr.microsoft.com/oss/v2/kubernetes/pause:3.6"},
		},
		"GKE": {
			nodes: []runtime.Object{node("a", "amd64", "gke.gcr.io/pause:3.8")}, amd64: []string{"gke.gcr.io/pause:3.8"},
		},
		"a mirror": {
			nodes: []runtime.Object{node("a", "amd64", "mirror.internal:5000/k8s/pause:v3.9")},
			amd64: []string{"mirror.internal:5000/k8s/pause:v3.9"},
		},
		"a lookalike": {
			nodes: []runtime.Object{
				node("a", "amd64", "example.com/menopause:1", "example.com/pause/tool:1", "example.com/pauses:1", k8s+"3.9"),
			},
			amd64: []string{k8s + "3.9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{
				values: proxyMode(t), cluster: newCluster(append(test.nodes, kubernetes(corev1.IPv4Protocol))...),
			}.render(t)
			if diff := cmp.Diff(test.amd64, proxies(out, "amd64")); diff != "" {
				t.Error("amd64:", diff)
			}
			if test.arm64 == nil {
				test.arm64 = []string{k8s + "3.10.1"}
			}
			if diff := cmp.Diff(test.arm64, proxies(out, "arm64")); diff != "" {
				t.Error("arm64:", diff)
			}
			wantSource := state.SourceCluster
			if test.nodes == nil || test.unseen {
				wantSource = state.SourceDefault
			}
			if source := decided(out).Injector.PauseImageSource; source != wantSource {
				t.Errorf("the source of the pause image is %s, want %s", source, wantSource)
			}
		})
	}
}

// proxyOn returns a proxy of the release that runs on a node.
func proxyOn(node, image string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "zarf", Name: "proxy-on-" + node, Labels: names.PodLabels("zarf-registry", names.ComponentProxy),
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "proxy", Image: image}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}},
	}
}

func waiting(p *corev1.Pod) *corev1.Pod {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"},
	}
	return p
}

func labelled(p *corev1.Pod, label, value string) *corev1.Pod {
	p.Labels[label] = value
	return p
}

// running returns the registry's Deployment of a previous rendering.
func running(architecture, image string) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry"},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/arch": architecture},
			Containers:   []corev1.Container{{Name: "registry", Image: image}},
		}}},
	}
}

func TestRegistryKeepsItsArchitectureAndPauseImage(t *testing.T) {
	t.Parallel()
	const k8s = "registry.k8s.io/pause:"
	for name, test := range map[string]struct {
		objects      []runtime.Object
		values       []string
		architecture string
		image        string
		excluded     []string
	}{
		"amd64 without a cluster": {
			architecture: "amd64", image: k8s + "3.10.1",
		},
		"amd64 if there is any": {
			objects:      []runtime.Object{node("a", "arm64", k8s+"3.10"), node("b", "amd64", k8s+"3.9")},
			architecture: "amd64", image: k8s + "3.9",
		},
		"arm64 if there is no other": {
			objects:      []runtime.Object{node("a", "arm64", k8s+"3.10")},
			architecture: "arm64", image: k8s + "3.10",
		},
		"an architecture with a payload": {
			objects:      []runtime.Object{node("a", "amd64", k8s+"3.10"), node("b", "arm64", k8s+"3.10")},
			values:       []string{"injector.architectures=[arm64]"},
			architecture: "arm64", image: k8s + "3.10",
		},
		"the architecture of the values": {
			objects:      []runtime.Object{node("a", "amd64", k8s+"3.10"), node("b", "arm64", k8s+"3.8")},
			values:       []string{"registry.architecture=arm64"},
			architecture: "arm64", image: k8s + "3.8",
		},
		"not on nodes that lack its pause image": {
			objects:      []runtime.Object{node("a", "amd64", k8s+"3.10"), node("b", "amd64", k8s+"3.9"), node("c", "amd64")},
			architecture: "amd64", image: k8s + "3.10", excluded: []string{"b"},
		},
		"stays on arm64 when an amd64 node joins": {
			objects: []runtime.Object{
				node("a", "arm64", k8s+"3.10"), node("b", "amd64", k8s+"3.10"), running("arm64", k8s+"3.10"),
			},
			architecture: "arm64", image: k8s + "3.10",
		},
		"keeps its pause image when a node with a newer one joins": {
			objects: []runtime.Object{
				node("a", "amd64", k8s+"3.9"), node("b", "amd64", k8s+"3.10"), running("amd64", k8s+"3.9"),
			},
			architecture: "amd64", image: k8s + "3.9", excluded: []string{"b"},
		},
		"changes its pause image when no node has it": {
			objects:      []runtime.Object{node("b", "amd64", k8s+"3.10"), running("amd64", k8s+"3.9")},
			architecture: "amd64", image: k8s + "3.10",
		},
		"changes its architecture when no node has it": {
			objects:      []runtime.Object{node("b", "amd64", k8s+"3.10"), running("arm64", k8s+"3.10")},
			architecture: "amd64", image: k8s + "3.10",
		},
		"keeps its pause image when its node's list becomes truncated": {
			objects: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), crowded("b", "amd64", image(9e6, "quay.io/small:1")), running("amd64", k8s+"3.9"),
			},
			architecture: "amd64", image: k8s + "3.9", excluded: []string{"a"},
		},
		"stays on a node whose list becomes truncated": {
			objects: []runtime.Object{
				node("a", "amd64", k8s+"3.10"), crowded("b", "amd64", image(9e6, "quay.io/small:1")), running("amd64", k8s+"3.10"),
			},
			architecture: "amd64", image: k8s + "3.10",
		},
		"not on nodes without a pause image": {
			objects:      []runtime.Object{node("a", "amd64", k8s+"3.10"), holding("b", "amd64", image(9e6, "quay.io/small:1"))},
			architecture: "amd64", image: k8s + "3.10", excluded: []string{"b"},
		},
		"another image if no node has a pause image": {
			objects: []runtime.Object{
				holding("a", "amd64", image(9e6, "quay.io/small:1")), holding("b", "amd64", image(9e6, "quay.io/small:1")),
			},
			architecture: "amd64", image: "quay.io/small:1",
		},
		"keeps that image when a node with a pause image joins": {
			objects: []runtime.Object{
				holding("a", "amd64", image(9e6, "quay.io/small:1")), node("b", "amd64", k8s+"3.10"),
				running("amd64", "quay.io/small:1"),
			},
			architecture: "amd64", image: "quay.io/small:1", excluded: []string{"b"},
		},
		"the image of the values": {
			objects:      []runtime.Object{node("a", "amd64", k8s+"3.9"), node("b", "amd64", k8s+"3.10")},
			values:       []string{"injector.image=example.com/pause:1"},
			architecture: "amd64", image: "example.com/pause:1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{
				values:  proxyMode(t, append(test.values, "healer.enabled=false")...),
				cluster: newCluster(append(test.objects, kubernetes(corev1.IPv4Protocol))...),
			}.render(t)
			spec := find[*appsv1.Deployment](t, out, "zarf-registry").Spec.Template.Spec
			_, excluded := nodeFields(spec.Affinity)
			got := fmt.Sprint(spec.NodeSelector["kubernetes.io/arch"], spec.Containers[0].Image, excluded)
			if want := fmt.Sprint(test.architecture, test.image, test.excluded); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// The terms of a node selector are alternatives, so every term must exclude a node.
func TestExcludedNodesAreAddedToEveryAffinityTerm(t *testing.T) {
	t.Parallel()
	values := with(t, ciValues(t)["everything"], "healer.enabled=false", "startupTaint=")
	cluster := newCluster(
		kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.9"),
		node("b", "amd64", "registry.k8s.io/pause:3.10"),
	)
	spec := find[*appsv1.Deployment](
		t, rendering{values: values, cluster: cluster}.render(t), "cluster-images",
	).Spec.Template.Spec
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 2 || len(terms[0].MatchExpressions) != 1 || len(terms[1].MatchFields) != 2 {
		t.Fatalf("the user's terms were changed: %v", terms)
	}
	for i, term := range terms {
		last := term.MatchFields[len(term.MatchFields)-1]
		if last.Operator != corev1.NodeSelectorOpNotIn || !slices.Equal(last.Values, []string{"a"}) {
			t.Errorf("term %d does not leave node a out: %v", i, term)
		}
	}
}

func TestIPFamilyIsDetected(t *testing.T) {
	t.Parallel()
	dual := node("a", "amd64")
	dual.Spec.PodCIDRs = []string{"fd00:244::/64", "10.244.0.0/24"}
	single := node("a", "amd64")
	single.Spec.PodCIDRs = []string{"10.244.0.0/24"}
	for name, test := range map[string]struct {
		objects                     []runtime.Object
		values                      []string
		family, source, hostNetwork string
		address                     string
	}{
		"IPv4 without a cluster": {nil, nil, "IPv4", "default", "false", "127.0.0.1:31999"},
		"IPv4": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, nil, "IPv4", "cluster", "false", "127.0.0.1:31999",
		},
		"IPv6": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), node("a", "amd64")}, nil, "IPv6", "cluster", "true", "[::1]:31999",
		},
		"DualStack by the nodes' pod addresses": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), dual}, nil, "DualStack", "cluster", "false", "127.0.0.1:31999",
		},
		"DualStack by the DNS Service": {
			[]runtime.Object{
				kubernetes(corev1.IPv4Protocol), service("kube-system", "kube-dns", corev1.IPv4Protocol, corev1.IPv6Protocol),
			},
			nil, "DualStack", "cluster", "false", "127.0.0.1:31999",
		},
		"the state overrides the cluster": {
			[]runtime.Object{kubernetes(corev1.IPv6Protocol), dual, remembers(ready(settings(state.ModeProxy, state.IPv4)))},
			nil, "IPv4", "state", "false", "127.0.0.1:31999",
		},
		"the state says IPv6": {
			[]runtime.Object{
				kubernetes(corev1.IPv4Protocol), single, remembers(ready(settings(state.ModeNodePort, state.IPv6))),
			},
			nil, "IPv6", "state", "true", "[::1]:31999",
		},
		"the value overrides the state": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single, remembers(ready(settings(state.ModeProxy, state.IPv6)))},
			[]string{"ipFamily=IPv4"}, "IPv4", "value", "false", "127.0.0.1:31999",
		},
		"the value overrides the cluster": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, []string{"ipFamily=IPv6"}, "IPv6", "value", "true",
			"[::1]:31999",
		},
		"hostNetwork of the values": {
			[]runtime.Object{kubernetes(corev1.IPv4Protocol), single}, []string{"proxy.hostNetwork=true"}, "IPv4", "cluster",
			"true", "127.0.0.1:31999",
		},
		"the port is part of the address": {nil, []string{"port=32123"}, "IPv4", "default", "false", "127.0.0.1:32123"},
	} {
		t.Run(name, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...)}
			if test.objects != nil {
				r.cluster = newCluster(test.objects...)
			}
			out := r.render(t)
			d := decided(out)
			got := []string{string(d.IPFamily), string(d.IPFamilySource), fmt.Sprint(d.Proxy.HostNetwork), d.Address}
			if diff := cmp.Diff([]string{test.family, test.source, test.hostNetwork, test.address}, got); diff != "" {
				t.Errorf("the Jobs are told (-want +got):\n%s", diff)
			}
			if notes := out.files["NOTES.txt"]; !strings.Contains(notes, test.address) {
				t.Errorf("the notes do not name %s:\n%s", test.address, notes)
			}
			spec := daemonSets(out, "proxy")[0].Spec.Template.Spec
			if got := fmt.Sprint(spec.HostNetwork); got != test.hostNetwork {
				t.Errorf("the proxies' hostNetwork is %s", got)
			}
			if !spec.HostNetwork {
				return
			}
			for family, listener := range map[string]string{"IPv4": "--listen=127.0.0.1:31999", "IPv6": "--listen=[::1]:31999"} {
				want := test.family == family || test.family == "DualStack"
				if slices.Contains(spec.Containers[0].Args, listener) != want {
					t.Errorf("%s is there: %t", listener, !want)
				}
			}
		})
	}
}

func TestRejectsHostPortOnIPv6Clusters(t *testing.T) {
	t.Parallel()
	_, err := rendering{
		values: proxyMode(t, "proxy.hostNetwork=false"), cluster: newCluster(kubernetes(corev1.IPv6Protocol)),
	}.try(t)
	if err == nil || !strings.Contains(err.Error(), "zarf-registry: proxy.hostNetwork: ") {
		t.Errorf("got %v", err)
	}
}

func TestProxyServesTLSForCRIO(t *testing.T) {
	t.Parallel()
	for runtimeVersion, want := range map[string]string{
		"containerd://2.1.4":       "never",
		"cri-o://1.34.9":           "never",
		"cri-o://1.35.0":           "always",
		"cri-o://1.35.2-rhaos4.22": "always",
		"cri-o://v1.36.0-dev":      "always",
		"cri-o://2.0.0":            "always",
		"cri-o://unknown":          "never",
		"":                         "never",
	} {
		n := node("b", "amd64")
		n.Status.NodeInfo.ContainerRuntimeVersion = runtimeVersion
		if reason := plan.RequiresTLS(*n); (reason != "") != (want == "always") {
			t.Errorf("with %q, init-hook's reason for TLS is %q, want %s", runtimeVersion, reason, want)
		}
		out := rendering{
			values: proxyMode(t), cluster: newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64"), n),
		}.render(t)
		for _, d := range daemonSets(out, "proxy") {
			if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--tls="+want) {
				t.Errorf("with %q: %s, want --tls=%s", runtimeVersion, args, want)
			}
		}
	}
}

func TestProxiesUseTheNodesNetworkOnCRIO(t *testing.T) {
	t.Parallel()
	for runtimeVersion, want := range map[string]bool{
		"containerd://2.1.4": false,
		"cri-o://1.28.0":     true,
		"cri-o://1.35.0":     true,
		"":                   false,
	} {
		n := node("b", "amd64")
		n.Status.NodeInfo.ContainerRuntimeVersion = runtimeVersion
		if reason := plan.HostPortUnreachable(*n); (reason != "") != want {
			t.Errorf("with %q, init-hook's reason against host ports is %q", runtimeVersion, reason)
		}
		cluster := newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64"), n)
		for setting, want := range map[string]bool{"auto": want, "false": false, "true": true} {
			out := rendering{values: proxyMode(t, "proxy.hostNetwork="+setting), cluster: cluster}.render(t)
			for _, d := range daemonSets(out, "proxy") {
				if d.Spec.Template.Spec.HostNetwork != want {
					t.Errorf("with %q and proxy.hostNetwork=%s, hostNetwork of %s is not %t", runtimeVersion, setting, d.Name, want)
				}
			}
		}
	}
}

func TestPauseImagesHaveOneRule(t *testing.T) {
	t.Parallel()
	const other = "a.example/other:1"
	for image, want := range map[string]bool{
		"registry.k8s.io/pause:3.10.1":                            true,
		"registry.k8s.io/pause@sha256:" + strings.Repeat("1", 64): true,
		"pause:3.6": true,
		"gcr.io/google_containers/pause-amd64:3.1": true,
		"docker.io/rancher/mirrored-pause:3.6":     true,
		"k8s.example/pause-windows:3.6":            false,
		"registry.example.com/unpause:1":           false,
		"registry.example.com/pause/tool:1":        false,
	} {
		if got := nodeimages.IsPause(image); got != want {
			t.Errorf("init-hook: %s is a pause image: %t", image, got)
		}
		out := rendering{values: proxyMode(t), cluster: newCluster(kubernetes(corev1.IPv4Protocol),
			node("a", "amd64", other, image))}.render(t)
		chosen := map[bool]string{true: image, false: other}[want]
		if got := decided(out).Injector.PauseImages; got[0] != chosen {
			t.Errorf("the chart chose %s, want %s", got[0], chosen)
		}
	}
}

func TestJobsRunOnNodesWithTheirImage(t *testing.T) {
	t.Parallel()
	notReady := node("c", "amd64", hookImage)
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	nodes := []runtime.Object{
		kubernetes(corev1.IPv4Protocol), node("a", "amd64"), node("b", "amd64", hookImage), notReady,
		node("d", "arm64", "docker.io/library/large:1", hookImage),
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		values  []string
		want    []string
	}{
		"ready nodes that report it":  {nodes, nil, []string{"b", "d"}},
		"any node if none reports it": {nodes[:2], nil, nil},
		"the image of the values":     {nodes, []string{"initHook.image.tag=other"}, nil},
		"by a digest": {
			append(
				[]runtime.Object{node("e", "amd64", "ghcr.io/zarf-dev/zarf-registry/init-hook@sha256:"+strings.Repeat("a", 64))},
				nodes...,
			),
			[]string{"initHook.image.digest=sha256:" + strings.Repeat("a", 64)}, []string{"e"},
		},
		"the node selector": {nodes, []string{"initHook.nodeSelector={disk: fast}"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, test.values...), cluster: newCluster(test.objects...)}.render(t)
			for _, job := range all[*batchv1.Job](out) {
				affinity := job.Spec.Template.Spec.Affinity
				got, _ := nodeFields(affinity)
				// This Job runs when the release is uninstalled, and these nodes may be gone by then.
				if job.Name == "zarf-registry-cleanup" {
					if got != nil {
						t.Errorf("cleanup requires nodes %s", got)
					}
					if affinity != nil {
						for _, term := range affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
							got = append(got, term.Preference.MatchFields[0].Values...)
						}
					}
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("%s: nodes %s, want %s", job.Name, got, test.want)
				}
			}
		})
	}
}

// With explicit values the chart looks up only the state Secret, and `helm template` renders the same for
// GitOps as `helm install`.
func TestExplicitValuesNeedNoLookup(t *testing.T) {
	t.Parallel()
	values := ciValues(t)["explicit"]
	alone := rendering{values: values}.render(t).text()
	for where, make := range clusters() {
		cluster := make()
		if cluster == nil {
			continue
		}
		if diff := cmp.Diff(alone, rendering{values: values, cluster: cluster}.render(t).text()); diff != "" {
			t.Errorf("%s changes the rendering:\n%s", where, diff)
		}
		if !slices.Equal(cluster.asked, []string{"v1 Secret"}) {
			t.Errorf("%s was asked for %s", where, cluster.asked)
		}
	}
}

// In a large cluster lookups are slow: one for each kind, not one for each template.
func TestEachResourceIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	cluster := newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10"))
	rendering{values: proxyMode(t), cluster: cluster}.render(t)
	times := map[string]int{}
	for _, kind := range cluster.asked {
		times[kind]++
	}
	// The two Services are default/kubernetes and the cluster's DNS.
	if want := map[string]int{
		"v1 Node": 1, "v1 Pod": 1, "v1 Service": 2, "v1 Secret": 1, "apps/v1 Deployment": 1,
	}; !maps.Equal(times, want) {
		t.Errorf("asked %v, want %v", times, want)
	}
}

// Processes on the node's network can share the port of a proxy with the same user. Proxies of previous
// releases, to which a rollback must be possible, run as 65532 and end if their port is in use.
func TestProxiesOnTheNodesNetworkHaveTheirOwnUser(t *testing.T) {
	t.Parallel()
	installed := func(values ...string) []*appsv1.DaemonSet {
		return daemonSets(rendering{values: proxyMode(t, values...)}.render(t), "proxy")
	}
	previous := func(change func(d *appsv1.DaemonSet)) []runtime.Object {
		var objects []runtime.Object
		for _, d := range installed("proxy.hostNetwork=true") {
			user := int64(65532)
			d.Spec.Template.Spec.SecurityContext.RunAsUser = &user
			delete(d.Annotations, "zarf-registry/waits-for-port")
			change(d)
			objects = append(objects, d)
		}
		return objects
	}
	for name, tt := range map[string]struct {
		before []runtime.Object
		values string
		want   int64
	}{
		"a new release":            {nil, "proxy.hostNetwork=true", proxyUser},
		"a new release on IPv6":    {nil, "ipFamily=IPv6", proxyUser},
		"host ports":               {nil, "proxy.hostNetwork=false", 65532},
		"after a previous release": {previous(func(*appsv1.DaemonSet) {}), "proxy.hostNetwork=true", 65532},
		"after an upgrade from it": {previous(func(d *appsv1.DaemonSet) {
			d.Annotations["zarf-registry/waits-for-port"] = "true"
		}), "proxy.hostNetwork=true", proxyUser},
		"after a previous release with host ports": {previous(func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.HostNetwork = false
		}), "proxy.hostNetwork=true", proxyUser},
		"beside another release": {previous(func(d *appsv1.DaemonSet) {
			d.Labels["app.kubernetes.io/instance"] = "another"
		}), "proxy.hostNetwork=true", proxyUser},
		"beside other DaemonSets": {previous(func(d *appsv1.DaemonSet) {
			d.Labels = nil
		}), "proxy.hostNetwork=true", proxyUser},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, tt.values), cluster: newCluster(tt.before...), upgrade: tt.before != nil}.render(t)
			proxies := daemonSets(out, "proxy")
			if len(proxies) == 0 {
				t.Error("there are no proxies")
			}
			for _, d := range proxies {
				if c := d.Spec.Template.Spec.SecurityContext; !is(c.RunAsUser, tt.want) || !is(c.FSGroup, tt.want) {
					t.Errorf("%s runs as %d with the group %d, want %d", d.Name, *c.RunAsUser, *c.FSGroup, tt.want)
				}
				if _, waits := d.Annotations["zarf-registry/waits-for-port"]; waits != d.Spec.Template.Spec.HostNetwork {
					t.Errorf("%s waits for its port: %t", d.Name, waits)
				}
			}
		})
	}
}
