package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// fakeCluster has kubelets, which report by the name of their node and the age of a pod.
type fakeCluster struct {
	mu      sync.Mutex
	created int
	most    int            // pods at once
	seen    map[string]int // pods by node
	nodes   []string
	quota   int // pods that may exist; 0 is no limit
	refuse  func(*corev1.Pod) error
	pods    map[string]corev1.Pod
	events  []corev1.Event
	kubelet func(node string, age time.Duration) (corev1.PodStatus, []corev1.Event)
}

func (c *fakeCluster) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &corev1.PodList{}
	c.events = nil
	for name, pod := range c.pods {
		if pod.Spec.NodeName == "deletes" && time.Since(pod.CreationTimestamp.Time) > time.Second {
			continue
		}
		var events []corev1.Event
		pod.Status, events = c.kubelet(pod.Spec.NodeName, time.Since(pod.CreationTimestamp.Time))
		for _, e := range events {
			e.InvolvedObject.Name = name
			c.events = append(c.events, e)
		}
		list.Items = append(list.Items, pod)
	}
	return list, nil
}

func (c *fakeCluster) Create(_ context.Context, pod *corev1.Pod, _ metav1.CreateOptions) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quota > 0 && len(c.pods) >= c.quota {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("exceeded quota: pods"))
	}
	if c.refuse != nil {
		if err := c.refuse(pod); err != nil {
			return nil, err
		}
	}
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[pod.Spec.NodeName]++
	if pod.Spec.NodeName == "denies" {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("exceeded quota"))
	}
	c.created++
	pod.Name = fmt.Sprint(pod.GenerateName, c.created)
	pod.CreationTimestamp = metav1.Now()
	c.pods[pod.Name] = *pod
	c.most = max(c.most, len(c.pods))
	return pod, nil
}

func (c *fakeCluster) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, name)
	return nil
}

// ready is asked in the middle of a pull: some nodes have changed since it began.
func (c *fakeCluster) ready(context.Context) (map[string]bool, error) {
	ready := map[string]bool{"reboots": false} // "is removed" is gone
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range slices.AppendSeq(slices.Clone(c.nodes), maps.Keys(c.seen)) {
		if node != "reboots" && node != "is removed" {
			ready[node] = true
		}
	}
	return ready, nil
}

type fakeEvents struct{ *fakeCluster }

func (e fakeEvents) List(context.Context, metav1.ListOptions) (*corev1.EventList, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &corev1.EventList{Items: slices.Clone(e.events)}, nil
}

const image = "127.0.0.1:31999/team/shop:2"

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func ended(reason string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: 128,
		Message: `exec: "/zarf-registry-warm-X": stat /zarf-registry-warm-X: no such file or directory`}}
}

func event(kind, reason, message string, count int32) corev1.Event {
	return corev1.Event{Type: kind, Reason: reason, Message: message, Count: count,
		InvolvedObject: corev1.ObjectReference{FieldPath: "spec.containers{image-0}"}}
}

// kubelet is what kubelets of Kubernetes 1.30 to 1.36 report with containerd and CRI-O.
func kubelet(node string, age time.Duration) (s corev1.PodStatus, events []corev1.Event) {
	c := corev1.ContainerStatus{Name: "image-0", Image: image, State: waiting("ContainerCreating", "")}
	pulledEvent := event("Normal", "Pulled",
		`Successfully pulled image "`+image+`" in 1.5s (2.25s including waiting). Image size: 5000 bytes.`, 1)
	presentEvent := event("Normal", "Pulled",
		`Container image "`+image+`" already present on machine and can be accessed by the pod`, 1)
	failedEvent := func(count int32) corev1.Event {
		return event("Warning", "Failed", `Failed to pull image "`+image+`": rpc error: code = Unknown desc = `+
			"failed to do request:\ndial tcp 127.0.0.1:31999: connect: connection refused", count)
	}
	late := age >= 3*time.Second
	switch {
	case node == "sandbox":
		e := event("Warning", "FailedCreatePodSandBox", "no addresses", 1)
		e.InvolvedObject.FieldPath = ""
		events = append(events, e)
	case node == "admits none":
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "too many pods"}, nil
	case node == "refused", node == "recovers", node == "still refused":
		if age < time.Second {
			break
		}
		count := int32(1)
		if age >= 11*time.Second {
			count = 2
		}
		if age >= 31*time.Second && node == "refused" {
			count = 3
		}
		c.State, events = waiting("ImagePullBackOff", "Back-off pulling image"), append(events, failedEvent(count))
		if node == "recovers" && count == 2 {
			c.State, c.ImageID, events = ended("StartError"), "sha256:1", append(events, pulledEvent)
		}
	case !late:
	case node == "containerd":
		s.Phase, c.State, c.ImageID, events = corev1.PodFailed, ended("StartError"), "sha256:1", append(events, pulledEvent)
	case node == "cri-o":
		c.State = waiting("CreateContainerError", "executable file not found")
		events = append(events, pulledEvent, presentEvent)
	case node == "root":
		c.State = waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
		events = append(events, pulledEvent)
	case node == "has it":
		c.State, c.ImageID = ended("StartError"), "sha256:1"
		events = append(events, presentEvent)
	case node == "loses events":
		c.State, c.ImageID = ended("StartError"), "sha256:1"
	case node == "name":
		c.State = waiting("InvalidImageName", "couldn't parse image name")
	case node == "forgets":
		c.State = ended("ContainerStatusUnknown")
	}
	s.ContainerStatuses = []corev1.ContainerStatus{c}
	return s, events
}

func node(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ready := corev1.ConditionTrue
	if name == "down" {
		ready = corev1.ConditionFalse
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

func newPuller(c *fakeCluster) *Puller {
	c.pods = map[string]corev1.Pod{"killed": {ObjectMeta: metav1.ObjectMeta{Name: "killed"}}}
	c.kubelet = kubelet
	return &Puller{Pods: c, Events: fakeEvents{c}, Ready: c.ready, Namespace: "zarf", Release: "r", Mode: state.ModeProxy,
		Images: []string{image}, Limit: time.Minute, Log: slog.New(slog.DiscardHandler)}
}

func TestNodesPull(t *testing.T) {
	for name, want := range map[string]Result{
		"containerd":   {Outcome: Pulled, Seconds: 2.25},
		"cri-o":        {Outcome: Pulled, Seconds: 2.25},
		"root":         {Outcome: Pulled, Seconds: 2.25},
		"recovers":     {Outcome: Pulled, Seconds: 2.25},
		"has it":       {Outcome: Present},
		"loses events": {Outcome: Pulled, Seconds: 3},
		"refused":      {Outcome: Failed, Seconds: 31, Message: "connection refused", Remedy: "proxy.hostNetwork=true"},
		"name":         {Outcome: Failed, Seconds: 3, Message: "InvalidImageName: couldn't parse", Remedy: "proxy pod"},
		"forgets":      {Outcome: Failed, Seconds: 3, Message: "ContainerStatusUnknown", Remedy: "kubectl describe node"},
		"admits none":  {Outcome: Failed, Message: "OutOfpods: too many pods", Remedy: "kubectl describe node"},
		"deletes":      {Outcome: Failed, Seconds: 1.5, Message: "its pod was deleted", Remedy: "run the command again"},
		"denies":       {Outcome: Failed, Message: "creating a pod for it: ", Remedy: ""},
		"down":         {Outcome: Failed, Message: "the node is not ready", Remedy: "kubectl describe node"},
		"reboots":      {Outcome: Failed, Seconds: 10, Message: "gone or no longer ready", Remedy: "kubectl describe node"},
		"hangs":        {Outcome: Failed, Seconds: 60, Message: "too slow", Remedy: "run the command again"},
		"sandbox": {Outcome: Failed, Seconds: 60, Message: "too slow: FailedCreatePodSandBox: no addresses",
			Remedy: "kubectl describe node"},
		"still refused": {Outcome: Failed, Seconds: 60, Message: "too slow: rpc error", Remedy: "proxy.hostNetwork=true"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("too slow"))
				defer cancel()
				c := &fakeCluster{}
				results := newPuller(c).Pull(ctx, []corev1.Node{node(name)})
				if len(results) != 1 || len(c.pods) != 0 {
					t.Fatalf("%d results, and pods %v", len(results), c.pods)
				}
				got := results[0]
				if got.Name != name || got.Image != image || got.Outcome != want.Outcome || got.Seconds != want.Seconds ||
					!strings.Contains(got.Message, want.Message) || !strings.Contains(got.Remedy, want.Remedy) ||
					(got.Remedy == "") != (want.Remedy == "") || strings.Contains(got.Message, "\n") {
					t.Errorf("%+v, want %+v", got, want)
				}
			})
		})
	}
}

func TestManyNodesPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{}
		p := newPuller(c)
		nodes := make([]corev1.Node, 120)
		for i := range nodes {
			nodes[i] = node("containerd")
		}
		if results := p.Pull(t.Context(), nodes); len(results) != 120 || c.created != 120 || c.most != nodesAtOnce {
			t.Errorf("%d results, %d pods, %d at once", len(results), c.created, c.most)
		}
		// Interrupted with one node that pulls, and others that wait.
		for i := range nodes {
			nodes[i] = node("hangs")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("interrupted")) })
		results := p.Pull(ctx, nodes)
		if len(results) != 120 || c.created != 170 || len(c.pods) != 0 || results[0].Message != "interrupted" ||
			results[119].Message != "not started: interrupted" {
			t.Errorf("%d results, %d pods, %d left, %+v", len(results), c.created, len(c.pods), results[119])
		}
	})
}

func TestImagesOfAPodAreJudgedByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{}
		p := newPuller(c)
		p.Images = []string{image, "127.0.0.1:31999/team/other:1"}
		c.kubelet = func(string, time.Duration) (corev1.PodStatus, []corev1.Event) {
			other := event("Warning", "Failed",
				`Failed to pull image "127.0.0.1:31999/team/other:1": no match for platform in manifest sha256:1: not found`, 3)
			other.InvolvedObject.FieldPath = "spec.containers{image-1}"
			return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
					{Name: "image-1", State: waiting("ErrImagePull", "")}, {Name: "image-0", ImageID: "1", State: ended("StartError")},
				}}, []corev1.Event{other, event("Warning", "Failed", "Error: failed to create containerd task", 1),
					event("Normal", "Pulled", `Container image "x" already present on machine`, 1)}
		}
		results := p.Pull(t.Context(), []corev1.Node{node("n")})
		if len(results) != 2 || results[0].Outcome != Present || results[1].Outcome != Failed ||
			!strings.HasPrefix(results[1].Message, "no match for platform") || !strings.Contains(results[1].Remedy, "platform") {
			t.Errorf("%+v", results)
		}
	})
}

func TestWithoutEventsNodesPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{}
		p := newPuller(c)
		var logged bytes.Buffer
		p.Events, p.Log = noEvents{}, slog.New(slog.NewTextHandler(&logged, nil))
		results := p.Pull(t.Context(), []corev1.Node{node("has it"), node("containerd")})
		if len(results) != 2 || results[0].Outcome != Pulled || results[1].Outcome != Pulled ||
			strings.Count(logged.String(), "cannot list events") != 1 {
			t.Errorf("%+v, log %s", results, &logged)
		}
	})
}

type noEvents struct{}

func (noEvents) List(context.Context, metav1.ListOptions) (*corev1.EventList, error) {
	return nil, errors.New("forbidden")
}

// Claim: `images warm` runs nothing of an image.
func TestPodsMayDoNothing(t *testing.T) {
	p := newPuller(&fakeCluster{})
	p.PullSecret = "r-pull"
	pod := p.pod("n1")
	s := pod.Spec
	c := s.Containers[0]
	if s.NodeName != "n1" || *s.AutomountServiceAccountToken || !*s.SecurityContext.RunAsNonRoot ||
		s.SecurityContext.SeccompProfile == nil || *c.SecurityContext.AllowPrivilegeEscalation ||
		c.SecurityContext.Capabilities.Drop[0] != "ALL" || len(c.Command) != 1 ||
		!strings.HasPrefix(c.Command[0], commandPrefix) || len(c.Command[0]) < len(commandPrefix)+20 ||
		slices.Equal(c.Command, p.pod("n1").Spec.Containers[0].Command) ||
		c.ImagePullPolicy != corev1.PullIfNotPresent || s.ImagePullSecrets[0].Name != "r-pull" ||
		*s.ActiveDeadlineSeconds != 120 || pod.Labels["zarf.dev/agent"] != "ignore" || s.HostNetwork {
		t.Errorf("%+v", pod)
	}
	p.PullSecret = ""
	if p.pod("n1").Spec.ImagePullSecrets != nil {
		t.Error("proxy mode has a pull secret")
	}
}
