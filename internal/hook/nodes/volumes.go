package nodes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ClaimOf returns the name of the first volume claim of a pod, or "".
func ClaimOf(p corev1.PodSpec) string {
	for _, v := range p.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// DescribeClaim says how to look at the volume claim of a pod that has not started. It returns "" if the pod has
// started or has no claim.
func DescribeClaim(p corev1.Pod) string {
	name := ClaimOf(p.Spec)
	if name == "" || p.Status.Phase != corev1.PodPending {
		return ""
	}
	return fmt.Sprintf("kubectl --namespace %s describe pod/%s persistentvolumeclaim/%s shows more", p.Namespace, p.Name,
		name)
}
