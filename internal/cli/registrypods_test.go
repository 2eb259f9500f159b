package cli

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func registryPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf", Labels: map[string]string{
			"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "zarf-registry", "app.kubernetes.io/component": "registry",
		}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestAPushStaysWithOnePodWhileThatServes(t *testing.T) {
	client := fake.NewClientset(registryPod("b"), registryPod("c"),
		registryPod("a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }),
		registryPod("ending", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"} }))
	r := &registryPods{client: client, namespace: "zarf", release: "zarf-registry"}
	var dialled []string
	down := map[string]bool{}
	dial := func() error {
		t.Helper()
		pods, err := r.ready(t.Context())
		if err != nil {
			return err
		}
		dialled = nil
		conn, err := r.dial(t.Context(), pods, func(p *corev1.Pod) (net.Conn, error) {
			dialled = append(dialled, p.Name)
			if down[p.Name] {
				return nil, errors.New("no answer from " + p.Name)
			}
			one, other := net.Pipe()
			_ = other.Close()
			return one, nil
		})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	set := func(name string, status corev1.ConditionStatus) {
		t.Helper()
		if _, err := client.CoreV1().Pods("zarf").Update(t.Context(), registryPod(name, func(p *corev1.Pod) { p.Status.Conditions[0].Status = status }), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"the first that is ready", func() {}, []string{"b"}},
		{"the same again", func() {}, []string{"b"}},
		{"it does not answer, and the next does", func() { down["b"] = true }, []string{"b", "c"}},
		{"the one that answered, though the former would again", func() { down["b"] = false }, []string{"c"}},
		{"another one comes", func() { set("a", corev1.ConditionTrue) }, []string{"c"}},
		{"it is not ready any more", func() { set("c", corev1.ConditionFalse) }, []string{"a"}},
	} {
		step.do()
		if err := dial(); err != nil || !slices.Equal(dialled, step.want) {
			t.Errorf("%s: dialled %v, want %v; error %v", step.name, dialled, step.want, err)
		}
	}
	down["a"], down["b"] = true, true
	if err := dial(); err == nil || err.Error() != "no answer from a" {
		t.Errorf("the error is %v, want that of the pod that was dialled first", err)
	}
	set("a", corev1.ConditionFalse)
	set("b", corev1.ConditionFalse)
	if err := dial(); err == nil || !strings.Contains(err.Error(), "no ready registry pod in namespace zarf") {
		t.Errorf("the error without pods is %v", err)
	}
}

func TestGarbageIsNotCollectedDuringARollout(t *testing.T) {
	revision := func(hash string, phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels["pod-template-hash"], p.Status.Phase = hash, phase
		}
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"} }
	client := fake.NewClientset(registryPod("a", revision("1", corev1.PodRunning)), registryPod("b", revision("1", corev1.PodRunning)),
		registryPod("evicted", revision("0", corev1.PodFailed)))
	pods := &registryPods{client: client, namespace: "zarf", release: "zarf-registry"}
	if err := awaitOneRevision(t.Context(), pods, 0); err != nil {
		t.Errorf("two of one revision: %v", err)
	}
	ctx, stop := whileOneRevision(t.Context(), pods)
	defer stop()
	if err := client.Tracker().Add(registryPod("c", revision("2", corev1.PodPending))); err != nil {
		t.Fatal(err)
	}
	if err := awaitOneRevision(t.Context(), pods, 0); !errors.Is(err, errRevisions) {
		t.Errorf("a rollout that begins: %v", err)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errRevisions) {
		t.Errorf("a rollout during a collection: %v", err)
	}
	pods.client = fake.NewClientset(registryPod("a", revision("1", corev1.PodRunning), ending), registryPod("c", revision("2", corev1.PodRunning)))
	if err := awaitOneRevision(t.Context(), pods, 0); !errors.Is(err, errRevisions) {
		t.Errorf("a former pod that drains: %v", err)
	}
}
