package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/zarf-dev/zarf-registry/internal/plan"
)

// Volumes is what is known about the volumes of pods.
type Volumes struct {
	// Pods are the pods of the same component.
	Pods []corev1.Pod
	// Nodes are all nodes, nil if unknown.
	Nodes []corev1.Node
	// Why is the newest event of the pods' claim, "" if unknown.
	Why string
	// Volume is the volume of the pods' claim, nil if unknown.
	Volume *corev1.PersistentVolume
}

// ClaimOf returns the name of the first volume claim of a pod, or "".
func ClaimOf(p corev1.PodSpec) string {
	for _, v := range p.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Advice returns which claim, volume and nodes a complaint of a pod is about, and what to do. It returns "" if the
// complaint, from the pod's status or its newest event, is not about its claim. It recognizes the messages of
// Kubernetes 1.30 to 1.37.
func (v Volumes) Advice(p corev1.Pod, complaint string) string {
	name := ClaimOf(p.Spec)
	if name == "" {
		return ""
	}
	claim := fmt.Sprintf("PersistentVolumeClaim %s/%s", p.Namespace, name)
	kubectl := "kubectl --namespace " + p.Namespace
	// The claim exists as long as a pod with a node uses it. The pod's successor gets none until there is a new claim.
	deletion := fmt.Sprintf("%s delete persistentvolumeclaim/%s pod/%s", kubectl, name, p.Name)
	switch {
	case strings.HasPrefix(complaint, "FailedAttachVolume: "):
		return v.attached(p, claim)
	// "volume node affinity conflict" or, since 1.34, "didn't match PersistentVolume's node affinity".
	case strings.Contains(complaint, "olume") && strings.Contains(complaint, "node affinity"):
		return v.bound(claim, deletion)
	case strings.Contains(complaint, "PersistentVolumeClaims"), strings.Contains(complaint, "persistentvolumeclaim"):
		if v.Why != "" {
			return fmt.Sprintf("%s has no volume (%s): %s describe persistentvolumeclaim %s shows more", claim, v.Why, kubectl,
				name)
		}
		return fmt.Sprintf("%s has no volume: %s describe persistentvolumeclaim %s shows why", claim, kubectl, name)
	case strings.Contains(complaint, ".rootdirectory") && strings.Contains(complaint, "permission denied"):
		return fmt.Sprintf("the directory is the volume%s of %s: change its owner in the storage, or, to use another "+
			"StorageClass, run %s and install again with another registry.persistence.storageClass",
			v.name(), claim, deletion)
	}
	return ""
}

// name returns the name of the volume after a space, or "".
func (v Volumes) name() string {
	if v.Volume == nil {
		return ""
	}
	return " " + v.Volume.Name
}

// attached describes which node still has a volume that only one node at a time can have.
func (v Volumes) attached(p corev1.Pod, claim string) string {
	i := slices.IndexFunc(v.Pods, func(other corev1.Pod) bool {
		return ClaimOf(other.Spec) == ClaimOf(p.Spec) && other.Spec.NodeName != "" && other.Spec.NodeName != p.Spec.NodeName
	})
	node, user := "", ""
	if i >= 0 {
		node = v.Pods[i].Spec.NodeName
		user = fmt.Sprintf(" for pod %s/%s", p.Namespace, v.Pods[i].Name)
	}
	node = cmp.Or(node, v.attachedTo(p.Spec.NodeName))
	if node == "" {
		return fmt.Sprintf("another node may still have the volume%s of %s, which kubectl get volumeattachments lists, or "+
			"the storage cannot attach it", v.name(), claim)
	}
	has := fmt.Sprintf("node %s still has the volume%s of %s%s", node, v.name(), claim, user)
	j := slices.IndexFunc(v.Nodes, func(n corev1.Node) bool { return n.Name == node })
	switch {
	case v.Nodes == nil, j >= 0 && plan.NodeReady(v.Nodes[j]):
		return has + " and detaches it when that pod has ended"
	case j < 0:
		return has + ", and does not exist: Kubernetes detaches it within 6 minutes"
	}
	return fmt.Sprintf("%s, and is not ready: start that node, or, only if it is shut down, run kubectl taint nodes %s "+
		"%s=nodeshutdown:NoExecute, which detaches the volume", has, node, corev1.TaintNodeOutOfService)
}

// attachedTo returns the node other than that one whose status says that it has the volume, or "".
func (v Volumes) attachedTo(but string) string {
	if v.Volume == nil {
		return ""
	}
	handle := v.Volume.Name // in-tree drivers
	if csi := v.Volume.Spec.CSI; csi != nil {
		handle = csi.Driver + "^" + csi.VolumeHandle
	}
	for _, n := range v.Nodes {
		if n.Name != but && slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
			return strings.HasSuffix(string(a.Name), "/"+handle)
		}) {
			return n.Name
		}
	}
	return ""
}

// bound describes the nodes where a volume can be used, none of which can run the pod.
func (v Volumes) bound(claim, deletion string) string {
	if v.Volume == nil || v.Nodes == nil || v.Volume.Spec.NodeAffinity == nil ||
		v.Volume.Spec.NodeAffinity.Required == nil {
		return "the volume of " + claim + " can only be used on some nodes, which zarf-registry status lists"
	}
	var where, states []string
	for _, term := range v.Volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		selector := TermSelector(term)
		where = append(where, selector.String())
		for _, n := range v.Nodes {
			if selector.Matches(labels.Set(n.Labels)) {
				states = append(states, nodeState(n))
			}
		}
	}
	volume := fmt.Sprintf("the volume %s of %s can only be used on nodes with %s", v.Volume.Name, claim,
		strings.Join(where, " or "))
	if len(states) == 0 {
		return fmt.Sprintf("%s, and there is no such node: start it again, or, to begin with an empty registry, run %s "+
			"and install again", volume, deletion)
	}
	slices.Sort(states)
	return volume + ": " + strings.Join(slices.Compact(states), "; ")
}

// TermSelector returns the selector of labels in a term. It leaves out what the API would reject, and fields.
func TermSelector(term corev1.NodeSelectorTerm) labels.Selector {
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

// nodeState describes why a node may not run a pod, and what to do.
func nodeState(n corev1.Node) string {
	switch {
	case !plan.NodeReady(n):
		return fmt.Sprintf("node %s is not ready: start it", n.Name)
	case n.Spec.Unschedulable:
		return fmt.Sprintf("node %s is cordoned: run kubectl uncordon %[1]s", n.Name)
	}
	return fmt.Sprintf("node %s has no place: see its taints and free resources with kubectl describe node %[1]s, and "+
		"registry.nodeSelector", n.Name)
}
