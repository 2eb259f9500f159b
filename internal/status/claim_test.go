package status_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// useClaim makes the registry use a claim, and adds the claim to the cluster. It returns the registry's pod, which is
// not scheduled.
func (c cluster) useClaim(phase corev1.PersistentVolumeClaimPhase) *corev1.Pod {
	source := []corev1.Volume{{Name: "storage", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "zarf-registry"}}}}
	spec := &c["Deployment zarf-registry"].(*appsv1.Deployment).Spec.Template.Spec
	spec.Volumes = append(spec.Volumes, source...)
	class := "local"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("zarf-registry", "registry"),
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}
	claim.Status.Phase = phase
	if phase != corev1.ClaimPending {
		claim.Spec.VolumeName = "pvc-1"
	}
	p := pod("registry", "n1", false)
	p.Spec.NodeName, p.Spec.Volumes, p.Status.ContainerStatuses = "", source, nil
	c.add(claim, p)
	return p
}

// lostRegistry adds a node that is not ready with the registry's pod. With a reason why its successor does not start, that
// exists.
func lostRegistry(c cluster, why string) {
	soon, since := int64(30), metav1.NewTime(now)
	lost := pod("registry", "n2", false)
	lost.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, TolerationSeconds: &soon}}
	c.add(node("n2", false, pause), lost)
	if why == "" {
		c.drop("Pod registry-n1")
		return
	}
	lost.DeletionTimestamp, lost.Finalizers = &since, []string{"example.com/kept"} // the fake API server wants one
	p := c.useClaim(corev1.ClaimBound)
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: why})
}

func event(kind, object, reason, message string) *corev1.Event {
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: reason}, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: object}}
}

func TestClaimsAreNamedWithWhatToDo(t *testing.T) {
	reports(t, "claims", state.ModeProxy, nil, map[string]func(cluster){
		"its volume cannot be used": func(c cluster) {
			p := c.useClaim(corev1.ClaimBound)
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "didn't match PersistentVolume's node affinity"})
		},
		"its volume cannot be attached": func(c cluster) {
			p := c.useClaim(corev1.ClaimBound)
			p.Status.Phase, p.Spec.NodeName = corev1.PodPending, "n2"
			c.add(event("Pod", p.Name, "FailedAttachVolume", "Multi-Attach error"))
		},
		"no provisioner creates it": func(c cluster) { c.useClaim(corev1.ClaimPending) },
		"it was deleted":            func(c cluster) { c.useClaim(corev1.ClaimLost) },
		"the claim was deleted": func(c cluster) {
			c.useClaim(corev1.ClaimBound)
			c.drop("PersistentVolumeClaim zarf-registry")
		},
	})
}

func TestClaimsNeedNoRights(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	p := c.useClaim(corev1.ClaimBound)
	p.Status.Conditions[0].Status = corev1.ConditionTrue // ready
	r := c.collect(t)
	if want := (status.Claim{Name: "zarf-registry", Phase: "Bound", StorageClass: "local", Volume: "pvc-1"}); !r.Healthy ||
		r.Registry.Claim == nil || *r.Registry.Claim != want {
		t.Errorf("healthy is %t, claim %+v, want %+v", r.Healthy, r.Registry.Claim, want)
	}
	if r = c.collect(t, "get persistentvolumeclaims"); !r.Healthy || r.Registry.Claim != nil {
		t.Errorf("without the right to read claims: %+v", r)
	}
}
