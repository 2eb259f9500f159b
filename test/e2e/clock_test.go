package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// clockAhead is how far the clock of the test's nodes is ahead of the control plane's.
const clockAhead = 3 * time.Second

// testClockAhead rolls the proxies' DaemonSet out on nodes whose clock is ahead. The control plane is real; the test
// stands in for the kubelets, because all nodes of a test cluster have the clock of this machine. With minReadySeconds, the
// controller does not look again, which shows that the test can fail.
func testClockAhead(t *testing.T, w *world) {
	const label = "e2e/clock"
	sets := w.client.AppsV1().DaemonSets(w.namespace)
	chart, err := sets.Get(t.Context(), release+"-proxy-amd64", metav1.GetOptions{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	nodes := []string{"clock-1", "clock-2", "clock-3"}
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "ahead",
			"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}}}
		require.Value(w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			if err := w.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for _, name := range nodes {
		require.NoError(t, w.reportsReady(ctx, name))
	}
	go func() { ended <- w.kubelets(ctx, nodes, label) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	rolls := func(t *testing.T, name string, minReadySeconds int32, within time.Duration) bool {
		t.Helper()
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *chart.Spec.DeepCopy()}
		own := map[string]string{label: name}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: own}
		set.Spec.Template.Labels = own
		set.Spec.Template.Spec.NodeSelector = map[string]string{label: "ahead"}
		set.Spec.MinReadySeconds = minReadySeconds
		require.Value(sets.Create(t.Context(), set, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			if err := sets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		complete := func() error {
			set, err := sets.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			s := set.Status
			if int(s.DesiredNumberScheduled) != len(nodes) || s.ObservedGeneration < set.Generation ||
				int(s.UpdatedNumberScheduled) != len(nodes) || int(s.NumberReady) != len(nodes) ||
				int(s.CurrentNumberScheduled) != len(nodes) || int(s.NumberAvailable) != len(nodes) {
				return errors.New(mustJSON(s))
			}
			pods, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: label + "=" + name})
			if err == nil && len(pods.Items) != len(nodes) {
				err = fmt.Errorf("%d pods", len(pods.Items))
			}
			return err
		}
		eventually(t, "the pods of "+name, complete)
		patch := `{"spec":{"template":{"metadata":{"annotations":{"e2e/template":"2"}}}}}`
		require.Value(sets.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		begin := time.Now()
		for err = complete(); err != nil && time.Since(begin) < within; err = complete() {
			time.Sleep(500 * time.Millisecond)
		}
		t.Logf("figure: on nodes whose clock is ahead, minReadySeconds %d: %.1f s, error %v", minReadySeconds,
			time.Since(begin).Seconds(), err)
		return err == nil
	}
	if !rolls(t, "clock-chart", chart.Spec.MinReadySeconds, patience) {
		t.Error("the rollout does not end")
	}
	if rolls(t, "clock-wait", 3, 30*time.Second) {
		t.Error("a rollout with minReadySeconds ends, so the test cannot tell")
	}
}

// kubelets keeps nodes ready, and their pods with that label too, until ctx ends.
func (w *world) kubelets(ctx context.Context, nodes []string, label string) error {
	for ctx.Err() == nil {
		for _, name := range nodes {
			if err := w.renew(ctx, name); err != nil && ctx.Err() == nil {
				return err
			}
		}
		pods, err := w.client.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, p := range pods.Items {
			if err := w.runs(ctx, p); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		time.Sleep(300 * time.Millisecond)
	}
	return nil
}

// reportsReady reports a node as ready, once: as long as nothing changes, kubelets write only their leases. With each other
// change, the DaemonSet controller would look again.
func (w *world) reportsReady(ctx context.Context, name string) error {
	now := metav1.NewTime(time.Now().Add(clockAhead))
	room := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4"), corev1.ResourceMemory: apiresource.MustParse("4Gi"),
		corev1.ResourcePods: apiresource.MustParse("110"), corev1.ResourceEphemeralStorage: apiresource.MustParse("4Gi")}
	status, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: room, Allocatable: room,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now,
			LastTransitionTime: now, Reason: "KubeletReady"}}}})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}

// renew renews a node's lease.
func (w *world) renew(ctx context.Context, name string) error {
	leases := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := metav1.NewMicroTime(time.Now().Add(clockAhead))
	seconds := int32(40)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &renewed}
	_, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, problem := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": renewed}})
		if problem != nil {
			return problem
		}
		_, err = leases.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// runs starts a pod, or ends one that is deleted, as its kubelet does.
func (w *world) runs(ctx context.Context, p corev1.Pod) error {
	pods, now := w.client.CoreV1().Pods(p.Namespace), metav1.NewTime(time.Now().Add(clockAhead))
	switch {
	case p.Spec.NodeName == "":
		return nil
	case p.DeletionTimestamp != nil:
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	case ready(p):
		return nil
	}
	started := true
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, ContainerStatuses: []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, Ready: true, Started: &started, Image: p.Spec.Containers[0].Image,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
			LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
