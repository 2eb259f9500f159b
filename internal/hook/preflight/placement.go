package preflight

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// placement finds pods that no node can run, by what the scheduler filters nodes by. It knows nodes, not the pods on
// them: whether there is room now, only the scheduler can tell.
func (i *Inspection) placement() []Finding {
	var findings []Finding
	for _, w := range i.Settings.Workloads {
		s, path, err := w.Decode()
		if err != nil {
			findings = append(findings, Finding{Check: checkPlacement, Severity: Blocker, Object: "value " + path,
				Cause: "the API server would reject it: " + err.Error(), Remedy: "correct it"})
			continue
		}
		findings = append(findings, i.placementOf(w, s)...)
	}
	return findings
}

// placementOf filters the nodes step by step, and reports the step that leaves none.
func (i *Inspection) placementOf(w settings.Workload, s settings.Scheduling) []Finding {
	add := func(value, object, cause, remedy string, args ...any) []Finding {
		return []Finding{{Check: checkPlacement, Severity: Blocker, Object: object,
			Cause: fmt.Sprintf("%s.%s: ", w.Values, value) + cause, Remedy: fmt.Sprintf(remedy, args...)}}
	}
	left := slices.DeleteFunc(slices.Clone(i.nodes), func(n corev1.Node) bool {
		return w.Architecture != "" && n.Status.NodeInfo.Architecture != w.Architecture
	})
	if len(left) == 0 { // architecture reports it
		return nil
	}
	keep := func(rule func(corev1.Node) bool) (before []corev1.Node, none bool) {
		before = left
		left = slices.DeleteFunc(slices.Clone(left), func(n corev1.Node) bool { return !rule(n) })
		return before, len(left) == 0
	}

	selector := labels.SelectorFromValidatedSet(w.NodeSelector)
	if before, none := keep(func(n corev1.Node) bool { return selector.Matches(labels.Set(n.Labels)) }); none {
		return add("nodeSelector", release.ListNodes(nodeNames(before)),
			fmt.Sprintf("no node has the label %s, so none can run these pods", selector),
			"kubectl label --overwrite node %s %s, or correct %s.nodeSelector", before[0].Name,
			strings.ReplaceAll(selector.String(), ",", " "), w.Values)
	}
	terms := func(n corev1.Node) bool {
		return len(s.NodeTerms) == 0 || slices.ContainsFunc(s.NodeTerms, func(t corev1.NodeSelectorTerm) bool {
			return termSelector(t).Matches(labels.Set(n.Labels))
		})
	}
	if before, none := keep(terms); none {
		return add("affinity", release.ListNodes(nodeNames(before)), "the required node affinity matches no node",
			"label a node, or correct %s.affinity", w.Values)
	}
	if before, none := keep(func(n corev1.Node) bool { return untolerated(n, w, s) == nil }); none {
		taint := untolerated(before[0], w, s)
		if taint.Key == corev1.TaintNodeUnschedulable {
			return add("tolerations", release.ListNodes(nodeNames(before)), "each node that could run these pods is cordoned",
				"kubectl uncordon %s", before[0].Name)
		}
		toleration := fmt.Sprintf("--set %s.tolerations[0].key=%s --set %[1]s.tolerations[0].operator=Exists", w.Values,
			taint.Key)
		return add("tolerations", release.ListNodes(nodeNames(before)),
			fmt.Sprintf("no pod of it tolerates the taint %s, so none of these nodes can run one", taint.ToString()), "%s",
			toleration)
	}
	everywhere := w.Component == names.ComponentProxy || w.Component == names.ComponentNodeConfig
	for _, name := range []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	} {
		request := s.Resources.Requests[name]
		if limit, ok := s.Resources.Limits[name]; ok && request.IsZero() {
			request = limit // the API server's default
		}
		fits := func(n corev1.Node) bool { return offers(n, name).Cmp(request) >= 0 }
		before, none := keep(fits)
		small := slices.DeleteFunc(slices.Clone(before), fits)
		if len(small) == 0 || !none && !everywhere {
			continue
		}
		largest := slices.MaxFunc(small, func(a, b corev1.Node) int { return offers(a, name).Cmp(*offers(b, name)) })
		return add(fmt.Sprintf("resources.requests.%s", name), release.ListNodes(nodeNames(small)),
			fmt.Sprintf("%s is more than a node offers: node %s, the largest of these, has %s", request.String(), largest.Name,
				offers(largest, name)),
			"--set %s.resources.requests.%s=QUANTITY, at most that, which all pods of a node share", w.Values, name)
	}
	return nil
}

// offers returns how much of a resource a node has for pods. One that does not report it has no limit.
func offers(n corev1.Node, name corev1.ResourceName) *resource.Quantity {
	if q, ok := n.Status.Allocatable[name]; ok {
		return &q
	}
	return resource.NewQuantity(1<<62, resource.DecimalSI)
}

// untolerated returns the first taint that keeps pods off a node, or nil. Taints that come and go with the state of a
// node do not count, nor does that of a cordoned node for the pods of DaemonSets.
func untolerated(n corev1.Node, w settings.Workload, s settings.Scheduling) *corev1.Taint {
	daemons := w.Component == names.ComponentProxy || w.Component == names.ComponentNodeConfig
	for _, taint := range n.Spec.Taints {
		own := strings.HasPrefix(taint.Key, "node.kubernetes.io/") ||
			strings.HasPrefix(taint.Key, "node.cloudprovider.kubernetes.io/")
		switch {
		case taint.Effect == corev1.TaintEffectPreferNoSchedule:
		case own && (taint.Key != corev1.TaintNodeUnschedulable || daemons):
		case !slices.ContainsFunc(s.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }):
			return &taint
		}
	}
	return nil
}

// tolerates is corev1's method without a logger. The comparison of numbers needs a feature gate; its result is unknown
// here, and no finding.
func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect, t.Key != "" && t.Key != taint.Key:
		return false
	case t.Operator == "" || t.Operator == corev1.TolerationOpEqual:
		return t.Value == taint.Value
	}
	return true
}

func nodeNames(list []corev1.Node) []string {
	var names []string
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names
}

// termSelector returns the selector of labels in a term. It leaves out what the API would reject, and fields.
func termSelector(term corev1.NodeSelectorTerm) labels.Selector {
	selector := labels.NewSelector()
	for _, e := range term.MatchExpressions {
		if r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values); err == nil {
			selector = selector.Add(*r)
		}
	}
	return selector
}

// operators translates the operators of a node selector that have the same meaning for labels.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}
