// Package rollout decides which pods of a DaemonSet to delete where Kubernetes does not continue an update, as pure
// functions of what the API server reports.
//
// With RollingUpdate, Kubernetes counts pods on nodes that are down as unavailable (pkg/controller/daemon/update.go).
// With maxUnavailable 1, or 10 % of up to ten nodes, one such node is enough, and no other node is updated until it is
// back. With OnDelete, Kubernetes never continues.
package rollout

import (
	"slices"
	"strconv"
	"strings"
)

const (
	// AnnotationGeneration on a DaemonSet and LabelGeneration on its pods are the number of the template. The API
	// server increments it with each change of the template.
	AnnotationGeneration = "deprecated.daemonset.template.generation"
	LabelGeneration      = "pod-template-generation"
	// AnnotationMaxUnavailable on a DaemonSet whose pods are updated when they are deleted is the budget, as that of
	// RollingUpdate.
	AnnotationMaxUnavailable = "zarf-registry/max-unavailable"
	// LabelHash on a pod is the hash of its template.
	LabelHash = "controller-revision-hash"
)

// Set is a DaemonSet.
type Set struct {
	// Generation is the value of AnnotationGeneration. Empty: every pod is current.
	Generation string
	// MaxUnavailable is its budget: a number, or a percentage of its nodes.
	MaxUnavailable string
	// OnDelete is true if Kubernetes updates a pod only when somebody deletes it.
	OnDelete bool
	// MaxSurge, a number or a percentage, is not empty if new pods start before the previous ones end. Then only
	// [ContinueSurge] deletes pods.
	MaxSurge string
	// Observed is true if the status is that of the current specification.
	Observed bool
	// Desired and Updated count nodes: those that should have a pod, and those that have a current one.
	Desired, Updated int
}

// Pod is a pod of a DaemonSet.
type Pod struct {
	Name, UID, Node  string
	Generation, Hash string
	Ready, Deleting  bool
	// Failing is true if a container does not start, or has ended with an error.
	Failing bool
}

// Current returns a function that reports whether a pod has the DaemonSet's current template: its generation, or, as
// pods that a new DaemonSet has adopted, its hash. The controller has the same rule (IsPodUpdated). That of the hash is
// known only from other pods, or from the controller's count.
func Current(set Set, pods []Pod) func(Pod) bool {
	hashes := map[string]bool{}
	for _, p := range pods {
		hashes[p.Hash] = hashes[p.Hash] || p.Generation == set.Generation && p.Hash != ""
	}
	all := set.Generation == "" || set.Observed && set.Updated > 0 && set.Updated >= set.Desired
	return func(p Pod) bool { return all || p.Generation == set.Generation || hashes[p.Hash] }
}

// Continue returns the pods to delete, so that the controller creates current ones in their place: of those that serve,
// at most the budget of the nodes that count, and one until a first current pod is ready; in an order that is the same
// for all who continue a rollout. There are none if a current pod fails, or if the
// controller continues itself, because nodes that do not count use up only a part of the budget. counts maps each node
// to whether it counts: nodes that are down do not.
func Continue(set Set, pods []Pod, counts map[string]bool) []Pod {
	if set.MaxSurge != "" || !set.Observed {
		return nil
	}
	current := Current(set, pods)
	available := map[string]bool{} // by node
	started := false
	var candidates, unready []Pod
	for _, p := range pods {
		available[p.Node] = available[p.Node] || p.Ready && !p.Deleting
		switch {
		case p.Deleting, !counts[p.Node]:
		case current(p) && p.Failing:
			return nil
		case current(p):
			started = started || p.Ready
		case p.Ready:
			candidates = append(candidates, p)
		case set.OnDelete:
			unready = append(unready, p) // nobody else replaces it, and nothing is lost
		}
	}
	missing := max(set.Desired-len(available), 0) // perhaps on nodes that count
	ready, unavailable, down := missing, missing, 0
	for node, is := range available {
		switch {
		case counts[node]:
			ready++
			if !is {
				unavailable++
			}
		case !is:
			down++
		}
	}
	if !set.OnDelete && down < budget(set.MaxUnavailable, set.Desired) {
		return nil
	}
	allowed := budget(set.MaxUnavailable, ready)
	if !started {
		allowed = min(allowed, 1)
	}
	slices.SortFunc(candidates, byNode)
	return append(unready, candidates[:min(max(allowed-unavailable, 0), len(candidates))]...)
}

// ContinueSurge returns the pod to delete where new pods on nodes that do not count use up the surge, and no other new
// pod is on its way: one that serves, so its node has none for a moment. It is for rollouts that have made no progress
// for a while, because the controller usually continues.
func ContinueSurge(set Set, pods []Pod, counts map[string]bool) []Pod {
	if set.MaxSurge == "" || !set.Observed {
		return nil
	}
	current := Current(set, pods)
	stuck := 0
	var serving []Pod
	updated := map[string]bool{}
	for _, p := range pods {
		switch {
		case p.Deleting:
		case current(p) && p.Ready:
			updated[p.Node] = true
		case current(p) && counts[p.Node]:
			return nil
		case current(p):
			stuck++
		case p.Ready && counts[p.Node]:
			serving = append(serving, p)
		}
	}
	serving = slices.DeleteFunc(serving, func(p Pod) bool { return updated[p.Node] })
	if stuck < budget(set.MaxSurge, set.Desired) || len(serving) == 0 {
		return nil
	}
	return []Pod{slices.MinFunc(serving, byNode)}
}

func byNode(a, b Pod) int { return strings.Compare(a.Node+" "+a.Name, b.Node+" "+b.Name) }

// budget returns how many of n nodes a number or a percentage is, which Kubernetes rounds up.
func budget(value string, n int) int {
	percent, is := strings.CutSuffix(value, "%")
	number, err := strconv.Atoi(percent)
	if err != nil {
		return 1 // Kubernetes' default
	}
	if is {
		return (number*n + 99) / 100
	}
	return number
}
