package pulltest

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// mirrorTimeout bounds the pull of a mirrored reference on a node whose kubelet reports failures: two attempts.
const mirrorTimeout = 25 * time.Second

// Mirrors runs a pod with the tiny image on every configured node of those that Nodes has verified, by a reference
// whose host is mirrored. Only a node that asks this registry first has it: no other registry does. A failure is in
// the result, and no error, because pulls by the registry's own address work. It returns nil if no node is configured.
func (v *Verifier) Mirrors(ctx context.Context, verified []string) (*state.Mirrors, error) {
	image, err := v.Images.ProbeImage(v.Settings.Mode)
	if err != nil {
		return nil, err
	}
	pods, err := v.ListPods(ctx, names.ComponentNodeConfig)
	if err != nil {
		return nil, err
	}
	configured := map[string]bool{} // of the verified nodes
	for _, name := range verified {
		configured[name] = false
	}
	for _, p := range pods {
		if _, ok := configured[p.Spec.NodeName]; ok {
			configured[p.Spec.NodeName] = true
		}
	}
	list, err := v.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return !configured[n.Name] })
	if len(nodes) == 0 {
		return nil, nil
	}
	m := &state.Mirrors{
		Image:     v.Settings.NodeConfig.MirroredHost() + "/" + image,
		CheckedAt: v.Now().UTC().Truncate(time.Second),
	}
	p := v.puller(m.Image, false)
	p.limit, p.permanent, p.everywhere = mirrorTimeout, nil, true
	var failed []Result
	for _, r := range p.pull(ctx, nodes) {
		switch r.Outcome {
		case Pulled:
			m.Pulled = append(m.Pulled, r.Node)
		case Failed:
			failed = append(failed, r)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	groups := byReason(failed, func(r Result) string { return r.Message })
	slices.SortStableFunc(groups, func(a, b group) int { return len(b.Nodes) - len(a.Nodes) })
	for _, g := range groups[:min(len(groups), listedReasons)] {
		m.Failed = append(m.Failed, state.MirrorFailure(g))
	}
	return m, nil
}
