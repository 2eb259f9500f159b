package nodes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// rollout is the progress of the pods of DaemonSets that write files on nodes.
type rollout struct {
	// pods are the pods on ready nodes and those without a node yet.
	pods []nodePod
	// down are the nodes that have a pod but are not ready.
	down []string
	// missing describes the pods that do not exist yet. It is "" if all exist.
	missing string
}

// rolloutOf returns the progress of the pods of DaemonSets. Pods on nodes that are not ready never hold
// up a wait, terminating or not: no kubelet stops them, and their successors start only afterwards.
// On other nodes terminating pods are ignored.
func rolloutOf(sets []appsv1.DaemonSet, pods []corev1.Pod, ready map[string]bool) rollout {
	var c rollout
	for _, set := range sets {
		have, previous, notReady := 0, 0, map[string]bool{}
		for _, pod := range pods {
			isReady, exists := ready[pod.Spec.NodeName]
			switch {
			case ownerOf(pod) != set.Name:
			case pod.Spec.NodeName != "" && !exists:
			case exists && !isReady:
				notReady[pod.Spec.NodeName] = true
			case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			default:
				have++
				c.pods = append(c.pods, readNodePod(pod))
				if !madeFrom(pod, []appsv1.DaemonSet{set}) {
					previous++
				}
			}
		}
		c.down = slices.AppendSeq(c.down, maps.Keys(notReady))
		desired := int(set.Status.DesiredNumberScheduled)
		missing := ""
		// The number of outdated pods does not say where they are: nodes that are not ready may have the
		// current ones.
		switch outdated := desired - int(set.Status.UpdatedNumberScheduled); {
		case set.Status.ObservedGeneration < set.Generation:
			missing = "the controller has not seen the last change"
		case previous > 0 || outdated > len(notReady):
			missing = fmt.Sprintf("%d pods are not updated yet", max(previous, outdated))
		case have+len(notReady) < desired:
			missing = fmt.Sprintf("%d of %d pods exist", have+len(notReady), desired)
		}
		if missing != "" && c.missing == "" {
			c.missing = fmt.Sprintf("DaemonSet %s/%s: %s", set.Namespace, set.Name, missing)
		}
	}
	slices.SortFunc(c.pods, func(a, b nodePod) int { return cmp.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	slices.Sort(c.down)
	return c
}

// ownerOf returns the name of a pod's DaemonSet.
func ownerOf(pod corev1.Pod) string {
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "DaemonSet" {
			return owner.Name
		}
	}
	return ""
}

// madeFrom reports whether a pod was created for the configuration in its DaemonSet's current
// template. It returns true if the template does not say: see ownersOfPods.
func madeFrom(pod corev1.Pod, sets []appsv1.DaemonSet) bool {
	return slices.ContainsFunc(sets, func(set appsv1.DaemonSet) bool {
		want, says := set.Spec.Template.Annotations[names.AnnotationNodeConfig]
		return set.Name == ownerOf(pod) && set.Status.ObservedGeneration >= set.Generation &&
			(!says || pod.Annotations[names.AnnotationNodeConfig] == want)
	})
}

// nodeWait waits until the pods of a component have finished on each node.
type nodeWait struct {
	*Observer
	component, what string
	// names are the DaemonSets to wait for. If empty, all existing ones.
	names []string
	// again are nodes whose pod must run once more even if it has finished.
	again map[string]bool

	looked  bool
	rollout rollout
	ready   map[string]bool
}

// run waits. It returns a Refusal as soon as a node refuses, because a retry would fail the
// same way.
func (w *nodeWait) run(ctx context.Context) error {
	return w.Wait(ctx, w.what, func() (string, error) { return w.look(ctx) }, w.component)
}

func (w *nodeWait) look(ctx context.Context) (missing string, err error) {
	sets, pods, err := w.DaemonSets(ctx, w.component)
	if err != nil {
		return "", err
	}
	if w.ready, err = w.NodesReady(ctx); err != nil {
		return "", err
	}
	if len(w.names) > 0 {
		sets = slices.DeleteFunc(sets, func(d appsv1.DaemonSet) bool { return !slices.Contains(w.names, d.Name) })
	}
	for _, name := range w.names {
		if !slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.Name == name }) {
			return w.Object("DaemonSet", name) + " is missing", nil
		}
	}
	w.rollout = rolloutOf(sets, pods, w.ready)
	if !w.looked {
		started, err := w.startAnew(ctx)
		if err != nil {
			return "", err
		}
		w.looked = true
		if started > 0 {
			return "pods that failed before are restarted", nil
		}
	}
	if err := w.refusals(sets); err != nil {
		return "", err
	}
	var waiting []string
	for _, p := range w.rollout.pods {
		if !p.done {
			waiting = append(waiting, orNone(p.Spec.NodeName))
		}
	}
	switch {
	case w.rollout.missing != "":
		return w.rollout.missing, nil
	case len(waiting) > 0:
		return "not done on " + release.ListNodes(waiting), nil
	}
	return "", nil
}

// startAnew deletes the pods that failed before this wait began. The cause may be fixed by now, and
// successors start at once, while the pods themselves would wait for their back-off. Any failure
// from now on counts.
func (w *nodeWait) startAnew(ctx context.Context) (started int, err error) {
	for _, p := range w.rollout.pods {
		if p.failed == "" && !w.again[p.Spec.NodeName] {
			continue
		}
		if err := w.DeletePod(ctx, &p.Pod); err != nil {
			return started, err
		}
		started++
	}
	return started, nil
}

// DeletePod deletes a pod. A missing or replaced one is not an error.
func (o *Observer) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	err := o.Cluster.Pods.Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict means that its name is reused
		return fmt.Errorf("deleting %s: %w", o.Object("pod", pod.Name), err)
	}
	return nil
}

// refusals returns an error that names the nodes that refuse.
func (w *nodeWait) refusals(sets []appsv1.DaemonSet) error {
	var refusals []string
	for _, p := range w.rollout.pods {
		if p.failed != "" && p.exit == exitcode.Refused && madeFrom(p.Pod, sets) {
			refusals = append(refusals, fmt.Sprintf("node %s refuses: %s (%s)", p.Spec.NodeName,
				cmp.Or(terminationProblem("", p.report, true), p.failed), w.Object("pod", p.Name)))
		}
	}
	if len(refusals) == 0 {
		return nil
	}
	return exitcode.Refuse("%s", release.List(refusals))
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
