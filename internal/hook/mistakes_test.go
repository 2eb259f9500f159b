package hook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// The settings and objects of a first installation that works.

func workload(component string, change ...func(*settings.Workload)) settings.Workload {
	w := settings.Workload{Values: component, Component: component,
		Resources: json.RawMessage(`{"requests":{"cpu":"50m","memory":"64Mi"}}`)}
	for _, c := range change {
		c(&w)
	}
	return w
}

// placed changes what the values say about the registry's pods.
func placed(changes ...func(*settings.Workload)) func(*settings.Settings) {
	return func(s *settings.Settings) { s.Workloads = []settings.Workload{workload("registry", changes...)} }
}

func resources(text string) func(*settings.Workload) {
	return func(w *settings.Workload) { w.Resources = json.RawMessage(text) }
}

func ownClaim(change ...func(*settings.Claim)) func(*settings.Settings) {
	return func(s *settings.Settings) {
		s.Storage.Claim = settings.Claim{Name: "zarf-registry", AccessModes: []string{"ReadWriteOnce"}, Size: "20Gi"}
		for _, c := range change {
			c(&s.Storage.Claim)
		}
	}
}

func ofClass(name string) func(*settings.Claim) {
	return func(c *settings.Claim) { c.StorageClass = &name }
}

func existingClaim(s *settings.Settings) {
	s.Storage.Claim = settings.Claim{Name: "images", Existing: true}
}

func s3Storage(endpoint string) func(*settings.Settings) {
	return func(s *settings.Settings) {
		s.PKI.ClusterDomain = "cluster.local"
		s.Storage.S3 = &settings.S3{Endpoint: endpoint}
	}
}

func storageClass(name string, isDefault bool) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/disk"}
	if isDefault {
		class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	}
	return class
}

func volume(class, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Capacity: corev1.ResourceList{corev1.ResourceStorage: quantity.MustParse(size)}},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
}

// claimed returns a claim of the release, or of the user if it has another name than the chart's.
func claimed(name, class string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf", UID: "claim-1",
		ResourceVersion: "7"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: quantity.MustParse("20Gi")}}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	if name == "zarf-registry" {
		c.Labels = map[string]string{"app.kubernetes.io/instance": "zarf-registry"}
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func bound(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeName, c.Status.Phase = "pv-1", corev1.ClaimBound
}

func withModes(modes ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

func hasProxyNameLabel(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = map[string]string{key: value} }
}

func tainted(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func allocatable(cpu, memory string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse(cpu),
			corev1.ResourceMemory: quantity.MustParse(memory)}
	}
}

// dialing fails each connection with an error, nil for none.
func dialing(err error) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		if err != nil {
			return nil, err
		}
		conn, _ := net.Pipe()
		return conn, nil
	}
}

// Mistakes in the values of a first installation.
func TestMistakes(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	standard := storageClass("standard", true)
	findings(t, "mistakes", map[string]situation{
		// StorageClass.
		"StorageClass that does not exist": {objects: objects{standard}, settings: ownClaim(ofClass("nope"))},
		"StorageClass that exists":         {objects: objects{standard}, settings: ownClaim(ofClass("standard"))},
		"default StorageClass":             {objects: objects{standard}, settings: ownClaim()},
		"no default StorageClass":          {objects: objects{storageClass("slow", false)}, settings: ownClaim()},
		"no StorageClass at all":           {settings: ownClaim()},
		"a volume of an administrator":     {objects: objects{volume("manual", "20Gi")}, settings: ownClaim(ofClass("manual"))},
		"a volume of an administrator that is too small": {objects: objects{volume("manual", "10Gi")},
			settings: ownClaim(ofClass("manual"))},
		"no dynamic provisioning": {objects: objects{standard}, settings: ownClaim(ofClass(""))},
		"StorageClass of the caches": {objects: objects{standard},
			settings: func(s *settings.Settings) { s.Storage.CacheClass = "fast" }},

		// The claim.
		"size without a unit": {objects: objects{standard},
			settings: ownClaim(func(c *settings.Claim) { c.Size = "20" })},
		"existing claim that does not exist": {settings: existingClaim},
		"existing claim with a volume":       {objects: objects{claimed("images", "any", bound)}, settings: existingClaim},
		"existing claim that waits for a StorageClass that does not exist": {
			objects: objects{standard, claimed("images", "nope")}, settings: existingClaim},
		"existing claim of a block device": {objects: objects{claimed("images", "standard", bound,
			func(c *corev1.PersistentVolumeClaim) {
				block := corev1.PersistentVolumeBlock
				c.Spec.VolumeMode = &block
			})}, settings: existingClaim},
		"existing claim that is read-only": {objects: objects{claimed("images", "standard", bound,
			withModes(corev1.ReadOnlyMany))}, settings: existingClaim},
		"existing claim of several pods": {objects: objects{claimed("images", "standard", bound)},
			settings: func(s *settings.Settings) { existingClaim(s); s.Storage.Claim.Shared = true }},
		"existing claim that is being deleted": {objects: objects{claimed("images", "standard", bound,
			func(c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x"}
			})}, settings: existingClaim},
		"existing claim without its volume": {objects: objects{claimed("images", "standard", bound,
			func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })}, settings: existingClaim},
		"existing claim that another pod uses": {objects: objects{claimed("images", "standard", bound),
			userOf("images")}, settings: existingClaim},
		"existing claim for one pod that another uses": {objects: objects{claimed("images", "standard", bound,
			withModes(corev1.ReadWriteOncePod)), userOf("images")}, settings: existingClaim},
		"a claim of someone else": {objects: objects{standard, claimed("zarf-registry", "standard", bound,
			func(c *corev1.PersistentVolumeClaim) { c.Labels = nil })}, settings: ownClaim()},
		"a volume of another StorageClass": {objects: objects{standard, storageClass("fast", false),
			claimed("zarf-registry", "standard", bound)}, settings: ownClaim(ofClass("fast"))},
		"a volume that would shrink": {objects: objects{standard, claimed("zarf-registry", "standard", bound)},
			settings: ownClaim(func(c *settings.Claim) { c.Size = "10Gi" })},
		"a volume that cannot grow": {objects: objects{standard, claimed("zarf-registry", "standard", bound)},
			settings: ownClaim(func(c *settings.Claim) { c.Size = "30Gi" })},
		"a volume with other access modes": {objects: objects{standard, claimed("zarf-registry", "standard", bound)},
			settings: ownClaim(func(c *settings.Claim) { c.AccessModes = []string{"ReadWriteMany"} })},
		"a volume as wanted": {objects: objects{standard, claimed("zarf-registry", "standard", bound)},
			settings: ownClaim()},

		// S3.
		"S3 that refuses connections": {settings: s3Storage("https://s3.example.com:9000"), dial: dialing(refused)},
		"S3 that only this machine cannot reach": {settings: s3Storage("https://s3.example.com"),
			dial: dialing(errors.New("i/o timeout"))},
		"S3 that a Job cannot reach": {settings: s3Storage("https://s3.example.com"), inPod: true,
			dial: dialing(errors.New("i/o timeout"))},
		"S3 that answers":       {settings: s3Storage("https://s3.example.com"), dial: dialing(nil)},
		"S3 on the node itself": {settings: s3Storage("http://127.0.0.1:9000"), dial: dialing(nil)},
		"S3 of a Service that does not exist": {settings: s3Storage("http://minio.minio.svc.cluster.local:9000"),
			dial: dialing(errors.New("no such host"))},
		"S3 of a Service with other ports": {objects: objects{otherService(onePort)},
			settings: s3Storage("http://web.shop.svc:9000")},
		"S3 of a Service": {objects: objects{otherService(onePort)}, settings: s3Storage("http://web.shop.svc"),
			dial: dialing(errors.New("no such host"))},
		"a Secret of S3 that does not exist": {
			settings: func(s *settings.Settings) { s.Storage.S3 = &settings.S3{Secret: "keys"} }},
		"a Secret of S3 without a key": {objects: objects{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: "keys", Namespace: "zarf"}, Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("a")}}},
			settings: func(s *settings.Settings) { s.Storage.S3 = &settings.S3{Secret: "keys"} }},

		// Placement.
		"node selector that matches no node": {settings: placed(func(w *settings.Workload) {
			w.NodeSelector = map[string]string{"disk": "ssd"}
		})},
		"node selector that matches a node": {objects: objects{node("n1", hasProxyNameLabel("disk", "ssd"))},
			settings: placed(func(w *settings.Workload) { w.NodeSelector = map[string]string{"disk": "ssd"} })},
		"affinity that matches no node": {settings: placed(func(w *settings.Workload) {
			w.NodeTerms = json.RawMessage(`[{"matchExpressions":[{"key":"disk","operator":"In","values":["ssd"]}]}]`)
		})},
		"taint without a toleration": {objects: objects{node("n1", tainted("dedicated"))}, settings: placed()},
		"taint with a toleration": {objects: objects{node("n1", tainted("dedicated"))}, settings: placed(
			func(w *settings.Workload) {
				w.Tolerations = json.RawMessage(`[{"key":"dedicated","operator":"Exists"}]`)
			})},
		"taint of a node that is not ready": {objects: objects{node("n1", tainted("node.kubernetes.io/not-ready"))},
			settings: placed()},
		"cordoned node": {objects: objects{node("n1", tainted("node.kubernetes.io/unschedulable"))}, settings: placed()},
		"no proxy tolerates the taint": {objects: objects{node("n1", tainted("dedicated"))},
			settings: func(s *settings.Settings) { s.Workloads = []settings.Workload{workload("proxy")} }},
		"request that is larger than any node": {objects: objects{node("n1", allocatable("4", "8Gi")),
			node("n2", allocatable("4", "16Gi"))}, settings: placed(resources(`{"requests":{"memory":"64Gi"}}`))},
		"request that one node can serve": {objects: objects{node("n1", allocatable("4", "8Gi")),
			node("n2", allocatable("4", "128Gi"))}, settings: placed(resources(`{"requests":{"memory":"64Gi"}}`))},
		"proxies that are larger than some node": {objects: objects{node("n1", allocatable("4", "8Gi")),
			node("n2", allocatable("4", "128Gi"))}, settings: func(s *settings.Settings) {
			s.Workloads = []settings.Workload{workload("proxy", resources(`{"requests":{"memory":"64Gi"}}`))}
		}},
		"limit without a request": {objects: objects{node("n1", allocatable("4", "8Gi"))},
			settings: placed(resources(`{"limits":{"cpu":"5"}}`))},
		"invalid quantity": {settings: placed(resources(`{"requests":{"memory":"64K"}}`))},

		// PriorityClass.
		"PriorityClass that does not exist": {settings: placed(func(w *settings.Workload) { w.PriorityClassName = "high" })},
		"PriorityClass that exists": {objects: objects{&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "high"}}},
			settings: placed(func(w *settings.Workload) { w.PriorityClassName = "high" })},
		"PriorityClass of several values": {settings: func(s *settings.Settings) {
			for _, component := range []string{"proxy", "healer", "cache", "init-hook"} {
				s.Workloads = append(s.Workloads, workload(component, func(w *settings.Workload) { w.PriorityClassName = "high" }))
			}
		}},

		// The API server's answer to the real pods.
		"quota without room": {settings: placed(resources(`{"requests":{"memory":"2Gi"}}`)),
			admit: func(o runtime.Object) error {
				pod, ok := o.(*corev1.Pod)
				if want := quantity.MustParse("2Gi"); ok && pod.Spec.Containers[0].Resources.Requests.Memory().Cmp(want) == 0 {
					return quota("small")
				}
				return nil
			}},

		// Zarf.
		"the namespace of Zarf":     {objects: objects{otherService(zarfsAgent("zarf"))}, settings: placed()},
		"Zarf in another namespace": {objects: objects{otherService(zarfsAgent("other"))}, settings: placed()},
		"in place of Zarf's registry": {objects: objects{otherService(zarfsAgent("zarf"))},
			settings: func(s *settings.Settings) { s.PKI.Zarf = true }},

		// The image of injected pods.
		"an injector.image that no node has": {settings: func(s *settings.Settings) {
			choosePause(s, "example.com/pause:9", state.SourceValue, state.PauseName)
		}},
		"an injector.image that some node may have": {objects: objects{node("n1", manyImages)},
			settings: func(s *settings.Settings) {
				choosePause(s, "example.com/pause@sha256:"+strings.Repeat("a", 64), state.SourceValue, state.PauseDigest)
			}},
	})
}

func zarfsAgent(namespace string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Name, s.Namespace, s.Spec = "agent-hook", namespace, corev1.ServiceSpec{} }
}

// userOf is a pod of someone else with that claim.
func userOf(claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "zarf"}, Spec: corev1.PodSpec{NodeName: "n7",
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}}}
}

// The Jobs may not read PriorityClasses. The API server's answer to the dry run of a pod gives the same finding, which
// needs the namespace to exist.
func TestMissingPriorityClassWithoutPermission(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, permitted := range []bool{true, false} {
		b := newBench(t, node("n1"))
		b.hook.Settings.Workloads = []settings.Workload{workload("registry",
			func(w *settings.Workload) { w.PriorityClassName = "high" })}
		b.admit = func(o runtime.Object) error {
			pod, ok := o.(*corev1.Pod)
			switch {
			case !ok || pod.Spec.PriorityClassName == "":
				return nil
			case permitted:
				return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "zarf")
			}
			return apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("no PriorityClass with name high was found"))
		}
		if !permitted {
			b.hook.Cluster.Preflight.PriorityClasses = nil
		}
		findings, err := b.hook.Preflight(t.Context())
		if err != nil || len(findings) == 0 {
			t.Fatalf("findings are %v (%v)", findings, err)
		}
		lines = append(lines, findings[0].String())
	}
	if lines[0] != lines[1] || !strings.HasPrefix(lines[0], "priority-class: PriorityClass high: ") {
		t.Errorf("findings are %q", lines)
	}
}

// Prepare replaces a claim of the chart that never got a volume and differs from what the values ask for now. It never
// deletes another.
func TestPrepareReplacesAClaimWithoutAVolume(t *testing.T) {
	t.Parallel()
	nope := func(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		return claimed("zarf-registry", "nope", change...)
	}
	lost := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }
	ofSize := func(size string) func(*settings.Claim) { return func(c *settings.Claim) { c.Size = size } }
	notOurs := func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }
	for name, c := range map[string]struct {
		claim    *corev1.PersistentVolumeClaim
		settings func(*settings.Settings)
		replaced bool
	}{
		"another StorageClass":         {nope(), ownClaim(ofClass("standard")), true},
		"the default StorageClass":     {nope(), ownClaim(), true},
		"another size":                 {claimed("zarf-registry", "standard"), ownClaim(ofSize("1Gi")), true},
		"the same":                     {claimed("zarf-registry", "standard"), ownClaim(), false},
		"the same, explicitly":         {claimed("zarf-registry", "standard"), ownClaim(ofClass("standard")), false},
		"the claim of a volume":        {claimed("zarf-registry", "standard", bound), ownClaim(), false},
		"a claim that lost its volume": {nope(bound, lost), ownClaim(), false},
		"a claim of someone else":      {nope(notOurs), ownClaim(), false},
		"the user's claim":             {claimed("images", "nope"), existingClaim, false},
		"none":                         {claimed("unrelated", "nope"), ownClaim(), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("n1"), storageClass("standard", true), c.claim)
			c.settings(&b.hook.Settings)
			b.hook.Settings.Preflight.Ignore = []string{"storage"}
			b.mustPrepare()
			if deleted := slices.Contains(b.writes(), "delete persistentvolumeclaims "+c.claim.Name); deleted != c.replaced {
				t.Errorf("deleted: %t, want %t; writes are %q", deleted, c.replaced, b.writes())
			}
			if !c.replaced {
				return
			}
			for _, a := range b.client.Actions() {
				if d, ok := a.(kubetesting.DeleteActionImpl); ok && d.GetResource().Resource == "persistentvolumeclaims" {
					p := d.DeleteOptions.Preconditions
					if p == nil || *p.UID != c.claim.UID || p.ResourceVersion == nil {
						t.Errorf("the preconditions are %+v, want UID and version: it may just have got a volume", p)
					}
				}
			}
		})
	}
}

// A claim that a pod uses stays until that ends. Helm would change it and then lose it.
func TestPrepareWaitsUntilTheClaimIsGone(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t, node("n1"), storageClass("standard", true), claimed("zarf-registry", "nope"))
		ownClaim()(&b.hook.Settings)
		b.hook.Now = time.Now
		b.client.PrependReactor("delete", "persistentvolumeclaims", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, nil // accepted, and a finalizer keeps it
		})
		b.mustFail(b.hook.Prepare(t.Context()), false, "PersistentVolumeClaim zarf/zarf-registry is still being deleted")
	})
}

// A wait that fails names the cause also if controllers cannot create pods, or the claim gets no volume.
func TestFailedWaitNamesTheCausesOfControllers(t *testing.T) {
	t.Parallel()
	event := func(kind, name, reason, message string) *corev1.Event {
		typ := corev1.EventTypeWarning
		if reason == "ExternalProvisioning" {
			typ = corev1.EventTypeNormal
		}
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: kind + name},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "zarf", Name: name}, Type: typ, Reason: reason,
			Message: message}
	}
	pending := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-5-1", Namespace: "zarf",
		Labels: map[string]string{"app.kubernetes.io/instance": "zarf-registry", "app.kubernetes.io/component": "registry"}},
		Spec: userOf("zarf-registry").Spec, Status: corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."}}}}
	pending.Spec.NodeName = ""
	unready := pending.DeepCopy()
	unready.Spec.Volumes, unready.Status = nil, corev1.PodStatus{Phase: corev1.PodRunning}
	crashing := unready.DeepCopy()
	crashing.Spec.NodeName = "n1"
	crashing.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "registry",
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 102,
			Message: "zarf-registry loader: chunk 03: missing"}}}}
	for name, c := range map[string]struct {
		objects []runtime.Object
		want    string
		not     string
	}{
		"ReplicaSet": {objects: []runtime.Object{
			event("ReplicaSet", "zarf-registry-5d8f", "FailedCreate", "no PriorityClass with name high was found"),
			event("ReplicaSet", "zarf-registry-healer-77", "FailedCreate", "of the healer")},
			want: "ReplicaSet zarf/zarf-registry-5d8f: FailedCreate: no PriorityClass with name high was found",
			not:  "of the healer"},
		"probe": {objects: []runtime.Object{unready,
			event("Pod", "zarf-registry-5-1", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")},
			want: "statuscode: 503: kubectl --namespace zarf logs zarf-registry-5-1 says why"},
		"container": {objects: []runtime.Object{crashing},
			want: "pod zarf/zarf-registry-5-1 on node n1: container registry exited with code 102: zarf-registry loader: " +
				"chunk 03: missing"},
		"claim": {objects: []runtime.Object{pending},
			want: "pod has unbound immediate PersistentVolumeClaims.: kubectl --namespace zarf describe pod/zarf-registry-5-1 " +
				"persistentvolumeclaim/zarf-registry shows more"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t)
			b.mustPrepare()
			one := int32(1)
			b.add(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry", Namespace: "zarf"},
				Spec: appsv1.DeploymentSpec{Replicas: &one}})
			for _, o := range c.objects {
				b.add(o)
			}
			b.hook.Timeout = 10 * time.Second
			err := b.hook.Finish(t.Context())
			b.mustFail(err, false, "waiting for the registry: Deployment zarf/zarf-registry: 0 of 1 pods are updated", c.want)
			if c.not != "" && strings.Contains(fmt.Sprint(err), c.not) {
				t.Errorf("the error names another component: %v", err)
			}
		})
	}
}
