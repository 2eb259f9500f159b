package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// WaitProxies waits until each ready node that should have a proxy has a ready one of the current template.
func (o *Observer) WaitProxies(ctx context.Context) (string, error) {
	w := &nodeWait{Observer: o, component: names.ComponentProxy, what: "the proxies", goal: "ready",
		names: o.Settings.Proxy.DaemonSets, finished: release.PodReady}
	w.act = func(ctx context.Context) (string, error) {
		if !slices.ContainsFunc(w.progress.nodes, func(s nodeState) bool { return s.pod != nil && unschedulable(*s.pod) }) {
			return "", nil
		}
		_, previous, err := o.ProxySets(ctx)
		if err != nil || len(previous) == 0 {
			return "", err
		}
		return "the nodes' port, which previous proxies hold", o.makeRoom(ctx, previous)
	}
	if err := w.run(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d nodes have a ready proxy%s", len(w.progress.in(done)), w.progress.suffix()), nil
}

// ProxyPods lists the pods of the proxies that the chart renders.
func (o *Observer) ProxyPods(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := o.ListPods(ctx, names.ComponentProxy)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !o.UsesProxy(p) }), err
}

// unschedulable reports whether the scheduler has no place for a proxy. A proxy is bound to one
// node, so this means that something on that node is in its way.
func unschedulable(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "free ports")
	})
}

// makeRoom deletes previous proxies before pulls through the new ones are verified. Only one pod
// can have a host port, and a node group that was split or renamed has two that need it.
func (o *Observer) makeRoom(ctx context.Context, previous []appsv1.DaemonSet) error {
	did, err := o.DeleteDaemonSets(ctx, previous)
	if err == nil {
		o.Log.Info("deleted previous proxies that held the port of new ones", "result", did)
	}
	return err
}

// ProxySets lists the release's proxy DaemonSets: those that the chart renders, and those that it
// no longer renders.
func (o *Observer) ProxySets(ctx context.Context) (rendered, previous []appsv1.DaemonSet, err error) {
	sets, err := o.ListDaemonSets(ctx, names.ComponentProxy)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range sets {
		if o.renders(d.Name) {
			rendered = append(rendered, d)
		} else {
			previous = append(previous, d)
		}
	}
	return rendered, previous, nil
}

// DeletePreviousProxies deletes the proxies that the chart no longer renders. Helm keeps them,
// because nodes may pull through them until pulls through the new ones are verified.
func (o *Observer) DeletePreviousProxies(ctx context.Context) (string, error) {
	_, previous, err := o.ProxySets(ctx)
	if err != nil {
		return "", err
	}
	return o.DeleteDaemonSets(ctx, previous)
}

// OrphanProxies deletes the proxies' DaemonSets without their pods, and waits until they are gone. DaemonSets with the
// same labels adopt the pods.
func (o *Observer) OrphanProxies(ctx context.Context) (string, error) {
	sets, err := o.ListDaemonSets(ctx, names.ComponentProxy)
	if err != nil {
		return "", err
	}
	orphan := metav1.DeletePropagationOrphan
	if did, err := o.deleteDaemonSets(ctx, sets, &orphan); err != nil || len(sets) == 0 {
		return did, err
	}
	err = o.Wait(ctx, "the deletion of DaemonSets", func() (string, error) {
		left, err := o.ListDaemonSets(ctx, names.ComponentProxy)
		if err != nil || len(left) == 0 {
			return "", err
		}
		return o.Object("DaemonSet", left[0].Name) + " still exists", nil
	}, names.ComponentProxy)
	return fmt.Sprintf("Helm creates %d DaemonSets again, which adopt their pods", len(sets)), err
}

// DeleteDaemonSets deletes DaemonSets. Missing ones are not an error.
func (o *Observer) DeleteDaemonSets(ctx context.Context, sets []appsv1.DaemonSet) (string, error) {
	return o.deleteDaemonSets(ctx, sets, nil)
}

// deleteDaemonSets deletes DaemonSets. nil is Kubernetes' default: their pods, too.
func (o *Observer) deleteDaemonSets(ctx context.Context, sets []appsv1.DaemonSet,
	pods *metav1.DeletionPropagation) (string, error) {
	var names []string
	for _, d := range sets {
		options := metav1.NewPreconditionDeleteOptions(string(d.UID))
		options.PropagationPolicy = pods
		err := o.Cluster.DaemonSets.Delete(ctx, d.Name, *options)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("deleting %s: %w", o.Object("DaemonSet", d.Name), err)
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return "nothing to delete", nil
	}
	return "deleted " + strings.Join(names, ", "), nil
}

// UsesProxy reports whether a pod is a proxy of a DaemonSet that the chart renders.
func (o *Observer) UsesProxy(pod corev1.Pod) bool {
	owner := ownerOf(pod)
	return owner != "" && o.renders(owner)
}

// renders reports whether the chart renders a proxy DaemonSet. A user who runs finish by hand in
// proxy mode need not pass their names; then it is true for all.
func (o *Observer) renders(daemonSet string) bool {
	if o.Settings.Mode != state.ModeProxy {
		return false
	}
	return len(o.Settings.Proxy.DaemonSets) == 0 || slices.Contains(o.Settings.Proxy.DaemonSets, daemonSet)
}
