package rollout_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/rollout"
)

func pod(node string, change ...func(*rollout.Pod)) rollout.Pod {
	p := rollout.Pod{Name: "proxy-" + node, UID: "uid-" + node, Node: node, Generation: "1", Hash: "a", Ready: true}
	for _, c := range change {
		c(&p)
	}
	return p
}

func updated(p *rollout.Pod)  { p.Generation, p.Hash = "2", "b" }
func unready(p *rollout.Pod)  { p.Ready = false }
func deleting(p *rollout.Pod) { p.Deleting = true }
func failing(p *rollout.Pod)  { p.Ready, p.Failing = false, true }

func TestContinue(t *testing.T) {
	t.Parallel()
	update := rollout.Set{Generation: "2", MaxUnavailable: "10%", Observed: true, Desired: 3}
	with := func(change func(*rollout.Set)) rollout.Set {
		s := update
		change(&s)
		return s
	}
	down := pod("n3", unready, deleting) // what the controller makes of an outdated pod on a node that is down
	two := with(func(s *rollout.Set) { s.MaxUnavailable, s.Desired = "2", 6 })
	down2 := pod("down2", unready, deleting)
	surge := with(func(s *rollout.Set) { s.MaxSurge = "25%" })
	onDelete := with(func(s *rollout.Set) { s.OnDelete = true })
	for name, c := range map[string]struct {
		set  rollout.Set
		pods []rollout.Pod
		want []string
	}{
		"all nodes are well: the controller continues": {update, []rollout.Pod{pod("n1"), pod("n2"), pod("n3")}, nil},
		"one node is down":                    {update, []rollout.Pod{pod("n2"), pod("n1"), down}, []string{"n1"}},
		"one node is down and has no pod yet": {update, []rollout.Pod{pod("n1"), pod("n2"), pod("n3", updated, unready)}, []string{"n1"}},
		"the successor is pending":            {update, []rollout.Pod{pod("n1", updated, unready), pod("n2"), down}, nil},
		"the previous pod ends":               {update, []rollout.Pod{pod("n1", deleting), pod("n2"), down}, nil},
		"between two pods":                    {update, []rollout.Pod{pod("n2"), down}, nil},
		"the successor is ready":              {update, []rollout.Pod{pod("n1", updated), pod("n2"), down}, []string{"n2"}},
		"all are updated":                     {update, []rollout.Pod{pod("n1", updated), pod("n2", updated), down}, nil},
		"the node is back":                    {update, []rollout.Pod{pod("n1"), pod("n2"), pod("n3", updated)}, nil},
		"the controller does the others":      {update, []rollout.Pod{pod("n1", unready), pod("n2"), down}, nil},
		"adopted by a new DaemonSet, which counts them": {with(func(s *rollout.Set) { s.Updated = 3 }),
			[]rollout.Pod{pod("n1"), pod("n2"), down}, nil},
		"adopted by a new DaemonSet, beside a pod of it": {update, []rollout.Pod{pod("n1"),
			pod("n2", func(p *rollout.Pod) { p.Generation = "2" }), down}, nil},
		"not seen by the controller": {with(func(s *rollout.Set) { s.Observed = false }),
			[]rollout.Pod{pod("n1"), pod("n2"), down}, nil},
		"with surge, the controller continues": {surge, []rollout.Pod{pod("n1"), pod("n2"), down}, nil},
		"one first, whatever the budget": {with(func(s *rollout.Set) { s.MaxUnavailable = "1" }),
			[]rollout.Pod{pod("n1"), pod("n2"), down, pod("n4"), pod("n5")}, []string{"n1"}},
		"then as many as the budget": {two, []rollout.Pod{pod("n1", updated), pod("n2"), down, pod("n4"), pod("n5"), down2},
			[]string{"n2", "n4"}},
		"one successor is pending": {two, []rollout.Pod{pod("n1", updated), pod("n2"), down, pod("n4"),
			pod("n5", updated, unready), down2}, []string{"n2"}},
		"a successor fails": {two, []rollout.Pod{pod("n1", updated), pod("n2", updated, failing), down, pod("n4"), pod("n5"),
			down2}, nil},
		"a previous pod fails, which the controller replaces": {two, []rollout.Pod{pod("n1", updated), pod("n2", failing),
			down, pod("n4"), pod("n5"), down2}, []string{"n4"}},
		"one of the two that may be unavailable is down": {two, []rollout.Pod{pod("n1"), pod("n2"), down, pod("n4"),
			pod("n5"), pod("n6")}, nil},
		"on delete, all nodes are well": {onDelete, []rollout.Pod{pod("n2"), pod("n1"), pod("n4")}, []string{"n1"}},
		"on delete, the successor is pending": {onDelete, []rollout.Pod{pod("n1", updated, unready), pod("n2"), pod("n4")},
			nil},
		"on delete, a node is down":    {onDelete, []rollout.Pod{pod("n1", updated), pod("n2"), down}, []string{"n2"}},
		"on delete, a successor fails": {onDelete, []rollout.Pod{pod("n1", updated, failing), pod("n2"), pod("n4")}, nil},
		"on delete, a previous pod fails": {onDelete, []rollout.Pod{pod("n1"), pod("n2", failing), pod("n4", unready)},
			[]string{"n2", "n4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counts := map[string]bool{"n1": true, "n2": true, "n4": true, "n5": true, "n6": true}
			if name == "the node is back" {
				counts["n3"] = true
			}
			var got []string
			for _, p := range rollout.Continue(c.set, c.pods, counts) {
				got = append(got, p.Node)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("deletes on %q, want %q", got, c.want)
			}
		})
	}
}

// A thousand nodes, a hundred of them down, with a controller that counts them: the rollout ends, and no more than the
// budget of the others are without a pod at any time.
func TestContinueConverges(t *testing.T) {
	t.Parallel()
	set := rollout.Set{Generation: "2", MaxUnavailable: "10%", Observed: true, Desired: 1000}
	counts := map[string]bool{}
	var pods []rollout.Pod
	for i := range set.Desired {
		node := fmt.Sprintf("n%03d", i)
		counts[node] = i >= 100
		p := pod(node)
		p.Ready, p.Deleting = counts[node], !counts[node]
		pods = append(pods, p)
	}
	for round := 1; ; round++ {
		deleted := rollout.Continue(set, pods, counts)
		if len(deleted) == 0 {
			if round != 1+1+10 { // one, then 90 at a time
				t.Errorf("it took %d rounds", round)
			}
			break
		}
		if len(deleted) > 90 {
			t.Fatalf("%d nodes are without a pod", len(deleted))
		}
		for _, d := range deleted {
			at := slices.IndexFunc(pods, func(p rollout.Pod) bool { return p.UID == d.UID })
			updated(&pods[at])
		}
	}
	for _, p := range pods {
		if counts[p.Node] != (p.Generation == "2") {
			t.Fatalf("pod on %s: %+v", p.Node, p)
		}
	}
}

func TestContinueSurge(t *testing.T) {
	t.Parallel()
	set := rollout.Set{Generation: "2", MaxSurge: "25%", Observed: true, Desired: 3}
	sick := []rollout.Pod{pod("n3"), pod("n3", updated, unready)} // on a node that does not count
	for name, c := range map[string]struct {
		pods []rollout.Pod
		want string
	}{
		"a new pod that does not get ready uses it up": {[]rollout.Pod{pod("n2"), pod("n1")}, "n1"},
		"the next one":               {[]rollout.Pod{pod("n2"), pod("n1", updated)}, "n2"},
		"a new pod starts elsewhere": {[]rollout.Pod{pod("n2"), pod("n1", updated, unready)}, ""},
		"a previous pod drains":      {[]rollout.Pod{pod("n1"), pod("n1", updated)}, ""},
		"all are updated":            {[]rollout.Pod{pod("n1", updated), pod("n2", updated)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, p := range rollout.ContinueSurge(set, append(c.pods, sick...), map[string]bool{"n1": true, "n2": true}) {
				got += p.Node
			}
			if got != c.want {
				t.Errorf("deletes that of %q, want %q", got, c.want)
			}
		})
	}
	if got := rollout.ContinueSurge(set, []rollout.Pod{pod("n1"), pod("n2"), pod("n3")}, map[string]bool{"n1": true}); got != nil {
		t.Errorf("without a new pod that holds it up, it deletes %v", got)
	}
}
