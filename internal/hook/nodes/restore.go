package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// madeTime bounds the wait for the first pod that restores files. The controller creates these pods
	// at once, unless an object that they refer to is missing.
	madeTime = time.Minute
	// goneTime bounds the deletion of pods: their grace period, plus the time of the kubelet and the
	// garbage collector.
	goneTime = 2 * time.Minute
)

// Restore waits until each ready node has the files back that it had before the release. The pods that restore them
// are created by Helm, or by package install, before Cleanup runs. Restore then clears the directories in the state:
// an interrupted Cleanup may have deleted what the pods need, and the next run must not wait for pods that can never
// start.
func (o *Observer) Restore(ctx context.Context, seed func(context.Context) error) (string, error) {
	sets, err := o.ListDaemonSets(ctx, names.ComponentNodeRestore)
	if err != nil {
		return "", err
	}
	configuring, _, err := o.DaemonSets(ctx, names.ComponentNodeConfig)
	if err != nil {
		return "", err
	}
	_, saved, err := o.LoadState(ctx)
	if err != nil {
		o.Log.Warn("cannot read which directories on nodes may have files of the release", "error", err.Error())
	}
	var directories []string
	if saved != nil && saved.NodeConfig != nil {
		directories = saved.NodeConfig.Directories
	}
	switch {
	case len(sets) == 0:
		o.left(directories, "the release has no pods that restore them, or its hooks were left out")
		return "nothing: there are no pods that restore files, because the release has no files on nodes or its hooks " +
			"were left out", nil
	case err == nil && len(directories) == 0 && len(configuring) == 0:
		// This also holds after a refused installation, which created nothing that these pods need.
		if _, err := o.DeleteDaemonSets(ctx, sets); err != nil {
			return "", err
		}
		return "nothing: the release has no files on nodes, or they were restored", nil
	}
	if err := seed(ctx); err != nil {
		o.Log.Warn("cannot check the payload of the pods that restore files; it may exist nevertheless", "error", err.Error())
	}
	unfinished, err := o.endNodeConfig(ctx)
	if err != nil {
		return "", err
	}
	if len(configuring) == 0 {
		// Nothing records whether the release, which brings what the pods need, was ever applied.
		if complaint := o.restorersMissing(ctx); complaint != nil && ctx.Err() == nil {
			o.left(directories, complaint.Error())
			if _, err := o.DeleteDaemonSets(ctx, sets); err != nil {
				return "", err
			}
			return "nothing: the pods that restore files cannot be created", nil
		}
	}
	w := o.waitFiles(names.ComponentNodeRestore, "the nodes' files to be restored", nil, unfinished)
	if err := w.run(ctx); err != nil {
		return "", fmt.Errorf("%w; fix the problem on the node and run helm uninstall again, or leave the files as they "+
			"are: helm uninstall --no-hooks, then zarf-registry uninstall", err)
	}
	o.logReports(w.progress.pods())
	down := w.progress.in(excused)
	if len(down) > 0 {
		o.Log.Warn("nodes are not ready, and files of the release stay on them; what was there before is beside each, as "+
			"FILE.before-zarf-registry",
			"nodes", release.ListNodes(down))
	}
	if len(directories) > 0 {
		err := o.UpdateState(ctx, func(s *state.State) bool {
			s.NodeConfig = nil
			return true
		})
		if err != nil {
			return "", err
		}
	}
	if _, err := o.DeleteDaemonSets(ctx, sets); err != nil { // Helm deletes them too
		return "", err
	}
	return fmt.Sprintf("done on %d nodes, skipped because they are not ready: %d", len(w.progress.in(done)),
		len(down)), nil
}

// left logs the directories where files may stay that no pod restores.
func (o *Observer) left(directories []string, why string) {
	if len(directories) > 0 {
		o.Log.Warn("files of the release may stay on nodes; each says so in its first line, and what was there before is "+
			"beside it, as FILE.before-zarf-registry",
			"directories", strings.Join(directories, ", "), "reason", why)
	}
}

// restorersMissing returns why no pod that restores files can be created. It is nil if one exists
// or none is wanted.
func (o *Observer) restorersMissing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, madeTime)
	defer cancel()
	return o.Wait(ctx, "the pods that restore the nodes' files", func() (string, error) {
		sets, pods, err := o.DaemonSets(ctx, names.ComponentNodeRestore)
		if err != nil || len(pods) > 0 {
			return "", err
		}
		for _, set := range sets {
			if set.Status.ObservedGeneration < set.Generation || set.Status.DesiredNumberScheduled > 0 {
				return o.Object("DaemonSet", set.Name) + " has no pods", nil
			}
		}
		return "", nil
	}, names.ComponentNodeRestore)
}

// endNodeConfig stops the pods that write files on nodes. It returns the nodes where such a pod may
// have run while the files were restored.
func (o *Observer) endNodeConfig(ctx context.Context) (unfinished map[string]bool, err error) {
	sets, pods, err := o.DaemonSets(ctx, names.ComponentNodeConfig)
	if err != nil {
		return nil, err
	}
	unfinished = map[string]bool{}
	for _, pod := range pods {
		if !readNodePod(pod).done {
			unfinished[pod.Spec.NodeName] = true
		}
	}
	if _, err := o.DeleteDaemonSets(ctx, sets); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	return unfinished, o.Wait(ctx, "the pods that configure nodes to end", func() (string, error) {
		pods, err := o.ListPods(ctx, names.ComponentNodeConfig)
		if err != nil || len(pods) == 0 {
			return "", err
		}
		ready, err := o.NodesReady(ctx)
		if err != nil {
			return "", err
		}
		// The kubelets of other nodes neither stop these pods nor start others.
		left := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !ready[p.Spec.NodeName] })
		var names []string
		for _, p := range left {
			names = append(names, o.PodName(&p))
		}
		return release.List(names), nil
	}, names.ComponentNodeConfig)
}
