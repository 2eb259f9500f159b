package pulltest

import (
	"context"
	"errors"
	"fmt"
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
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: 128}}
}

func event(reason, message string) corev1.Event {
	return corev1.Event{Type: "Warning", Reason: reason, Message: message}
}

// kubelet is what kubelets of Kubernetes 1.30 to 1.36 report.
func kubelet(node string, age time.Duration) (s corev1.PodStatus, events []corev1.Event) {
	c := corev1.ContainerStatus{Name: containerName, Image: image, State: waiting("ContainerCreating", "")}
	switch {
	case node == "full":
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "too many pods"}, nil
	case node == "reboots", node == "is removed", node == "deletes", node == "dead":
		return corev1.PodStatus{Phase: corev1.PodPending}, nil
	case node == "sandbox":
		events = []corev1.Event{event("FailedCreatePodSandBox", "no addresses")}
	case node == "refused":
		c.State = waiting("ErrImagePull", "dial tcp 127.0.0.1:31999: connect: connection refused")
	case age < time.Second:
	case node == "slow", node == "recovers" && age < 11*time.Second:
		c.State = waiting("ImagePullBackOff", "Back-off pulling image")
		events = []corev1.Event{event("Failed", `Failed to pull image "`+image+`": rpc error: code = Unknown desc = `+
			"failed to do request:\ndial tcp 127.0.0.1:31999: i/o timeout")}
	case node == "cri-o":
		c.State = waiting("CreateContainerError", "permission denied")
	case node == "name":
		c.State = waiting("InvalidImageName", "couldn't parse image name")
	case node == "forgets":
		c.State = ended("ContainerStatusUnknown")
	case node == "exits":
		c.State, c.ImageID = ended("Error"), "sha256:1"
		c.State.Terminated.Message = "exec format error"
		s.Phase = corev1.PodFailed
	default:
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
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

func TestNodesPull(t *testing.T) {
	for name, want := range map[string]Result{
		"runs":     {Outcome: Pulled},
		"recovers": {Outcome: Pulled},
		"name":     {Outcome: Failed, Message: "InvalidImageName: couldn't parse", Remedy: "check kube-proxy"},
		"forgets":  {Outcome: Failed, Message: "ContainerStatusUnknown", Remedy: "kubectl describe node"},
		"cri-o":    {Outcome: Failed, Message: "not in time: the image was pulled but could not run", Remedy: "kube-proxy"},
		"deletes":  {Outcome: Failed, Message: "its pod was deleted each time", Remedy: "run the command again"},
		"denies":   {Outcome: Failed, Message: "creating a pod for it: "},
		"down":     {Outcome: skipped, Message: "the node is not ready"},
		"dead":     {Outcome: Failed, Message: "not in time, and its kubelet reported nothing", Remedy: "check kube-proxy"},
		"sandbox":  {Outcome: Failed, Message: "not in time: FailedCreatePodSandBox: no addresses", Remedy: "check kube-proxy"},
		"slow":     {Outcome: Failed, Message: "not in time: rpc error", Remedy: "registryProxy=true"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &fakeCluster{}
				v, _ := newVerifier(c, name)
				results := v.puller(image, false).pull(t.Context(), []corev1.Node{node(name)})
				if len(results) != 1 || len(c.pods) != 0 {
					t.Fatalf("%d results, and pods %v", len(results), c.pods)
				}
				got := results[0]
				if got.Node != name || got.Outcome != want.Outcome || !strings.Contains(got.Message, want.Message) ||
					!strings.Contains(got.Remedy, want.Remedy) || (got.Remedy == "") != (want.Remedy == "") ||
					strings.Contains(got.Message, "\n") {
					t.Errorf("%+v, want %+v", got, want)
				}
			})
		})
	}
}

func TestPullsAreInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{}
		v, _ := newVerifier(c, "dead")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("interrupted")) })
		results := v.puller(image, false).pull(ctx, slices.Repeat([]corev1.Node{node("dead")}, 120))
		if len(results) != 120 || c.created != nodesAtOnce || len(c.pods) != 0 ||
			!strings.HasPrefix(results[0].Message, "interrupted") || results[119].Message != "not started: interrupted" {
			t.Errorf("%d results, %d pods, %d left, %+v", len(results), c.created, len(c.pods), results[119])
		}
	})
}

func TestWithoutEventsNodesPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, log := newVerifier(&fakeCluster{}, "a", "recovers")
		v.Cluster.Events = noEvents{}
		results := v.puller(image, false).pull(t.Context(), []corev1.Node{node("a"), node("recovers")})
		if len(results) != 2 || results[0].Outcome != Pulled || results[1].Outcome != Pulled ||
			strings.Count(log.String(), "cannot list events") != 1 {
			t.Errorf("%+v, log %s", results, log)
		}
	})
}

type noEvents struct{}

func (noEvents) List(context.Context, metav1.ListOptions) (*corev1.EventList, error) {
	return nil, errors.New("forbidden")
}
