package templates

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// cluster is a fake API for lookup, which records the requests.
type cluster struct {
	client *fake.FakeDynamicClient
	asked  []string
}

func newCluster(objects ...runtime.Object) *cluster {
	return &cluster{client: fake.NewSimpleDynamicClient(scheme.Scheme, objects...)}
}

// GetClientFor implements Helm's engine.ClientProvider.
func (c *cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	c.asked = append(c.asked, apiVersion+" "+kind)
	for _, known := range []struct {
		object     runtime.Object
		namespaced bool
	}{
		{&corev1.Node{}, false},
		{&corev1.Pod{}, true},
		{&corev1.Service{}, true},
		{&corev1.Secret{}, true},
		{&corev1.ConfigMap{}, true},
		{&appsv1.Deployment{}, true},
		{&appsv1.DaemonSet{}, true},
	} {
		kinds, _, err := scheme.Scheme.ObjectKinds(known.object)
		if err != nil {
			return nil, false, err
		}
		if gvk := kinds[0]; gvk.Kind == kind && gvk.GroupVersion().String() == apiVersion {
			resource, _ := meta.UnsafeGuessKindToResource(gvk)
			return c.client.Resource(resource), known.namespaced, nil
		}
	}
	return nil, false, fmt.Errorf("unexpected lookup of %s %s", apiVersion, kind)
}

// node returns a ready Linux node with containerd that reports images.
func node(name, architecture string, images ...string) *corev1.Node {
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: architecture, OperatingSystem: "linux", ContainerRuntimeVersion: "containerd://2.1.4",
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, image := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image}})
	}
	return n
}

// service returns a Service with IP families.
func service(namespace, name string, families ...corev1.IPFamily) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{IPFamilies: families},
	}
}

// kubernetes returns the Service default/kubernetes, which every cluster has.
func kubernetes(families ...corev1.IPFamily) *corev1.Service {
	return service(metav1.NamespaceDefault, "kubernetes", families...)
}

// settings returns the settings of a mode, with the default address of its IP family.
func settings(mode state.Mode, family state.IPFamily) state.Settings {
	s := state.Settings{Mode: mode, IPFamily: family, PKIMode: "internal", DecidedBy: state.SourceValue}
	switch {
	case mode == state.ModeExternal:
		s.Address = "registry.example.com/team"
	case family == state.IPv6:
		s.Address, s.Port = "[::1]:31999", 31999
	default:
		s.Address, s.Port = "127.0.0.1:31999", 31999
	}
	return s
}

// ready returns the state after finish, with edits applied.
func ready(s state.Settings, edits ...func(*state.State)) state.State {
	current := s
	saved := state.State{
		Phase: state.PhaseReady, Desired: s, Current: &current, UpdatedBy: "0.1.0",
		UpdatedAt: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
	}
	for _, edit := range edits {
		edit(&saved)
	}
	return saved
}

// remembers returns the state Secret as the hook writes it.
func remembers(s state.State) *corev1.Secret {
	data, err := state.Encode(s, nil)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return stateSecret(string(data))
}

func stateSecret(json string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry" + names.SuffixState},
		Data:       map[string][]byte{state.Key: []byte(json)},
	}
}

// pushedHookImage is the init-hook image as the state records it; hookImage is the configured one.
var pushedHookImage = &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}

// image returns an image as a node reports it, with its size in bytes.
func image(size int64, names ...string) corev1.ContainerImage {
	return corev1.ContainerImage{Names: names, SizeBytes: size}
}

// holding returns a node that reports images with their sizes.
func holding(name, architecture string, images ...corev1.ContainerImage) *corev1.Node {
	n := node(name, architecture)
	n.Status.Images = images
	return n
}

// crowded returns a node with a truncated image list: kubelets report only the 50 largest images. The
// given images are the smallest of the list.
func crowded(name, architecture string, images ...corev1.ContainerImage) *corev1.Node {
	for i := len(images); i < 50; i++ {
		digest := strings.Repeat(fmt.Sprintf("%02x", i), 32)
		images = append(
			images,
			image(
				int64(i+1)*100e6, fmt.Sprintf("example.com/%s/app-%d@sha256:%s", name, i, digest),
				fmt.Sprintf("example.com/%s/app-%d:1", name, i),
			),
		)
	}
	return holding(name, architecture, images...)
}

const hookImage = "ghcr.io/zarf-dev/zarf-registry/init-hook:0.1.0"

// clusters are those in which matrix renders every values file. A nil cluster stands for helm
// template.
func clusters() map[string]func() *cluster {
	crio := node("c", "amd64", "registry.k8s.io/pause:3.10")
	crio.Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.35.0"
	dual := node("a", "amd64", "registry.k8s.io/pause:3.10")
	dual.Spec.PodCIDRs = []string{"10.244.0.0/24", "fd00:244::/64"}
	return map[string]func() *cluster{
		"no cluster": func() *cluster { return nil },
		"a new cluster": func() *cluster {
			return newCluster(
				kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10", hookImage),
				node("b", "amd64", "registry.k8s.io/pause:3.10"),
			)
		},
		"an IPv6 cluster": func() *cluster { return newCluster(kubernetes(corev1.IPv6Protocol), node("a", "arm64")) },
		"a cluster that remembers proxy mode": func() *cluster {
			return newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10"),
				node("b", "amd64", "registry.k8s.io/pause:3.9"),
				remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) { s.HookImage = pushedHookImage })))
		},
		"a cluster that remembers nodeport mode": func() *cluster {
			return newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10", hookImage),
				remembers(ready(settings(state.ModeNodePort, state.IPv4), func(s *state.State) { s.HookImage = pushedHookImage })))
		},
		"a cluster that remembers an external registry": func() *cluster {
			return newCluster(
				kubernetes(corev1.IPv4Protocol), node("a", "amd64"), remembers(ready(settings(state.ModeExternal, state.IPv4))),
			)
		},
		"a dual-stack cluster": func() *cluster { return newCluster(kubernetes(corev1.IPv4Protocol), dual) },
		"a cluster of all sorts": func() *cluster {
			return newCluster(kubernetes(corev1.IPv4Protocol), crio,
				node("a", "amd64", "registry.k8s.io/pause:3.9", hookImage),
				node("b", "amd64", "docker.io/rancher/mirrored-pause:3.6"),
				node(
					"d", "arm64", "registry.k8s.io/pause:3.10",
				), node("e", "arm64", "registry.k8s.io/pause:3.8"), node("f", "amd64"), crowded("g", "amd64"))
		},
	}
}

// listed returns the objects of a kind of the core group in a cluster.
func listed(t testing.TB, c *cluster, kind string) []runtime.Object {
	t.Helper()
	resource, _, err := c.GetClientFor("v1", kind)
	require.NoError(t, err)
	list := require.Value(resource.List(context.Background(), metav1.ListOptions{}))(t)
	var found []runtime.Object
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found
}
