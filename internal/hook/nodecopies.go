package hook

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// awaitNodes has the copies of the authorities that nodes hold for CRI-O follow ca.crt
// of the node certificate, and says of each node what holds the next step up. CRI-O
// verifies what proxies show by its copy, which a pod writes when it starts: so before
// another certificate is shown each copy must have its authority, and a change has ended
// when none has a former one any more.
//
// Where certificates that must be replaced are near their end, nodes that cannot write are
// left behind, rather than all of them.
//
// A renewal under authorities that stay asks nobody, as with pods: it must go on
// whatever nodes do. Nodes that were away during a change get theirs afterwards.
func (r *rotation) awaitNodes(ctx context.Context, saved *state.State, held []heldLeaf, position pki.Position, next pki.Step) ([]string, error) {
	if saved == nil || saved.NodeConfig == nil {
		return nil, nil // no file is on any node
	}
	i := slices.IndexFunc(held, func(h heldLeaf) bool { return h.role() == pki.OrganizationNode })
	if i < 0 || held[i].held.Leaf == nil || held[i].held.Trust.Empty() {
		return nil, nil // there is nothing that a node could be given
	}
	shown := next.Action == pki.Reissue && !position.Settled && slices.Contains(next.Roles, pki.OrganizationNode)
	if !shown && next.Action != pki.Done {
		return nil, nil
	}
	waiting, err := r.nodeCopies(ctx, held[i].held.Trust, position.Settled)
	if len(waiting) > 0 && shown && nearEnd(held, next.Roles, r.Now()) {
		r.once("nodes are not waited for any longer: the certificates are about to expire, and then no node could pull; the CRI-O of these trusts no proxy until they are done",
			"missing", enumerate(waiting))
		return nil, err
	}
	if len(waiting) > 0 {
		r.once("waiting", "for", "nodes to write the present authorities", "missing", enumerate(waiting),
			"why", "CRI-O must trust what a proxy is about to show, and forget what none shows any more")
	}
	return waiting, err
}

// nearEnd says whether a tenth or less is left of the life of a certificate that is to be
// replaced. What holds a change up has been named since the middle of it.
func nearEnd(held []heldLeaf, roles []string, now time.Time) bool {
	const part = 10
	return slices.ContainsFunc(held, func(h heldLeaf) bool {
		leaf := h.held.Leaf
		return slices.Contains(roles, h.role()) && leaf != nil && now.After(leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore)/part))
	})
}

// nodeCopies deletes each pod once whose node has other authorities than those of trust,
// so that its successor writes these. settled: pods that are not there yet are not waited
// for, since they will write the present ones.
func (r *rotation) nodeCopies(ctx context.Context, trust pki.Bundle, settled bool) ([]string, error) {
	sets, pods, err := r.nodeSets(ctx, names.ComponentNodeConfig)
	if missingRight(err) {
		// Where nodes are given no authorities, the chart gives no such right either.
		sets, pods, err = r.ownersOf(ctx, names.ComponentNodeConfig)
	}
	if err != nil {
		return nil, refuseForbidden(err)
	}
	if len(sets) == 0 {
		return nil, nil
	}
	if err := r.lookAtNodes(ctx, &r.nodes); err != nil {
		return nil, err
	}
	want := slices.Sorted(slices.Values(trust.Fingerprints()))
	var waiting []string
	for _, set := range sets {
		c := cover([]appsv1.DaemonSet{set}, pods, r.nodes.names)
		if !r.givesAuthorities(set, c) {
			continue
		}
		for _, node := range c.down {
			r.once("a node that is not ready holds nothing up; it gets the authorities when it is back", "node", node)
		}
		for _, p := range c.pods {
			switch {
			case !p.done && !settled:
				waiting = append(waiting, r.peerName(&p.Pod)+": it has not written the authorities yet"+because(podComplaint(p.Pod)))
			case !p.done || len(p.report.CA) == 0 || slices.Equal(slices.Sorted(slices.Values(p.report.CA)), want):
			default:
				waiting = append(waiting, r.peerName(&p.Pod)+": the node has other authorities than the present ones, until this pod's successor writes them"+r.replace(ctx, &p.Pod))
			}
		}
		if c.missing != "" && !settled {
			waiting = append(waiting, c.missing)
		}
	}
	return waiting, nil
}

// givesAuthorities says whether the pods of a DaemonSet write the authorities to nodes:
// one says that it did, or all have them mounted and none has got so far yet.
func (r *rotation) givesAuthorities(set appsv1.DaemonSet, c coverage) bool {
	if slices.ContainsFunc(c.pods, func(p nodePod) bool { return len(p.report.CA) > 0 }) {
		return true
	}
	return mountsSecret(set.Spec.Template.Spec, r.Settings.Name+names.SuffixNodeTLS) && !slices.ContainsFunc(c.pods, func(p nodePod) bool { return p.done })
}

// ownersOf stands for the DaemonSets where they may not be listed: as far as their pods
// tell of them, which does not tell of pods that are missing.
func (r *rotation) ownersOf(ctx context.Context, component string) ([]appsv1.DaemonSet, []corev1.Pod, error) {
	pods, err := r.Cluster.Pods.List(ctx, r.selector(component))
	if err != nil {
		return nil, nil, fmt.Errorf("listing the %s pods in namespace %s: %w", component, r.Settings.Namespace, err)
	}
	var sets []appsv1.DaemonSet
	for _, pod := range pods.Items {
		name := ownerOf(pod)
		if name == "" || slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.Name == name }) {
			continue
		}
		set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: pod.Namespace}}
		set.Spec.Template.Spec = pod.Spec
		sets = append(sets, set)
	}
	return sets, pods.Items, nil
}

// replace deletes a pod, once, and returns what keeps it from doing so.
func (r *rotation) replace(ctx context.Context, pod *corev1.Pod) string {
	if r.replaced[pod.UID] {
		return ""
	}
	if err := r.deletePod(ctx, pod); err != nil {
		return fmt.Sprintf(" (%s; kubectl --namespace %s delete pod %s)", refuseForbidden(err), pod.Namespace, pod.Name)
	}
	if r.replaced == nil {
		r.replaced = map[types.UID]bool{}
	}
	r.replaced[pod.UID] = true
	r.Log.Info("a pod was deleted so that its successor writes the present authorities", "pod", pod.Name, "node", pod.Spec.NodeName)
	return ""
}

func because(complaint string) string {
	if complaint == "" {
		return ""
	}
	return " (" + complaint + ")"
}
