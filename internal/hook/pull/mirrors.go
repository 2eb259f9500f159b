package pull

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// mirrorTimeout bounds the pull of a mirrored reference on a node whose kubelet reports failures: two attempts.
const mirrorTimeout = 25 * time.Second

// Mirrors runs a pod with the tiny image on every node that Nodes would verify and that is configured, by a reference
// whose host is mirrored. Only a node that asks this registry first has it: no other registry does. A failure is in the
// result, and no error, because pulls by the registry's own address work. It returns nil if no node is configured.
func (v *Verifier) Mirrors(ctx context.Context) (*state.Mirrors, error) {
	image, err := v.Images.ProbeImage(v.Settings.Mode)
	if err != nil {
		return nil, err
	}
	eligible, _, err := v.eligible(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := v.ListPods(ctx, names.ComponentNodeConfig)
	if err != nil {
		return nil, err
	}
	eligible = slices.DeleteFunc(eligible, func(n corev1.Node) bool {
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name })
	})
	if len(eligible) == 0 {
		return nil, nil
	}
	m := &state.Mirrors{
		Image:     v.Settings.NodeConfig.MirroredHost() + "/" + image,
		CheckedAt: v.Now().UTC().Truncate(time.Second),
	}
	p := v.puller(m.Image, false)
	p.verify.limit, p.verify.permanent, p.verify.everywhere = mirrorTimeout, nil, true
	failed := map[string]*state.MirrorFailure{}
	for _, r := range p.Pull(ctx, eligible) {
		switch r.Outcome {
		case Pulled:
			m.Pulled = append(m.Pulled, r.Name)
		case Failed:
			if failed[r.Message] == nil {
				failed[r.Message] = &state.MirrorFailure{Reason: r.Message}
			}
			failed[r.Message].Nodes = append(failed[r.Message].Nodes, r.Name)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, f := range failed {
		m.Failed = append(m.Failed, *f)
	}
	slices.SortFunc(m.Failed, func(a, b state.MirrorFailure) int {
		return cmp.Or(len(b.Nodes)-len(a.Nodes), strings.Compare(a.Reason, b.Reason))
	})
	if len(m.Failed) > listedReasons {
		m.Failed = m.Failed[:listedReasons]
	}
	return m, nil
}
