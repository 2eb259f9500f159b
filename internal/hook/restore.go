package hook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// madeTime is how long the first of the pods that put files back may take to be made. The
// controller makes them at once, unless something that they name is not there.
const madeTime = time.Minute

// restoreNodes waits until each ready node has back the files that it had before the
// release, which pods do that Helm makes before Cleanup runs. It forgets the directories
// then: a run that is ended afterwards has taken away what such pods need, so that those
// of the next can never run.
func (h *Hook) restoreNodes(ctx context.Context) (string, error) {
	sets, err := h.Cluster.DaemonSets.List(ctx, h.selector(names.ComponentNodeRestore))
	if err != nil {
		return "", fmt.Errorf("listing the %s DaemonSets in namespace %s: %w", names.ComponentNodeRestore, h.Settings.Namespace, err)
	}
	configuring, _, err := h.nodeSets(ctx, names.ComponentNodeConfig)
	if err != nil {
		return "", err
	}
	_, saved, err := h.loadState(ctx)
	if err != nil {
		h.Log.Warn("where nodes may have files of the release cannot be read", "error", err.Error())
	}
	var directories []string
	if saved != nil && saved.NodeConfig != nil {
		directories = saved.NodeConfig.Directories
	}
	switch {
	case len(sets.Items) == 0:
		h.left(directories, "the release has no pods that would put back what was there before, or its hooks were left out")
		return "nothing: no pods are there that would, because the release has no files on nodes or its hooks were left out", nil
	case err == nil && len(directories) == 0 && len(configuring) == 0:
		// So it is after an installation that was refused, too: it has made nothing that these pods need.
		if _, err := h.deleteDaemonSets(ctx, sets.Items); err != nil {
			return "", err
		}
		return "nothing: the release has no files on nodes, or they have been put back", nil
	}
	if err := h.seedRestorers(ctx); err != nil {
		h.Log.Warn("the payload for the pods that put files back could not be looked at; they may have it all the same", "error", err.Error())
	}
	unfinished, err := h.endNodeConfig(ctx)
	if err != nil {
		return "", err
	}
	if len(configuring) == 0 {
		// Nothing tells whether the release was ever applied, which brings what the pods need.
		if complaint := h.restorersMissing(ctx); complaint != nil && ctx.Err() == nil {
			h.left(directories, complaint.Error())
			if _, err := h.deleteDaemonSets(ctx, sets.Items); err != nil {
				return "", err
			}
			return "nothing: the pods that would cannot be made", nil
		}
	}
	w := &nodeWait{Hook: h, component: names.ComponentNodeRestore, what: "the nodes' files to be put back", again: unfinished}
	if err := w.run(ctx); err != nil {
		return "", fmt.Errorf("%w; put that right on the node and run helm uninstall again, or leave the files as they are: helm uninstall --no-hooks, then init-hook cleanup", err)
	}
	h.tellOfNodes(w.coverage.pods)
	if len(w.coverage.down) > 0 {
		h.Log.Warn("nodes are not ready, and files of the release stay on them; what was there before is beside each, as FILE.before-zarf-registry",
			"nodes", named("node", w.coverage.down))
	}
	if len(directories) > 0 {
		err := h.updateState(ctx, func(s *state.State) bool {
			s.NodeConfig = nil
			return true
		})
		if err != nil {
			return "", err
		}
	}
	if _, err := h.deleteDaemonSets(ctx, sets.Items); err != nil { // Helm does so too
		return "", err
	}
	return fmt.Sprintf("done on %d nodes, skipped because they are not ready: %d", len(w.coverage.pods), len(w.coverage.down)), nil
}

// seedRestorers writes the payload of the pods that put files back, where it is missing:
// they are of the last revision, which Prepare may have refused before it wrote its own.
func (h *Hook) seedRestorers(ctx context.Context) error {
	if !h.Settings.Injector.Enabled || h.Settings.Injector.PayloadID == "" {
		return nil
	}
	p := &preparation{inspection{Hook: h}}
	if _, err := p.look(ctx); err != nil {
		return err
	}
	_, err := p.seedPrograms(ctx, []string{"registry-node"})
	return err
}

// left says where files may stay that nobody puts back.
func (h *Hook) left(directories []string, why string) {
	if len(directories) > 0 {
		h.Log.Warn("files of the release may stay on nodes; each says so in its first line, and what was there before is beside it, as FILE.before-zarf-registry",
			"in", strings.Join(directories, ", "), "why", why)
	}
}

// restorersMissing says what keeps all pods that put files back from being made, nil
// where one is there or none is wanted.
func (h *Hook) restorersMissing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, madeTime)
	defer cancel()
	return h.wait(ctx, "the pods that put the nodes' files back", func() (string, error) {
		sets, pods, err := h.nodeSets(ctx, names.ComponentNodeRestore)
		if err != nil || len(pods) > 0 {
			return "", err
		}
		for _, set := range sets {
			if set.Status.ObservedGeneration < set.Generation || set.Status.DesiredNumberScheduled > 0 {
				return "none of " + h.object("DaemonSet", set.Name) + " is made", nil
			}
		}
		return "", nil
	}, names.ComponentNodeRestore)
}

// endNodeConfig has nobody write files of nodes any more, and returns the nodes where
// somebody still might have while they were put back.
func (h *Hook) endNodeConfig(ctx context.Context) (unfinished map[string]bool, err error) {
	sets, pods, err := h.nodeSets(ctx, names.ComponentNodeConfig)
	if err != nil {
		return nil, err
	}
	unfinished = map[string]bool{}
	for _, pod := range pods {
		if !readNodePod(pod).done {
			unfinished[pod.Spec.NodeName] = true
		}
	}
	if _, err := h.deleteDaemonSets(ctx, sets); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	return unfinished, h.wait(ctx, "the pods that configure nodes to end", func() (string, error) {
		pods, err := h.Cluster.Pods.List(ctx, h.selector(names.ComponentNodeConfig))
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		ready, err := h.nodesReady(ctx)
		if err != nil {
			return "", err
		}
		// On other nodes nobody tells the pod to end, and nobody else runs either.
		left := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !ready[p.Spec.NodeName] })
		var names []string
		for _, p := range left {
			names = append(names, h.peerName(&p))
		}
		return enumerate(names), nil
	}, names.ComponentNodeConfig)
}
