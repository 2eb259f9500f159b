package cluster

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func registryPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf", Labels: map[string]string{
			"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "zarf-registry",
			"app.kubernetes.io/component": "registry",
		}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestRegistryKeepsUsingOnePod(t *testing.T) {
	client := fake.NewClientset(registryPod("b"), registryPod("c"),
		registryPod("a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }),
		registryPod("ending", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"} }))
	r := &Registry{Client: client, Namespace: "zarf", Release: "zarf-registry"}
	var dialed []string
	down := map[string]bool{}
	r.Forward = func(_ context.Context, p *corev1.Pod, port int) (net.Conn, error) {
		dialed = append(dialed, p.Name)
		if port != registryPort {
			t.Errorf("dialed port %d", port)
		}
		if down[p.Name] {
			return nil, errors.New("no answer from " + p.Name)
		}
		one, other := net.Pipe()
		_ = other.Close()
		return one, nil
	}
	dial := func() error {
		dialed = nil
		conn, err := r.DialContext(t.Context(), "tcp", "ignored:1")
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	set := func(name string, status corev1.ConditionStatus) {
		t.Helper()
		require.Value(client.CoreV1().Pods("zarf").Update(t.Context(),
			registryPod(name, func(p *corev1.Pod) { p.Status.Conditions[0].Status = status }),
			metav1.UpdateOptions{}))(t)
	}
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"the first ready pod", func() {}, []string{"b"}},
		{"the same pod again", func() {}, []string{"b"}},
		{"the next pod if one does not answer", func() { down["b"] = true }, []string{"b", "c"}},
		{"the pod that answered last, even if an earlier one recovers", func() { down["b"] = false }, []string{"c"}},
		{"the same pod after another becomes ready", func() { set("a", corev1.ConditionTrue) }, []string{"c"}},
		{"another pod when it is no longer ready", func() { set("c", corev1.ConditionFalse) }, []string{"a"}},
	} {
		step.do()
		if err := dial(); err != nil || !slices.Equal(dialed, step.want) {
			t.Errorf("%s: dialed %v, want %v; error %v", step.name, dialed, step.want, err)
		}
	}
	down["a"], down["b"] = true, true
	if err := dial(); err == nil || err.Error() != "no answer from a" {
		t.Errorf("error is %v, want that of the first pod", err)
	}
	set("a", corev1.ConditionFalse)
	set("b", corev1.ConditionFalse)
	if err := dial(); err == nil || !strings.Contains(err.Error(), "no ready registry pod in namespace zarf") {
		t.Errorf("error without pods is %v", err)
	}
}

func TestPlainOpenDirect(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs all of 127.0.0.0/8")
	}
	// An address that no other test uses: the port is always the same.
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIP: "127.83.5.1"}}
	r := &Registry{Direct: true}
	if open, err := r.PlainOpen(t.Context(), pod); open || err != nil {
		t.Errorf("no listener: %t, %v", open, err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(release.PlainPort)))
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	if open, err := r.PlainOpen(t.Context(), pod); !open || err != nil {
		t.Errorf("a listener: %t, %v", open, err)
	}
	if open, err := r.PlainOpen(t.Context(), &corev1.Pod{}); open || err == nil {
		t.Errorf("a pod without an address: %t, %v", open, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if open, err := r.PlainOpen(ctx, pod); open || err == nil {
		t.Errorf("a canceled context: %t, %v", open, err)
	}
}

// failing is a forwarded connection whose first Read fails.
type failing struct {
	net.Conn
	err error
}

func (f failing) Read([]byte) (int, error)    { return 0, f.err }
func (f failing) Write(p []byte) (int, error) { return len(p), nil }
func (f failing) Close() error                { return nil }
