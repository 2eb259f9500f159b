package nodes

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

// NodesReady maps the name of every node that runs pods to whether it is ready, and not excused.
func (o *Observer) NodesReady(ctx context.Context) (map[string]bool, error) {
	nodes, err := o.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	isReady := map[string]bool{}
	for _, n := range nodes.Items {
		if plan.RunsPods(n) {
			isReady[n.Name] = plan.NodeReady(n) && o.Excused[n.Name] == ""
		}
	}
	return isReady, nil
}

// PodName formats a pod and its node for messages.
func (o *Observer) PodName(pod *corev1.Pod) string {
	return fmt.Sprintf("%s on node %s", o.Object("pod", pod.Name), pod.Spec.NodeName)
}

// readyAge is how long a list of nodes is considered current.
const readyAge = 10 * time.Second

// ReadyNodes caches the names of the ready nodes. The list of a large cluster is long, and waits
// poll every second.
type ReadyNodes struct {
	names map[string]bool
	at    time.Time
}

// Refresh lists the nodes again if the cached list is outdated.
func (o *Observer) Refresh(ctx context.Context, known *ReadyNodes) error {
	if known.names != nil && time.Since(known.at) < readyAge {
		return nil
	}
	names, err := o.NodesReady(ctx)
	if err != nil {
		return release.RefuseForbidden(err)
	}
	known.names, known.at = names, time.Now()
	return nil
}

// ListPods lists the release's pods of a component.
func (o *Observer) ListPods(ctx context.Context, component string) ([]corev1.Pod, error) {
	pods, err := o.Cluster.Pods.List(ctx, o.Selector(component))
	if err != nil {
		return nil, fmt.Errorf("listing the %s pods in namespace %s: %w", component, o.Settings.Namespace, err)
	}
	return pods.Items, nil
}

// DaemonSets lists the DaemonSets of a component, and their pods.
func (o *Observer) DaemonSets(ctx context.Context, component string) ([]appsv1.DaemonSet, []corev1.Pod, error) {
	sets, err := o.ListDaemonSets(ctx, component)
	if err != nil {
		return nil, nil, err
	}
	pods, err := o.ListPods(ctx, component)
	return sets, pods, err
}

// ListDaemonSets lists the DaemonSets of a component.
func (o *Observer) ListDaemonSets(ctx context.Context, component string) ([]appsv1.DaemonSet, error) {
	sets, err := o.Cluster.DaemonSets.List(ctx, o.Selector(component))
	if err != nil {
		return nil, fmt.Errorf("listing the %s DaemonSets in namespace %s: %w", component, o.Settings.Namespace, err)
	}
	return sets.Items, nil
}

// DeletePod deletes a pod. A missing or replaced one is not an error.
func (o *Observer) DeletePod(ctx context.Context, name, uid string) error {
	err := o.Cluster.Pods.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(uid))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict means that its name is reused
		return fmt.Errorf("deleting %s: %w", o.Object("pod", name), err)
	}
	return nil
}

// RunningPods lists the running pods of a component on ready nodes, and logs those on other nodes.
func (o *Observer) RunningPods(ctx context.Context, nodes *ReadyNodes, component string,
	onNotReady func(*corev1.Pod)) ([]corev1.Pod, error) {
	pods, err := o.ListPods(ctx, component)
	if err != nil || len(pods) == 0 {
		return nil, release.RefuseForbidden(err)
	}
	if err := o.Refresh(ctx, nodes); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			return true
		}
		ready := nodes.names[pod.Spec.NodeName]
		if !ready {
			onNotReady(&pod)
		}
		return !ready
	}), nil
}
