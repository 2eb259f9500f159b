package status_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// useClaim makes the registry use a claim, and puts the claim and its volume, with a node affinity for n1, into the
// cluster. It returns the registry's pod, which is not scheduled.
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
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}
	volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}}}}}
	for _, name := range []string{"n1", "n2"} {
		c["Node "+name].(*corev1.Node).Labels = map[string]string{corev1.LabelHostname: name}
	}
	p := pod("registry", "n1", false)
	p.Spec.NodeName, p.Spec.Volumes, p.Status.ContainerStatuses = "", source, nil
	c.add(claim, volume, p)
	return p
}

func event(kind, object, reason, message string) *corev1.Event {
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: reason}, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: object}}
}

func TestVolumesAreNamedWithWhatToDo(t *testing.T) {
	unschedulable := func(c cluster, message string) {
		p := c.useClaim(corev1.ClaimBound)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message})
	}
	const (
		before134 = "0/2 nodes are available: 1 node(s) had volume node affinity conflict"
		since134  = "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity"
		only      = "the volume pvc-1 of PersistentVolumeClaim zarf/zarf-registry can only be used on nodes with " +
			"kubernetes.io/hostname in (n1)"
	)
	// attached moves the pod to n2, while n1 has the volume.
	attached := func(c cluster, message string) *corev1.Pod {
		p := c.useClaim(corev1.ClaimBound)
		p.Spec.NodeName = "n2"
		c.add(event("Pod", p.Name, "FailedAttachVolume", message))
		return p
	}
	oldPod := func(c cluster) {
		p := pod("registry", "old", true)
		p.Spec.NodeName, p.DeletionTimestamp, p.Finalizers = "n1", &metav1.Time{Time: now}, []string{"test/keep"}
		p.Spec.Volumes = c["Pod registry-n1"].(*corev1.Pod).Spec.Volumes
		c.add(p)
	}
	const multiAttach = `Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node`
	down := func(c cluster, name string) {
		c["Node "+name].(*corev1.Node).Status.Conditions[0].Status = corev1.ConditionFalse
	}
	for name, test := range map[string]struct {
		change func(cluster)
		want   string
	}{
		"its node is cordoned": {func(c cluster) {
			unschedulable(c, since134)
			c["Node n1"].(*corev1.Node).Spec.Unschedulable = true
		}, only + ": node n1 is cordoned: run kubectl uncordon n1."},
		"its node is cordoned, before Kubernetes 1.34": {func(c cluster) {
			unschedulable(c, before134)
			c["Node n1"].(*corev1.Node).Spec.Unschedulable = true
		}, only + ": node n1 is cordoned: run kubectl uncordon n1."},
		"its node is down": {func(c cluster) {
			unschedulable(c, since134)
			down(c, "n1")
		}, only + ": node n1 is not ready: start it."},
		"its node is full": {func(c cluster) { unschedulable(c, since134) }, only + ": node n1 has no place"},
		"its node is gone": {func(c cluster) {
			unschedulable(c, since134)
			c.drop("Node n1")
		}, only + ", and there is no such node: start it again, or, to begin with an empty registry, run kubectl " +
			"--namespace zarf delete persistentvolumeclaim/zarf-registry pod/registry-n1 and install again."},
		"a pod on a node that is down has it": {func(c cluster) {
			attached(c, multiAttach)
			oldPod(c)
			down(c, "n1")
		}, "node n1 still has the volume pvc-1 of PersistentVolumeClaim zarf/zarf-registry for pod zarf/registry-old, and is " +
			"not ready: start that node, or, only if it is shut down, run kubectl taint nodes n1 " +
			"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, which detaches the volume."},
		"a pod that ends has it, since Kubernetes 1.37": {func(c cluster) {
			attached(c, `Waiting for detach for volume "pvc-1" Volume is already used by pod(s) registry-old`)
			oldPod(c)
		}, "node n1 still has the volume pvc-1 of PersistentVolumeClaim zarf/zarf-registry for pod zarf/registry-old and " +
			"detaches it when that pod has ended."},
		"a node without a pod has it": {func(c cluster) {
			attached(c, multiAttach)
			c["PersistentVolume pvc-1"].(*corev1.PersistentVolume).Spec.CSI = &corev1.CSIPersistentVolumeSource{
				Driver: "ebs.example.com", VolumeHandle: "vol-7"}
			c["Node n1"].(*corev1.Node).Status.VolumesAttached = []corev1.AttachedVolume{
				{Name: "kubernetes.io/csi/ebs.example.com^vol-7"}}
			down(c, "n1")
		}, "node n1 still has the volume pvc-1 of PersistentVolumeClaim zarf/zarf-registry, and is not ready"},
		"nobody is known to have it": {func(c cluster) { attached(c, multiAttach) },
			"which kubectl get volumeattachments lists"},
		"the kubelet says later that it waits": {func(c cluster) {
			p := attached(c, multiAttach)
			oldPod(c)
			later := event("Pod", p.Name, "FailedMount", "Unable to attach or mount volumes: unmounted volumes=[storage]")
			later.LastTimestamp = metav1.NewTime(now)
			c.add(later)
		}, "The registry is not ready (FailedAttachVolume: Multi-Attach error"},
		"root owns it": {func(c cluster) {
			p := c.useClaim(corev1.ClaimBound)
			p.Spec.NodeName = "n1"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "registry", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: `{"msg":"certificates loaded"}` +
					"\nregistry: storage.filesystem.rootdirectory /var/lib/registry: permission denied"}}}}
		}, "(container registry exited with code 3: registry: storage.filesystem.rootdirectory /var/lib/registry: permission " +
			"denied): the directory is the volume pvc-1 of PersistentVolumeClaim zarf/zarf-registry: change its owner"},
		"no provisioner creates it": {func(c cluster) {
			c.useClaim(corev1.ClaimPending)
			c.add(event("PersistentVolumeClaim", "zarf-registry", "ProvisioningFailed", `storageclass "local" not found`))
		}, `PersistentVolumeClaim zarf/zarf-registry, StorageClass "local", has no volume (ProvisioningFailed: ` +
			`storageclass "local" not found): kubectl --namespace zarf describe persistentvolumeclaim zarf-registry`},
		"it was deleted": {func(c cluster) { c.useClaim(corev1.ClaimLost) },
			"PersistentVolumeClaim zarf/zarf-registry has lost its volume pvc-1"},
		"the claim was deleted": {func(c cluster) {
			c.useClaim(corev1.ClaimBound)
			c.drop("PersistentVolumeClaim zarf-registry")
		}, "PersistentVolumeClaim zarf/zarf-registry does not exist: run zarf-registry install --namespace zarf"},
	} {
		t.Run(name, func(t *testing.T) {
			c := healthy(t, state.ModeProxy)
			test.change(c)
			r, err := c.collect(t)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(r.Next, "\n"); !strings.Contains(text, test.want) {
				t.Errorf("next is\n%s\nwant\n%s", text, test.want)
			}
			if r.Registry.Claim == nil || r.Registry.Claim.Name != "zarf-registry" {
				t.Errorf("the claim is %+v", r.Registry.Claim)
			}
		})
	}
}

func TestVolumesNeedNoRights(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	p := c.useClaim(corev1.ClaimBound)
	p.Status.Conditions[0].Status = corev1.ConditionTrue // ready
	r, err := c.collect(t)
	if err != nil {
		t.Fatal(err)
	}
	if want := (status.Claim{Name: "zarf-registry", Phase: "Bound", StorageClass: "local", Volume: "pvc-1"}); !r.Healthy ||
		r.Registry.Claim == nil || *r.Registry.Claim != want {
		t.Errorf("healthy is %t, claim %+v, want %+v", r.Healthy, r.Registry.Claim, want)
	}
	if r, err = c.collect(t, "get persistentvolumeclaims"); err != nil || !r.Healthy || r.Registry.Claim != nil {
		t.Errorf("without the right to read claims: %v, %+v", err, r)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: "Unschedulable", Message: "1 node(s) didn't match PersistentVolume's node affinity"}}
	r, err = c.collect(t, "get persistentvolumes")
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(r.Next, "\n"); !strings.Contains(text, "the volume of PersistentVolumeClaim zarf/zarf-registry "+
		"can only be used on some nodes") || len(r.Unreadable) > 0 {
		t.Errorf("next is\n%s\nunreadable %q", text, r.Unreadable)
	}
}
