package hook_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const enforce = "pod-security.kubernetes.io/enforce"

func namespace(level string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "zarf"}}
	if level != "" {
		n.Labels = map[string]string{enforce: level}
	}
	return n
}

func (b *bench) namespace() *corev1.Namespace {
	b.Helper()
	return require.Value(b.tracker.Get(resource("namespaces"), "", "zarf"))(b).(*corev1.Namespace)
}

func (b *bench) level() string { b.Helper(); return b.namespace().Labels[enforce] }

// podSecurityAt simulates Pod Security with the namespace's label, and the level baseline without
// one.
func podSecurityAt(b *bench) func(runtime.Object) error {
	return func(o runtime.Object) error {
		pod, ok := o.(*corev1.Pod)
		if !ok || b.level() == "privileged" {
			return nil
		}
		why := ""
		if ports := pod.Spec.Containers[0].Ports; len(ports) > 0 && ports[0].HostPort > 0 {
			why = fmt.Sprintf(`hostPort (container "proxy" uses hostPort %d)`, ports[0].HostPort)
		}
		if pod.Spec.HostNetwork {
			why = "host namespaces (hostNetwork=true)"
		}
		if volumes := pod.Spec.Volumes; len(volumes) > 0 && volumes[0].HostPath != nil {
			why = fmt.Sprintf("hostPath volumes (volume %q)", volumes[0].Name)
		}
		if why == "" {
			return nil
		}
		return apierrors.NewForbidden(corev1.Resource("pods"), "x",
			errors.New(`violates PodSecurity "baseline:latest": `+why))
	}
}

func TestPodSecurityAdmitsNodePortMode(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1"), node("n2"), namespace("restricted"))
	b.admit = podSecurityAt(b)
	b.hook.Settings.Preflight.LabelNamespace = true
	b.upgrade(state.ModeNodePort)
	if b.level() != "restricted" {
		t.Error("the namespace was labelled, which nothing needs")
	}
}

func TestNamespaceLabelIsSetOnRequestAndRestored(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"a level": "baseline", "no level": ""} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t, node("n1"), node("n2"), namespace(before))
			b.admit = podSecurityAt(b)
			b.hook.Settings.Preflight.LabelNamespace = true
			for range 2 { // the second run must not save our own label as the previous one
				b.upgrade(state.ModeProxy)
				n := b.namespace()
				if got, ok := n.Annotations["zarf-registry/previous-pod-security-enforce"]; !ok || got != before ||
					n.Labels[enforce] != "privileged" {
					t.Errorf("namespace has %v, %v", n.Labels, n.Annotations)
				}
			}
			b.must(b.hook.Cleanup(t.Context()))
			n := b.namespace()
			if _, there := n.Labels[enforce]; n.Labels[enforce] != before || there != (before != "") || len(n.Annotations) != 0 {
				t.Errorf("namespace has %v, %v", n.Labels, n.Annotations)
			}
		})
	}
}

func TestNamespaceLabelChangedByOthersIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1"), node("n2"), namespace("baseline"))
	b.admit = podSecurityAt(b)
	b.hook.Settings.Preflight.LabelNamespace = true
	b.upgrade(state.ModeProxy)
	n := b.namespace()
	n.Labels[enforce] = "restricted"
	b.update("namespaces", n)
	b.must(b.hook.Cleanup(t.Context()))
	if n := b.namespace(); n.Labels[enforce] != "restricted" || len(n.Annotations) != 0 {
		t.Errorf("namespace has %v, %v", n.Labels, n.Annotations)
	}
}

func TestNamespaceIsLabelledOnlyIfThatHelps(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1"), namespace("restricted"))
	b.hook.Settings.Preflight.LabelNamespace = true
	b.mustPrepare() // the cluster does not enforce it
	if b.level() != "restricted" {
		t.Error("the namespace was labelled, which nothing needs")
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, node("n1"), namespace("baseline"))
		b.hook.Settings.Preflight.LabelNamespace = true
		b.admit = func(o runtime.Object) error {
			if pod, ok := o.(*corev1.Pod); ok && strings.HasPrefix(pod.Spec.Containers[0].Name, "proxy") {
				return apierrors.NewForbidden(corev1.Resource("pods"), "x",
					errors.New(`violates PodSecurity "restricted:latest": hostPort`))
			}
			return nil
		}
		for range 2 {
			b.mustFail(b.hook.Prepare(t.Context()), true, "enforce=privileged", "still rejects pods")
		}
	})
}

// The namespace's owner may change its label between reading and writing.
func TestNamespaceThatChangesIsNotOverwritten(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1"), namespace("baseline"))
	b.hook.Settings.Preflight.LabelNamespace = true
	b.admit = podSecurityAt(b)
	b.interfere = func(write string) {
		if write == "patch namespaces zarf" {
			n := b.namespace().DeepCopy()
			n.Labels[enforce] = "restricted"
			b.update("namespaces", n)
		}
	}
	b.mustFail(b.hook.Prepare(t.Context()), false, "labelling namespace zarf", "modified")
	if got := b.level(); got != "restricted" {
		t.Errorf("the namespace has the level %q", got)
	}
}
