package nodes

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// CACopies tracks the copies of the proxies' CA certificates that nodes hold for CRI-O.
type CACopies struct {
	*Observer
	// Once logs a message that would otherwise repeat with every poll.
	Once func(message string, args ...any)
	// Ready caches the names of the ready nodes.
	Ready *ReadyNodes

	// replaced holds the pods that were deleted so that their successors write the current CAs.
	replaced map[types.UID]bool
}

// Outdated describes the nodes that lack the CAs with these fingerprints. It deletes each pod once
// whose node has others, so that its successor writes these. If settled, it ignores pods that do
// not exist yet, since they will write the current CAs.
func (c *CACopies) Outdated(ctx context.Context, fingerprints []string, settled bool) ([]string, error) {
	sets, pods, err := c.DaemonSets(ctx, names.ComponentNodeConfig)
	if release.MissingPermission(err) {
		// If nodes get no CAs, the chart does not grant this permission.
		sets, pods, err = c.ownersOfPods(ctx)
	}
	if err != nil {
		return nil, release.RefuseForbidden(err)
	}
	if len(sets) == 0 {
		return nil, nil
	}
	if err := c.Refresh(ctx, c.Ready); err != nil {
		return nil, err
	}
	want := slices.Sorted(slices.Values(fingerprints))
	var waiting []string
	for _, set := range sets {
		covered := progressOf([]appsv1.DaemonSet{set}, pods, c.Ready.names, filesWritten)
		written := covered.pods()
		if !c.writesCAs(set, written) {
			continue
		}
		for _, node := range covered.in(excused) {
			c.Once("not waiting for a node that is not ready; it gets the CAs when it is back", "node", node)
		}
		for _, p := range written {
			switch {
			case !p.done && !settled:
				missing := c.PodName(&p.Pod) + ": it has not written the CAs yet"
				if complaint := PodComplaint(p.Pod); complaint != "" {
					missing += " (" + complaint + ")"
				}
				waiting = append(waiting, missing)
			case !p.done || len(p.report.CA) == 0 || slices.Equal(slices.Sorted(slices.Values(p.report.CA)), want):
			default:
				waiting = append(waiting,
					c.PodName(&p.Pod)+": its node has outdated CAs until this pod's successor writes the current ones"+
						c.replace(ctx, &p.Pod))
			}
		}
		if missing := covered.missing("done"); missing != "" && !settled {
			waiting = append(waiting, missing)
		}
	}
	return waiting, nil
}

// writesCAs reports whether the pods of a DaemonSet write CAs to nodes: one of them reported so, or
// all mount the CAs and none has finished yet.
func (c *CACopies) writesCAs(set appsv1.DaemonSet, pods []nodePod) bool {
	if slices.ContainsFunc(pods, func(p nodePod) bool { return len(p.report.CA) > 0 }) {
		return true
	}
	return mountsSecret(set.Spec.Template.Spec, c.Settings.Name+names.SuffixNodeTLS) &&
		!slices.ContainsFunc(pods, func(p nodePod) bool { return p.done })
}

// ownersOfPods replaces listing DaemonSets if that is forbidden. It derives them from their pods, so it
// does not see missing pods.
func (c *CACopies) ownersOfPods(ctx context.Context) ([]appsv1.DaemonSet, []corev1.Pod, error) {
	pods, err := c.ListPods(ctx, names.ComponentNodeConfig)
	if err != nil {
		return nil, nil, err
	}
	var sets []appsv1.DaemonSet
	for _, pod := range pods {
		name := ownerOf(pod)
		if name == "" || slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.Name == name }) {
			continue
		}
		set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: pod.Namespace}}
		set.Spec.Template.Spec = pod.Spec
		sets = append(sets, set)
	}
	return sets, pods, nil
}

// replace deletes a pod once. It returns the reason if it could not.
func (c *CACopies) replace(ctx context.Context, pod *corev1.Pod) string {
	if c.replaced[pod.UID] {
		return ""
	}
	if err := c.DeletePod(ctx, pod.Name, string(pod.UID)); err != nil {
		return fmt.Sprintf(" (%s; kubectl --namespace %s delete pod %s)", release.RefuseForbidden(err), pod.Namespace,
			pod.Name)
	}
	if c.replaced == nil {
		c.replaced = map[types.UID]bool{}
	}
	c.replaced[pod.UID] = true
	c.Log.Info("deleted a pod so that its successor writes the current CAs", "pod", pod.Name, "node", pod.Spec.NodeName)
	return ""
}

func mountsSecret(spec corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		if v.Secret != nil && v.Secret.SecretName == name {
			return true
		}
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.Secret != nil && s.Secret.Name == name
		})
	})
}
