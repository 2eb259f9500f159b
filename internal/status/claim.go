package status

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Claim describes the registry's PersistentVolumeClaim.
type Claim struct {
	Name string `json:"name"`
	// Phase is Kubernetes' phase: Bound, Pending or Lost. It is empty if the claim does not exist.
	Phase        string `json:"phase,omitempty"`
	StorageClass string `json:"storageClass,omitempty"`
	Volume       string `json:"volume,omitempty"`
	// Why says why it is not bound.
	Why string `json:"why,omitempty"`
}

// claim reports the registry's claim and returns what is known about its volume. Reading claims, volumes and nodes
// requires permissions that the rest of the report does not, so not being allowed to is not a problem.
func (c *collector) claim(ctx context.Context, pods []corev1.Pod) nodes.Volumes {
	volumes := nodes.Volumes{Pods: pods}
	if c.deployment == nil {
		return volumes
	}
	name := nodes.ClaimOf(c.deployment.Spec.Template.Spec)
	if name == "" {
		return volumes
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.report.Registry.Claim = &Claim{Name: name, Why: "it does not exist"}
		return volumes
	case err != nil:
		return volumes
	}
	r := &Claim{Name: name, Phase: string(claim.Status.Phase), Volume: claim.Spec.VolumeName}
	c.report.Registry.Claim = r
	if class := claim.Spec.StorageClassName; class != nil {
		r.StorageClass = *class
	}
	if claim.Status.Phase != corev1.ClaimBound {
		r.Why = c.newestEvent(ctx, name)
	}
	if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !release.PodReady(p) }) {
		return volumes
	}
	if claim.Spec.VolumeName != "" {
		volume, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			volumes.Volume = volume
		}
	}
	if list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		volumes.Nodes = list.Items
	}
	return volumes
}

// newestEvent returns the newest event of a claim, which may not be a warning.
func (c *collector) newestEvent(ctx context.Context, claim string) string {
	list, err := c.Client.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		"involvedObject.kind": "PersistentVolumeClaim", "involvedObject.name": claim,
	}.String()})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	e := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return oneLine(fmt.Sprintf("%s: %s", e.Reason, e.Message))
}

// volumeAdvice returns what to do about the volume of a pod that is not ready, or "".
func (c *collector) volumeAdvice(p corev1.Pod, why string, volumes nodes.Volumes) string {
	advice := volumes.Advice(p, why)
	claim := c.report.Registry.Claim
	if claim == nil || claim.Phase == string(corev1.ClaimBound) {
		return advice
	}
	describe := fmt.Sprintf("kubectl --namespace %s describe persistentvolumeclaim %s shows more", c.Namespace, claim.Name)
	switch {
	case claim.Phase == "":
		return fmt.Sprintf("PersistentVolumeClaim %s/%s does not exist: run %s, or check registry.persistence.existingClaim",
			c.Namespace, claim.Name, c.again())
	case claim.Phase == string(corev1.ClaimLost):
		return fmt.Sprintf("PersistentVolumeClaim %s/%s has lost its volume %s: restore that, or delete the claim and "+
			"install again", c.Namespace, claim.Name, claim.Volume)
	}
	return fmt.Sprintf("PersistentVolumeClaim %s/%s, StorageClass %q, has no volume (%s): %s", c.Namespace, claim.Name,
		claim.StorageClass, orUnknown(claim.Why), describe)
}
