package nodes

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// filesWait waits until pods have written their files on each node.
type filesWait struct {
	nodeWait
	// again are nodes whose pod must run once more even if it has finished.
	again  map[string]bool
	looked bool
}

func (o *Observer) waitFiles(component, what string, names []string, again map[string]bool) *filesWait {
	w := &filesWait{nodeWait: nodeWait{Observer: o, component: component, what: what, goal: "done", names: names,
		finished: filesWritten}, again: again}
	w.act = w.intervene
	return w
}

func filesWritten(p corev1.Pod) bool { return readNodePod(p).done }

// intervene returns a Refusal as soon as a node refuses, because a retry would fail the same way.
func (w *filesWait) intervene(ctx context.Context) (missing string, err error) {
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
	return "", w.refusals()
}

// startAnew deletes the pods that failed before this wait began. The cause may be fixed by now, and
// successors start at once, while the pods themselves would wait for their back-off. Any failure
// from now on counts.
func (w *filesWait) startAnew(ctx context.Context) (started int, err error) {
	for _, p := range w.progress.pods() {
		if p.failed == "" && !w.again[p.Spec.NodeName] {
			continue
		}
		if err := w.DeletePod(ctx, p.Name, string(p.UID)); err != nil {
			return started, err
		}
		started++
	}
	return started, nil
}

// refusals returns an error that names the nodes that refuse. A previous pod says nothing about the configuration.
func (w *filesWait) refusals() error {
	var refusals []string
	for _, s := range w.progress.nodes {
		if s.pod == nil || !s.current {
			continue
		}
		if p := readNodePod(*s.pod); p.failed != "" && p.exit == exitcode.Refused {
			refusals = append(refusals, fmt.Sprintf("node %s refuses: %s (%s)", s.node,
				cmp.Or(terminationProblem("", p.report, true), p.failed), w.Object("pod", p.Name)))
		}
	}
	if len(refusals) == 0 {
		return nil
	}
	return exitcode.Refuse("%s", release.List(refusals))
}

// pods returns the pods that write files, apart from those on nodes for which nothing waits.
func (r progress) pods() (pods []nodePod) {
	for _, s := range r.nodes {
		if s.pod != nil {
			pods = append(pods, readNodePod(*s.pod))
		}
	}
	return pods
}
