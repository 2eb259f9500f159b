package nodes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
)

// stallTime is how long a rollout may make no progress before nodes that hold it up may be excused. A program that is
// injected starts within seconds, and the healer corrects its image within as many.
const stallTime = time.Minute

// surgeTime is how long a rollout with surge may make no progress before a previous pod is deleted without a successor.
const surgeTime = 10 * time.Second

// verdict is what a rollout has reached on a node.
type verdict int

const (
	done    verdict = iota
	serving         // the previous pod still serves
	excused         // nothing waits for the node: it is not ready, or Excuse was called
	failed          // none of them, or not yet
)

// nodeState is what a DaemonSet's pods have reached on a node.
type nodeState struct {
	node string
	verdict
	// late is true if the current pod exists and has not finished, or if the previous one does not end.
	late bool
	// pod is the current one, or else the previous one; nil if there are only terminating ones, or if it is excused.
	pod *corev1.Pod
	// current is true if pod has the current template.
	current bool
}

// progress is what rollouts have reached.
type progress struct {
	nodes []nodeState // by name
	// unseen describes what does not show in nodes; "" if nothing is missing there.
	unseen string
}

// progressOf judges each node by the pods of DaemonSets on it, not by the controller's counters, which do not say where
// pods are. Pods of deleted nodes stay for a while and are ignored. finished reports whether a pod has done what it is
// for, or does it.
func progressOf(sets []appsv1.DaemonSet, pods []corev1.Pod, ready map[string]bool,
	finished func(corev1.Pod) bool) progress {
	var r progress
	for _, set := range sets {
		view, views := viewSet(set), map[string][]corev1.Pod{}
		var all []rollout.Pod
		for _, p := range pods {
			node := nodeOf(p)
			if _, exists := ready[node]; ownerOf(p) == set.Name && (exists || node == "") {
				views[node] = append(views[node], p)
				all = append(all, viewPod(p))
			}
		}
		current := rollout.Current(view, all)
		for node, own := range views {
			r.nodes = append(r.nodes, judge(node, own, ready, current, finished))
		}
		unseen := ""
		switch {
		case !view.Observed:
			unseen = "the controller has not seen the last change"
		case len(views) < view.Desired:
			unseen = fmt.Sprintf("%d of %d pods exist", len(views), view.Desired)
		default:
			continue
		}
		r.unseen = cmp.Or(r.unseen, fmt.Sprintf("DaemonSet %s/%s: %s", set.Namespace, set.Name, unseen))
	}
	slices.SortFunc(r.nodes, func(a, b nodeState) int { return cmp.Compare(a.node, b.node) })
	return r
}

func judge(node string, pods []corev1.Pod, ready map[string]bool, current func(rollout.Pod) bool,
	finished func(corev1.Pod) bool) nodeState {
	if isReady, exists := ready[node]; exists && !isReady {
		return nodeState{node: node, verdict: excused} // no kubelet ends or starts pods there
	}
	s := nodeState{node: node, verdict: failed, late: true}
	serves := false
	for i, p := range pods {
		isCurrent := current(viewPod(p))
		switch {
		case p.DeletionTimestamp != nil, p.Status.Phase == corev1.PodFailed: // which the controller replaces
			continue
		case isCurrent && finished(p):
			return nodeState{node: node, verdict: done, pod: &pods[i], current: true}
		case !isCurrent && release.PodReady(p):
			serves = true
		}
		if s.pod == nil || isCurrent {
			s.pod, s.current = &pods[i], isCurrent
		}
	}
	if serves {
		s.verdict, s.late = serving, s.current
	}
	return s
}

// in returns the names of the nodes with a verdict.
func (r progress) in(v verdict) (names []string) {
	for _, n := range r.nodes {
		if n.verdict == v {
			names = append(names, n.node)
		}
	}
	return names
}

// missing describes what a rollout waits for, or returns "". goal is what pods that have not finished are not.
func (r progress) missing(goal string) string {
	previous := r.in(serving)
	late := r.in(failed)
	switch {
	case r.unseen != "":
		return r.unseen
	case len(late) > 0 && len(previous) > 0:
		return fmt.Sprintf("not %s on %s, and %d pods are not updated yet", goal, listNodes(late), len(previous))
	case len(late) > 0:
		return fmt.Sprintf("not %s on %s", goal, listNodes(late))
	case len(previous) > 0:
		return fmt.Sprintf("%d pods are not updated yet: %s", len(previous), listNodes(previous))
	}
	return ""
}

// suffix names the nodes that are excused, for a result.
func (r progress) suffix() string {
	if names := r.in(excused); len(names) > 0 {
		return "; later, when they are back: " + release.ListNodes(names)
	}
	return ""
}

// nodeWait waits until the pods of a component's DaemonSets have finished on each node.
type nodeWait struct {
	*Observer
	// component is that of the pods, what they are, and goal what they are when they have finished, for people.
	component, what, goal string
	// names are the DaemonSets to wait for. If empty, all existing ones.
	names    []string
	finished func(corev1.Pod) bool
	// act, if not nil, is called with what was seen. It may return what is missing.
	act func(ctx context.Context) (missing string, err error)

	progress progress
	ready    map[string]bool
	reported string
	since    time.Time // when reported changed
}

// run waits. It continues rollouts that the controller does not continue.
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
	w.progress = progressOf(sets, pods, w.ready, w.finished)
	if w.act != nil {
		if missing, err := w.act(ctx); err != nil || missing != "" {
			return missing, err
		}
	}
	if err := w.proceed(ctx, sets, pods); err != nil {
		return "", err
	}
	missing = w.progress.missing(w.goal)
	if missing != w.reported {
		w.reported, w.since = missing, time.Now()
	}
	if missing != "" && time.Since(w.since) >= stallTime {
		w.since = time.Now()
		return missing, w.excuseLate(ctx)
	}
	return missing, nil
}

// proceed continues the rollouts that the controller does not continue.
func (w *nodeWait) proceed(ctx context.Context, sets []appsv1.DaemonSet, pods []corev1.Pod) error {
	for _, set := range sets {
		var own []rollout.Pod
		for _, p := range pods {
			if _, exists := w.ready[nodeOf(p)]; exists && ownerOf(p) == set.Name {
				own = append(own, viewPod(p))
			}
		}
		replace := rollout.Continue(viewSet(set), own, w.ready)
		if w.reported != "" && time.Since(w.since) >= surgeTime {
			replace = append(replace, rollout.ContinueSurge(viewSet(set), own, w.ready)...)
		}
		for _, p := range replace {
			if err := w.DeletePod(ctx, p.Name, p.UID); err != nil {
				return err
			}
			w.Log.Info("replacing a previous pod", "pod", p.Name, "node", p.Node)
		}
	}
	return nil
}

// excuseLate excuses nodes on which a rollout has made no progress: those that accept no pods, and as many others as
// maxFailedNodes allows.
func (w *nodeWait) excuseLate(ctx context.Context) error {
	list, err := w.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	warnings := w.Warnings(ctx)
	var failures []nodeState
	for _, s := range w.progress.nodes {
		switch {
		case !s.late || s.node == "":
		case slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Name == s.node && n.Spec.Unschedulable }):
			w.Excuse(s.node, "it is cordoned: "+w.lateness(s, warnings))
		default:
			failures = append(failures, s)
		}
	}
	ready := 0
	for _, is := range w.ready {
		if is {
			ready++
		}
	}
	if len(failures) > w.MayFail(ready) {
		return nil
	}
	for _, s := range failures {
		w.Fail(s.node, w.lateness(s, warnings))
	}
	return nil
}

func (w *nodeWait) lateness(s nodeState, warnings map[string]string) string {
	if s.pod == nil {
		return "its previous pod does not end"
	}
	return fmt.Sprintf("%s is not %s: %s", w.Object("pod", s.pod.Name), w.goal,
		cmp.Or(PodComplaint(*s.pod), warnings[s.pod.Name], "it does not start"))
}

// Excuse makes this run wait no longer for a node.
func (o *Observer) Excuse(node, reason string) {
	if o.Excused == nil {
		o.Excused = map[string]string{}
	}
	o.Excused[node] = reason
	o.Log.Warn("not waiting for a node; it is brought up to date when it can be", "node", node, "reason", reason)
}

// Fail is Excuse for a ready node, as initHook.maxFailedNodes allows.
func (o *Observer) Fail(node, reason string) {
	o.failures++
	o.Excuse(node, "it fails, as initHook.maxFailedNodes allows: "+reason)
}

// MayFail returns how many more nodes may fail if so many are ready and have not failed yet.
func (o *Observer) MayFail(ready int) int {
	value := intstr.Parse(o.Settings.Finish.MaxFailedNodes)
	n, err := intstr.GetScaledValueFromIntOrPercent(&value, ready+o.failures, false)
	if err != nil {
		return 0
	}
	return n - o.failures
}

func viewSet(set appsv1.DaemonSet) rollout.Set {
	onDelete := set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
	view := rollout.Set{Generation: set.Annotations[rollout.AnnotationGeneration], OnDelete: onDelete,
		MaxUnavailable: set.Annotations[rollout.AnnotationMaxUnavailable],
		Observed:       set.Status.ObservedGeneration >= set.Generation,
		Desired:        int(set.Status.DesiredNumberScheduled), Updated: int(set.Status.UpdatedNumberScheduled)}
	if u := set.Spec.UpdateStrategy.RollingUpdate; !onDelete && u != nil && u.MaxUnavailable != nil {
		view.MaxUnavailable = u.MaxUnavailable.String()
		if u.MaxSurge != nil && strings.TrimSuffix(u.MaxSurge.String(), "%") != "0" {
			view.MaxSurge = u.MaxSurge.String()
		}
	}
	return view
}

func viewPod(p corev1.Pod) rollout.Pod {
	return rollout.Pod{Name: p.Name, UID: string(p.UID), Node: nodeOf(p), Generation: p.Labels[rollout.LabelGeneration],
		Hash: p.Labels[rollout.LabelHash], Ready: release.PodReady(p), Deleting: p.DeletionTimestamp != nil,
		Failing: !release.PodReady(p) && PodComplaint(p) != ""}
}

func ownerOf(pod corev1.Pod) string {
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "DaemonSet" {
			return owner.Name
		}
	}
	return ""
}

// nodeOf returns the node of a DaemonSet's pod: before it is scheduled, the one that its affinity names.
func nodeOf(p corev1.Pod) string {
	a := p.Spec.Affinity
	if p.Spec.NodeName != "" || a == nil || a.NodeAffinity == nil ||
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return p.Spec.NodeName
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// listNodes is release.ListNodes, also for pods without node.
func listNodes(names []string) string {
	for i := range names {
		names[i] = orNone(names[i])
	}
	return release.ListNodes(names)
}
