package certs

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// roundTimeout limits the queries of all pods if the wait timeout has expired.
const roundTimeout = 15 * time.Second

// components are the components whose pods mount the Secret of a role. No pod mounts the push
// certificate.
var components = map[string]string{pki.OrganizationServer: names.ComponentRegistry,
	pki.OrganizationNode: names.ComponentProxy, pki.OrganizationCache: names.ComponentCache}

// peer is a running pod that loads certificates.
type peer struct {
	pod  corev1.Pod
	role string
}

// key identifies a pod. A pod name is not enough, because it can be reused.
func (p peer) key() string { return p.pod.Name + " " + string(p.pod.UID) }

// peers lists the pods on ready nodes that mount the Secrets. Pods on other nodes are only logged:
// they serve nobody, and load everything when their node is back. So are those on excluded nodes.
func (r *Rotation) peers(ctx context.Context, held []heldLeaf) ([]peer, error) {
	var out []peer
	for _, h := range held {
		if components[h.role()] == "" {
			continue
		}
		pods, err := r.RunningPods(ctx, &r.nodes, components[h.role()], func(pod *corev1.Pod) {
			r.once("a pod on a node that is not ready, or excluded, does not block the rotation", "pod", pod.Name,
				"node", pod.Spec.NodeName)
		})
		if err != nil {
			return nil, err
		}
		for _, pod := range pods {
			out = append(out, peer{pod, h.role()})
		}
	}
	return out, nil
}

// observe returns what the pods have loaded. It queries only the pods that have not loaded the
// target before.
func (r *Rotation) observe(
	ctx context.Context, held []heldLeaf, position pki.Position, end time.Time,
) ([]pki.Loaded, error) {
	peers, err := r.peers(ctx, held)
	if err != nil {
		return nil, err
	}
	target := fmt.Sprint(position.Due, position.Want.Fingerprints())
	for _, h := range held {
		leaf := ""
		if h.held.Leaf != nil {
			leaf = pki.Fingerprint(h.held.Leaf)
		}
		target += fmt.Sprint(h.role(), leaf, h.held.Trust.Fingerprints())
	}
	if r.target != target {
		r.target, r.loaded, r.refresher = target, map[string]pki.Loaded{}, reload.Refresher{}
	}
	ctx, cancel := context.WithTimeout(ctx, max(roundTimeout, time.Until(end)))
	defer cancel()
	answers := make([]pki.Loaded, len(peers))
	var group errgroup.Group
	group.SetLimit(reload.MaxQueries)
	for i, p := range peers {
		if seen, ok := r.loaded[p.key()]; ok {
			answers[i] = seen
			continue
		}
		group.Go(func() error {
			answers[i] = r.query(ctx, p)
			return nil
		})
	}
	_ = group.Wait() // never fails
	var out []pki.Loaded
	r.late = nil
	for i, p := range peers {
		if answers[i].Problem != "" && !release.PodReady(p.pod) {
			r.once("a pod that is not ready and cannot be queried does not block the rotation", "pod", p.pod.Name,
				"problem", answers[i].Problem)
			r.late = append(r.late, p.pod.Name)
			continue
		}
		out = append(out, answers[i])
		alone := position
		alone.Loaded = answers[i : i+1]
		if pki.Next(alone).Action == pki.Wait {
			r.late = append(r.late, p.pod.Name)
		} else {
			r.loaded[p.key()] = answers[i]
		}
	}
	return out, nil
}

// query asks a pod what it has loaded.
func (r *Rotation) query(ctx context.Context, p peer) pki.Loaded {
	out := pki.Loaded{Pod: r.PodName(&p.pod), Role: p.role}
	report, err := r.Pods.Loaded(ctx, &p.pod)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	out.Leaf, out.LoadError = report.Certificates.Leaf.SHA256, report.Certificates.Problem
	for _, ca := range report.Certificates.TrustedCAs {
		out.Trust = append(out.Trust, ca.SHA256)
	}
	return out
}

// refreshAll makes kubelets refresh the written Secrets at once if no pod was waited for. It is
// best effort.
func (r *Rotation) refreshAll(ctx context.Context, held []heldLeaf) {
	if len(r.wrote) == 0 || r.refresher.Started() {
		return
	}
	peers, err := r.peers(ctx, held)
	if err != nil {
		r.once("cannot list the pods to refresh", "error", err.Error())
		return
	}
	for _, p := range peers {
		r.late = append(r.late, p.pod.Name)
	}
	r.refreshLate(ctx)
}

// refreshLate makes kubelets refresh the Secrets of the pods that have not loaded them yet. It is
// best effort: kubelets refresh them on their own after a while.
func (r *Rotation) refreshLate(ctx context.Context) {
	if err := r.refresher.Refresh(ctx, r.Pods, r.late); err != nil {
		r.once("cannot annotate pods; their kubelets refresh the Secrets within 90 seconds", "error", err.Error())
	}
}

// once logs a line that every round would repeat only the first time.
func (r *Rotation) once(message string, args ...any) {
	if r.first(message, args...) {
		r.Log.Info(message, args...)
	}
}

// waitFor reports what a round waits for, the first time.
func (r *Rotation) waitFor(what, missing string, more ...any) {
	if r.first(what, append(more, missing)...) {
		r.Progress.Waiting(what, missing, more...)
	}
}

func (r *Rotation) first(what string, args ...any) bool {
	key := fmt.Sprint(append([]any{what}, args...)...)
	if r.told[key] {
		return false
	}
	if r.told == nil {
		r.told = map[string]bool{}
	}
	r.told[key] = true
	return true
}
