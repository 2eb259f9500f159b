package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
)

// Claim describes the registry's PersistentVolumeClaim.
type Claim struct {
	Name string `json:"name"`
	// Phase is Kubernetes' phase: Bound, Pending or Lost. It is empty if the claim does not exist.
	Phase        string `json:"phase,omitempty"`
	StorageClass string `json:"storageClass,omitempty"`
	Volume       string `json:"volume,omitempty"`
}

// claim reports the registry's claim. Reading it requires a permission that the rest of the report does not, so not
// being allowed to is not a problem.
func (c *collector) claim(ctx context.Context) {
	if c.deployment == nil {
		return
	}
	name := nodes.ClaimOf(c.deployment.Spec.Template.Spec)
	if name == "" {
		return
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.report.Registry.Claim = &Claim{Name: name}
		return
	case err != nil:
		return
	}
	c.report.Registry.Claim = &Claim{
		Name: name, Phase: string(claim.Status.Phase), Volume: claim.Spec.VolumeName,
		StorageClass: ptr.Deref(claim.Spec.StorageClassName, ""),
	}
}

// claimAdvice returns what to do about the claim of a pod that is not ready, or "".
func (c *collector) claimAdvice(p corev1.Pod) string {
	claim := c.report.Registry.Claim
	switch {
	case claim == nil || claim.Phase == string(corev1.ClaimBound):
		return nodes.DescribeClaim(p)
	case claim.Phase == "":
		return fmt.Sprintf("PersistentVolumeClaim %s/%s does not exist: run %s, or check registry.persistence.existingClaim",
			c.Namespace, claim.Name, c.installCommand())
	case claim.Phase == string(corev1.ClaimLost):
		return fmt.Sprintf("PersistentVolumeClaim %s/%s has lost its volume %s: restore that, or delete the claim and "+
			"install again", c.Namespace, claim.Name, claim.Volume)
	}
	return fmt.Sprintf("PersistentVolumeClaim %s/%s, StorageClass %q, has no volume: kubectl --namespace %[1]s describe "+
		"persistentvolumeclaim %[2]s shows why", c.Namespace, claim.Name, claim.StorageClass)
}

// lost returns the way back if a node is not ready that has a pod of the registry, or "".
func (c *collector) lost(ctx context.Context, pods []corev1.Pod) string {
	notReady, err := c.nodesNotReady(ctx)
	onLost := func(p corev1.Pod) bool { return notReady[p.Spec.NodeName] }
	i := slices.IndexFunc(pods, onLost)
	if err != nil || i < 0 {
		return ""
	}
	node := pods[i].Spec.NodeName
	other := slices.IndexFunc(pods, func(p corev1.Pod) bool { return !onLost(p) && p.DeletionTimestamp == nil })
	if other < 0 {
		after := 300 * time.Second // Kubernetes' default
		for _, t := range pods[i].Spec.Tolerations {
			if t.Key == corev1.TaintNodeUnreachable && t.TolerationSeconds != nil {
				after = time.Duration(*t.TolerationSeconds) * time.Second
			}
		}
		return fmt.Sprintf("its node %s is not ready; Kubernetes makes another pod %s after it has noticed that, unless "+
			"most nodes are not ready", node, after)
	}
	claim, why := nodes.ClaimOf(pods[other].Spec), c.why(pods[other])
	switch {
	case claim == "":
		return ""
	case strings.Contains(why, "Attach"):
		return fmt.Sprintf("node %[1]s, which is not ready, has its volume: switch it on, or make sure that it is off and "+
			"run kubectl taint nodes %[1]s node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which frees the volume; "+
			"remove that taint when the node is back", node)
	case strings.Contains(why, "node affinity"):
		return fmt.Sprintf("its volume is on node %[1]s, which is not ready: switch that on; if its disk is lost, run "+
			"kubectl delete node %[1]s, kubectl --namespace %[2]s delete persistentvolumeclaim %[3]s and %[4]s, and push your "+
			"images again from a backup", node, c.Namespace, claim, c.installCommand())
	}
	return ""
}
