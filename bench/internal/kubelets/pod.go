package kubelets

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// authorizeTime is how long the API server may deny a node what belongs to its new pod, which it does not know yet.
	authorizeTime = 200 * time.Millisecond
	// What a pod takes on an idle node: sandbox and container, a startup probe each second, a pull of the tiny image, the
	// end of its processes; and until a program looks at its files again.
	containerTime, probeTime, pullTime = time.Second, time.Second, 500 * time.Millisecond
	stopTime, noticeTime               = time.Second, time.Second
	// RefreshTime is how often kubelets refresh mounted objects, plus up to half as much.
	RefreshTime = time.Minute
)

// pod is a pod with one container.
type pod struct {
	*Kubelet
	*corev1.Pod // as last seen before it ran
	deleting    context.CancelFunc
	annotated   chan struct{} // has an element if the annotation has changed

	mu        sync.Mutex
	refreshed string // the annotation
	mounts    []*mount
	loaded    loaded.State
}

// mount is a Secret or ConfigMap that a pod mounts. Its object is nil if it does not exist.
type mount struct {
	optional, known bool
	object          any
}

// setPod notes a change of a pod.
func (k *Kubelet) setPod(ctx context.Context, o any, exists bool) {
	object, is := o.(*corev1.Pod)
	if !is {
		return
	}
	k.mu.Lock()
	p := k.pods[object.UID]
	if p == nil && exists {
		p = &pod{Kubelet: k, Pod: object, annotated: make(chan struct{}, 1)}
		var starting context.Context
		starting, p.deleting = context.WithCancel(ctx)
		k.pods[object.UID] = p
		k.serving.Store(object.Namespace+"/"+object.Name, p)
		go p.run(ctx, starting)
	}
	k.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := object.Annotations[names.AnnotationRefreshed]; p.refreshed != now {
		p.refreshed = now
		select {
		case p.annotated <- struct{}{}:
		default:
		}
	}
	if !exists || object.DeletionTimestamp != nil {
		p.deleting()
	}
}

// run is the pod's life: until starting ends, because the pod is deleted, and then its termination. ctx ends with the
// node.
func (p *pod) run(ctx, starting context.Context) {
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	_ = program.Sleep(ctx, authorizeTime)
	p.watchMounts(watching)
	p.live(starting)
	if ctx.Err() != nil {
		return
	}
	if p.Spec.RestartPolicy != corev1.RestartPolicyNever { // others have ended
		p.event(ctx, "Killing", "Stopping container "+p.Spec.Containers[0].Name)
		_ = program.Sleep(ctx, stopTime)
		p.report(ctx, corev1.PodSucceeded, terminated(), false)
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = &metav1.Preconditions{UID: &p.UID}
	p.fail(ctx, "deleting a pod", p.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Pod.Name, *options))
	p.serving.Delete(p.Namespace + "/" + p.Pod.Name)
	p.Kubelet.mu.Lock()
	defer p.Kubelet.mu.Unlock()
	delete(p.pods, p.UID)
}

// live starts the pod's container and refreshes its mounts, until ctx ends.
func (p *pod) live(ctx context.Context) {
	p.report(ctx, corev1.PodPending, corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}, false)
	for !p.mountable() {
		if program.Sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
	container := p.Spec.Containers[0]
	if container.ImagePullPolicy == corev1.PullAlways {
		p.event(ctx, "Pulling", fmt.Sprintf("Pulling image %q", container.Image))
		_ = program.Sleep(ctx, pullTime)
		p.pulled(container.Image)
	}
	p.event(ctx, "Pulled", fmt.Sprintf("Container image %q is present", container.Image))
	if program.Sleep(ctx, containerTime) != nil {
		return
	}
	p.event(ctx, "Created", "Container created: "+container.Name)
	p.event(ctx, "Started", "Container started: "+container.Name)
	if p.Spec.RestartPolicy == corev1.RestartPolicyNever {
		p.report(ctx, corev1.PodSucceeded, terminated(), false)
		<-ctx.Done()
		return
	}
	p.load(ctx)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	p.report(ctx, corev1.PodRunning, running, false)
	_ = program.Sleep(ctx, probeTime)
	p.report(ctx, corev1.PodRunning, running, true)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-p.annotated:
		case <-time.After(RefreshTime + time.Duration(mathrand.Int64N(int64(RefreshTime/2)))):
		}
		if program.Sleep(ctx, noticeTime) == nil {
			p.load(ctx)
		}
	}
}

// pulled adds an image to the node, which the kubelet reports with the next heartbeat.
func (k *Kubelet) pulled(image string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.ContainsFunc(k.images, func(i corev1.ContainerImage) bool { return i.Names[0] == image }) {
		k.images = append(k.images, corev1.ContainerImage{Names: []string{image}, SizeBytes: 2000})
		k.reported = time.Time{}
	}
}

func terminated() corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed",
		FinishedAt: metav1.Now(), ContainerID: "containerd://simulated"}}
}

// watchMounts watches each Secret and ConfigMap of the pod by its name, until ctx ends.
func (p *pod) watchMounts(ctx context.Context) {
	add := func(kind, name string, optional *bool, o runtime.Object) {
		m := &mount{optional: optional != nil && *optional}
		p.mounts = append(p.mounts, m)
		p.follow(ctx, p.client.CoreV1().RESTClient(), kind, p.Namespace, "metadata.name="+name, o, func(o any, exists bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if m.object, m.known = o, true; !exists {
				m.object = nil
			}
		})
	}
	for _, v := range p.Spec.Volumes {
		projected := &corev1.ProjectedVolumeSource{}
		switch {
		case v.Secret != nil:
			add("secrets", v.Secret.SecretName, v.Secret.Optional, &corev1.Secret{})
		case v.Projected != nil:
			projected = v.Projected
		case v.EmptyDir == nil:
			p.fail(ctx, "pod "+p.Pod.Name, fmt.Errorf("volume %s is not simulated", v.Name))
		}
		for _, s := range projected.Sources {
			if s.ConfigMap == nil {
				p.fail(ctx, "pod "+p.Pod.Name, fmt.Errorf("a source of volume %s is not simulated", v.Name))
				continue
			}
			add("configmaps", s.ConfigMap.Name, s.ConfigMap.Optional, &corev1.ConfigMap{})
		}
	}
}

// mountable reports whether all that the pod mounts exists.
func (p *pod) mountable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.mounts, func(m *mount) bool { return !m.known || m.object == nil && !m.optional })
}

// load makes what the kubelet has what a proxy has loaded.
func (p *pod) load(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := loaded.State{Certificates: loaded.Certificates{Generation: 1, LoadedAt: time.Now()}}
	for _, m := range p.mounts {
		switch o := m.object.(type) {
		case *corev1.Secret:
			leaf, err := cert.ParseCertsPEM(o.Data[corev1.TLSCertKey])
			p.fail(ctx, "certificate of "+o.Name, err)
			cas, err := cert.ParseCertsPEM(o.Data[names.KeyCA])
			p.fail(ctx, "CAs of "+o.Name, err)
			for _, c := range leaf {
				next.Certificates.Leaf.SHA256 = pki.Fingerprint(c)
			}
			for _, c := range cas {
				next.Certificates.TrustedCAs = append(next.Certificates.TrustedCAs,
					loaded.Certificate{SHA256: pki.Fingerprint(c)})
			}
		case *corev1.ConfigMap:
			if text := o.BinaryData[injector.ManifestKey]; text != nil {
				manifest, err := injector.ParseManifest(text)
				if p.fail(ctx, "manifest in "+o.Name, err); err == nil {
					next.Program = hex.EncodeToString(manifest.ProgramSHA256[:])
				}
			}
		}
	}
	p.loaded = next
}

// report writes the pod's status, as the kubelet does: it reads the pod and patches it.
func (p *pod) report(ctx context.Context, phase corev1.PodPhase, state corev1.ContainerState, ready bool) {
	container, started := p.Spec.Containers[0], phase == corev1.PodRunning
	status := corev1.PodStatus{Phase: phase, HostIP: p.Address, QOSClass: p.Status.QOSClass,
		ContainerStatuses: []corev1.ContainerStatus{{Name: container.Name, Image: container.Image, State: state, Ready: ready,
			Started: &started}}}
	if phase != corev1.PodPending {
		status.PodIP = fmt.Sprintf("10.78.%d.%d", p.number/250, p.number%250+1)
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
		status.ContainerStatuses[0].ImageID = container.Image
		status.ContainerStatuses[0].ContainerID = "containerd://simulated"
	}
	is := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	for kind, holds := range map[corev1.PodConditionType]bool{corev1.PodReadyToStartContainers: phase != corev1.PodPending,
		corev1.PodInitialized: true, corev1.ContainersReady: ready, corev1.PodReady: ready, corev1.PodScheduled: true} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: is[holds],
			LastTransitionTime: metav1.Now()})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	pods := p.client.CoreV1().Pods(p.Namespace)
	if err == nil {
		_, err = pods.Get(ctx, p.Pod.Name, metav1.GetOptions{})
	}
	for apierrors.IsForbidden(err) && program.Sleep(ctx, authorizeTime) == nil {
		_, err = pods.Get(ctx, p.Pod.Name, metav1.GetOptions{})
	}
	if err == nil {
		_, err = pods.Patch(ctx, p.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	p.fail(ctx, "reporting pod "+p.Pod.Name, err)
}

// event records an event without waiting, as kubelets do.
func (p *pod) event(ctx context.Context, reason, message string) {
	now := metav1.Now()
	go func() {
		_, err := p.client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", p.Pod.Name, time.Now().UnixNano())},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Pod.Name, UID: p.UID},
			Reason:         reason, Message: message, Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now,
			LastTimestamp: now, Source: corev1.EventSource{Component: "kubelet", Host: p.Name},
		}, metav1.CreateOptions{})
		p.fail(ctx, "event", err)
	}()
}

// forward forwards a port of a simulated proxy, which answers any request with what it has loaded.
func (ks *Kubelets) forward(w http.ResponseWriter, r *http.Request) {
	value, serves := ks.serving.Load(strings.TrimPrefix(r.URL.Path, "/portForward/"))
	if !serves {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // the response says why
	}
	streams := make(chan httpstream.Stream, 2)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if connection == nil {
		return
	}
	defer func() { _ = connection.Close() }()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				ks.fail(r.Context(), "port-forward", value.(*pod).answer(s))
			}
			_ = s.Close()
		case <-connection.CloseChan():
			return
		case <-timeout:
			return
		}
	}
}

func (p *pod) answer(s io.ReadWriter) error {
	if _, err := http.ReadRequest(bufio.NewReader(s)); err != nil {
		return err
	}
	p.mu.Lock()
	body, err := json.Marshal(p.loaded)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return (&http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}).Write(s)
}
