package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// world simulates what the DaemonSet controller (rollingUpdate and updateDaemonSetStatus of
// pkg/controller/daemon/update.go, with maxUnavailable, or OnDelete) and kubelets do between two looks at the DaemonSet.
type world struct {
	set   *appsv1.DaemonSet
	nodes []corev1.Node
	pods  []corev1.Pod
	// down are the nodes whose kubelet is off; hangs are those whose pods neither start nor end; broken, if true, is a
	// template whose pods do not get ready.
	down, hangs map[string]bool
	broken      bool
	made        int
	fewest      int // ready pods on nodes that are not down at any time
}

func newWorld(nodes int) *world {
	w := &world{down: map[string]bool{}, hangs: map[string]bool{}, fewest: nodes}
	budget := intstr.FromString("10%")
	w.set = &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "proxy", Namespace: "zarf", UID: "set",
		Annotations: map[string]string{rollout.AnnotationGeneration: "1"}}}
	w.set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &budget}
	for i := range nodes {
		w.nodes = append(w.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1)}})
	}
	w.sync()
	w.sync()
	w.set.Annotations[rollout.AnnotationGeneration] = "2"
	return w
}

func (w *world) updated(p corev1.Pod) bool {
	return p.Labels[rollout.LabelGeneration] == w.set.Annotations[rollout.AnnotationGeneration]
}

func (w *world) sync() {
	for i := range w.nodes {
		status := corev1.ConditionTrue
		if w.down[w.nodes[i].Name] {
			status = corev1.ConditionUnknown
		}
		w.nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
	// Kubelets, and the node controller.
	w.pods = slices.DeleteFunc(w.pods, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil && !w.down[nodeOf(p)] && !w.hangs[nodeOf(p)]
	})
	ready := 0
	for i := range w.pods {
		p := &w.pods[i]
		node := nodeOf(*p)
		starts := !w.hangs[node] && (!w.broken || !w.updated(*p)) || p.Status.Phase == corev1.PodRunning
		status := corev1.ConditionFalse
		if !w.down[node] && starts {
			p.Spec.NodeName, p.Status.Phase, status = node, corev1.PodRunning, corev1.ConditionTrue
			ready++
		} else if !w.down[node] && w.broken {
			p.Spec.NodeName = node
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "proxy",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "broken"}}}}
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	}
	if len(w.pods) > 0 {
		w.fewest = min(w.fewest, ready)
	}
	// The controller.
	unavailable := 0
	var replace, candidates []string
	w.set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(len(w.nodes))}
	for _, n := range w.nodes {
		var own []corev1.Pod
		for _, p := range w.pods {
			if nodeOf(p) == n.Name {
				own = append(own, p)
			}
		}
		switch {
		case len(own) == 0:
			w.start(n.Name)
			unavailable++
		case own[0].DeletionTimestamp != nil:
			unavailable++
		case w.updated(own[0]):
			w.set.Status.UpdatedNumberScheduled++
			if !release.PodReady(own[0]) {
				unavailable++
			}
		case !release.PodReady(own[0]):
			unavailable++
			replace = append(replace, own[0].Name)
		default:
			candidates = append(candidates, own[0].Name)
		}
	}
	if w.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return
	}
	budget, _ := intstr.GetScaledValueFromIntOrPercent(w.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable,
		len(w.nodes), true)
	for _, name := range append(replace, candidates[:min(max(budget-unavailable, 0), len(candidates))]...) {
		_ = fakePods{w}.Delete(context.Background(), name, metav1.DeleteOptions{})
	}
}

// heal does what the healer does between two looks.
func (w *world) heal() {
	var pods []rollout.Pod
	for _, p := range w.pods {
		pods = append(pods, viewPod(p))
	}
	counts := map[string]bool{}
	for _, n := range w.nodes {
		counts[n.Name] = plan.NodeReady(n)
	}
	for _, p := range rollout.Continue(viewSet(*w.set), pods, counts) {
		_ = fakePods{w}.Delete(context.Background(), p.Name, metav1.DeleteOptions{})
	}
}

func (w *world) start(node string) {
	w.made++
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("proxy-%d", w.made), Namespace: "zarf",
		Labels:          map[string]string{rollout.LabelGeneration: w.set.Annotations[rollout.AnnotationGeneration]},
		OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: w.set.Name}}}}
	p.UID = types.UID(p.Name)
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
				Values: []string{node}}}}}}}}
	w.pods = append(w.pods, p)
}

type (
	fakeNodes  struct{ *world }
	fakePods   struct{ *world }
	fakeEvents struct{}
	fakeSets   struct{ *world }
)

func (f fakeNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{Items: f.nodes}, nil
}

func (f fakePods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: slices.Clone(f.pods)}, nil
}

func (f fakePods) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	for i := range f.pods {
		if f.pods[i].Name == name {
			f.pods[i].DeletionTimestamp = &metav1.Time{Time: time.Now()}
			f.pods[i].Status.Conditions = nil
		}
	}
	return nil
}

func (fakeEvents) List(context.Context, metav1.ListOptions) (*corev1.EventList, error) {
	return &corev1.EventList{}, nil
}

func (f fakeSets) List(context.Context, metav1.ListOptions) (*appsv1.DaemonSetList, error) {
	f.sync()
	return &appsv1.DaemonSetList{Items: []appsv1.DaemonSet{*f.set.DeepCopy()}}, nil
}

func (fakeSets) Delete(context.Context, string, metav1.DeleteOptions) error { return nil }

func TestARolloutReachesTheNodesThatAreWell(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes   int
		change  func(*world)
		allowed string // maxFailedNodes
		want    string // in the result
		err     string // in the error
		old     []string
		excused []string
		fewest  int  // ready pods, besides those of the nodes that are not well
		rolling bool // not with OnDelete
	}{
		"all are well": {nodes: 3, want: "3 nodes have a ready proxy", fewest: 2},
		"of many, one is off": {nodes: 30, change: func(w *world) { w.down["n3"] = true },
			want: "29 nodes have a ready proxy; later, when they are back: node n3", old: []string{"n3"}, fewest: 26},
		"one is off": {nodes: 3, change: func(w *world) { w.down["n3"] = true },
			want: "2 nodes have a ready proxy; later, when they are back: node n3", old: []string{"n3"}, fewest: 1},
		"half are off": {nodes: 4, change: func(w *world) { w.down["n1"], w.down["n3"] = true, true },
			want: "2 nodes have a ready proxy; later, when they are back: nodes n1, n3", old: []string{"n1", "n3"}, fewest: 1},
		"one is off, and new pods fail: one node loses its pod": {nodes: 4, change: func(w *world) {
			w.down["n1"], w.broken = true, true
		}, err: "not ready on node n2, and 2 pods are not updated yet; pod zarf/proxy-5 on node n2: container proxy exited " +
			"with code 1: broken", old: []string{"n1", "n3", "n4"}, fewest: 2},
		"one is cordoned": {nodes: 3, change: func(w *world) { w.nodes[0].Spec.Unschedulable = true },
			want: "3 nodes have a ready proxy", fewest: 2},
		"one is cordoned, and its runtime hangs": {nodes: 3, change: func(w *world) {
			w.nodes[0].Spec.Unschedulable, w.hangs["n1"] = true, true
		}, want: "2 nodes have a ready proxy; later, when they are back: node n1", old: []string{"n1"},
			excused: []string{"it is cordoned: its previous pod does not end"}, fewest: 1},
		"the runtime of a ready one hangs": {nodes: 3, change: func(w *world) { w.hangs["n1"] = true },
			err: "not ready on node n1, and 2 pods are not updated yet", old: []string{"n1", "n2", "n3"}, fewest: 2},
		"the runtime of a ready one hangs, which is allowed": {nodes: 3, allowed: "1",
			change: func(w *world) { w.hangs["n1"] = true },
			want:   "2 nodes have a ready proxy; later, when they are back: node n1", old: []string{"n1"},
			excused: []string{"it fails, as initHook.maxFailedNodes allows: its previous pod does not end"}, fewest: 1},
		"two of three hang, and 50 % may": {nodes: 3, allowed: "50%", rolling: true, change: func(w *world) {
			budget := intstr.FromInt32(3)
			w.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &budget
			w.hangs["n1"], w.hangs["n2"] = true, true
		}, err: "not ready on nodes n1, n2", old: []string{"n1", "n2"}},
	} {
		run := func(t *testing.T, onDelete bool) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(c.nodes)
				if onDelete {
					w.set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
					w.set.Annotations[rollout.AnnotationMaxUnavailable] = "10%"
				}
				if c.change != nil {
					c.change(w)
				}
				w.fewest = c.nodes
				quiet := slog.New(slog.DiscardHandler)
				o := &Observer{Release: &release.Release{Settings: settings.Settings{Namespace: "zarf", Name: "zarf-registry",
					Mode: state.ModeProxy, Finish: settings.Finish{MaxFailedNodes: c.allowed}},
					Log: quiet, Progress: release.Logged{Log: quiet}, Now: time.Now},
					Cluster: Cluster{Nodes: fakeNodes{w}, Pods: fakePods{w}, Events: fakeEvents{}, DaemonSets: fakeSets{w}}}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				did, err := o.WaitProxies(ctx)
				if c.err == "" && (err != nil || did != c.want) || c.err != "" && (err == nil ||
					!strings.Contains(err.Error(), c.err)) {
					t.Errorf("%q, %v", did, err)
				}
				var old []string
				for _, p := range w.pods {
					if !w.updated(p) {
						old = append(old, nodeOf(p))
					}
				}
				slices.Sort(old)
				var reasons []string
				for _, reason := range o.Excused {
					reasons = append(reasons, reason)
				}
				if !slices.Equal(old, c.old) || !slices.Equal(reasons, c.excused) {
					t.Errorf("previous pods remain on %q, excused with %q", old, reasons)
				}
				if w.fewest < c.fewest {
					t.Errorf("at one time, only %d proxies were ready", w.fewest)
				}
				if err != nil {
					return
				}
				// What is well again is brought up to date without this program.
				clear(w.down)
				clear(w.hangs)
				for range 10 * c.nodes {
					w.sync()
					w.heal()
				}
				if slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return !w.updated(p) || !release.PodReady(p) }) {
					t.Error("nodes that came back are not up to date")
				}
			})
		}
		t.Run(name, func(t *testing.T) { run(t, false) })
		if !c.rolling {
			t.Run(name+", on delete", func(t *testing.T) { run(t, true) })
		}
	}
}

// A previous proxy on a node that is down holds the port until the kubelet is back, so the pod of a new DaemonSet has no
// node yet.
func TestAPendingPodBelongsToItsNode(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	p := w.pods[0]
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Message: "1 node(s) didn't have free ports"}}}
	w.set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1}
	for isReady, want := range map[bool]string{true: "not ready on node n1", false: ""} {
		r := progressOf([]appsv1.DaemonSet{*w.set}, []corev1.Pod{p}, map[string]bool{"n1": isReady}, release.PodReady)
		if got := r.missing("ready"); got != want {
			t.Errorf("the node is ready: %t: waits for %q, want %q", isReady, got, want)
		}
	}
}
