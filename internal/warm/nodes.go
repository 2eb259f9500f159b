package warm

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/plan"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/verify"
)

const (
	// nodesAtOnce is how many nodes pull at once, as in a verification; each costs a pod.
	nodesAtOnce = 50
	// pollInterval is how often pods and events are listed: a kubelet needs about a second for an image that it
	// has.
	pollInterval = time.Second
	// maxAttempts is how often a kubelet tries to pull an image before its node has failed: at once, and after
	// 10 s and 20 s.
	maxAttempts = 3
	// eventGrace is how long a pull's event is awaited after the pod's status tells that it succeeded.
	eventGrace = 5 * time.Second
	// deadlineSlack keeps a pod's own deadline, for when this program is killed, out of the way.
	deadlineSlack = time.Minute
	// commandPrefix is that of the containers' command, which exists in no image, so that nothing of one runs: the
	// rest is random, because an image could contain any name that is known.
	commandPrefix = "/zarf-registry-warm-"
)

// Puller makes nodes pull images, with a pod on each that has a container for each image. Its fields must be
// set, apart from PullSecret.
type Puller struct {
	// Pods and Events are scoped to Namespace, which is the release's.
	Pods               verify.Pods
	Events             nodes.Events
	Namespace, Release string
	Mode               state.Mode
	// PullSecret is the name of the Secret to pull with. Proxy mode needs none.
	PullSecret string
	// Images are complete references.
	Images []string
	// Limit is how long a pod may exist, should this program be killed.
	Limit time.Duration
	Log   *slog.Logger

	blind bool // events cannot be listed, which was logged
}

// attempt is a node's pod.
type attempt struct {
	begun   time.Time
	results []Result    // by image; those that are not finished have no outcome
	pulled  []time.Time // by image: when the pod's status told
	failing []string    // by image: what the kubelet has reported last
}

func (p *Puller) newAttempt(node string) *attempt {
	a := &attempt{begun: time.Now(), results: make([]Result, len(p.Images)), pulled: make([]time.Time, len(p.Images)),
		failing: make([]string, len(p.Images))}
	for i, image := range p.Images {
		a.results[i] = Result{Name: node, Image: image}
	}
	return a
}

func (a *attempt) done() bool {
	return !slices.ContainsFunc(a.results, func(r Result) bool { return r.Outcome == "" })
}

// Pull returns the results of all nodes and images, in their order. When ctx ends, what is not finished has
// failed with its cause. It deletes its pods, and those of a run that was killed: only one run may exist.
func (p *Puller) Pull(ctx context.Context, on []corev1.Node) []Result {
	p.deletePods()
	defer p.deletePods()
	var all []*attempt
	open := map[string]*attempt{} // by pod
	waiting := on
	for len(waiting)+len(open) > 0 && ctx.Err() == nil {
		for len(waiting) > 0 && len(open) < nodesAtOnce {
			a := p.newAttempt(waiting[0].Name)
			all = append(all, a)
			if !plan.NodeReady(waiting[0]) {
				p.failRest(a, "the node is not ready", adviceNode)
			} else if pod, err := p.Pods.Create(ctx, p.pod(waiting[0].Name), metav1.CreateOptions{}); err != nil {
				p.failRest(a, "creating a pod for it: "+err.Error(), "")
			} else {
				open[pod.Name] = a
			}
			waiting = waiting[1:]
		}
		p.look(ctx, open)
		for name, a := range open {
			if a.done() {
				delete(open, name)
				p.deletePod(name)
			}
		}
		if len(waiting)+len(open) > 0 {
			_ = release.Sleep(ctx, pollInterval) // its error is that of ctx
		}
	}
	if len(open) > 0 {
		p.failOpen(ctx, open)
	}
	for _, node := range waiting {
		a := p.newAttempt(node.Name)
		all = append(all, a)
		p.failRest(a, "not begun: "+context.Cause(ctx).Error(), adviceAgain)
	}
	var results []Result
	for _, a := range all {
		results = append(results, a.results...)
	}
	return results
}

// look updates the attempts from what the kubelets report.
func (p *Puller) look(ctx context.Context, open map[string]*attempt) {
	pods, err := p.Pods.List(ctx, p.selector())
	if err != nil {
		p.Log.Debug("cannot list pods, trying again", "error", err)
		return
	}
	byName := map[string]*corev1.Pod{}
	needed := false // events are, which are many
	for i := range pods.Items {
		byName[pods.Items[i].Name] = &pods.Items[i]
		needed = needed || slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return pulled(c) || complaint(c) != ""
		})
	}
	var reported map[containerKey]*report
	if needed {
		events, err := p.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod"})
		switch {
		case err == nil:
			reported = reports(events.Items)
		case !p.blind && ctx.Err() == nil:
			p.blind = true
			p.Log.Warn("cannot list events: which images were there already is unknown, and failed pulls are retried until "+
				"the time is over", "error", err)
		}
	}
	for name, a := range open {
		pod := byName[name]
		if pod == nil || pod.DeletionTimestamp != nil {
			p.failRest(a, "its pod was deleted, as another run of this command does", adviceAgain)
			continue
		}
		for i := range a.results {
			if a.results[i].Outcome == "" {
				p.judge(a, i, pod, reported[containerKey{name, containerName(i)}])
			}
		}
		if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" { // the kubelet does not run it
			p.failRest(a, pod.Status.Reason+": "+pod.Status.Message, adviceNode)
		}
	}
}

// judge finishes an image whose pull has ended.
func (p *Puller) judge(a *attempt, i int, pod *corev1.Pod, r *report) {
	at := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == containerName(i)
	})
	if at < 0 {
		return
	}
	if r == nil {
		r = &report{}
	}
	status := pod.Status.ContainerStatuses[at]
	says := complaint(status)
	switch {
	case pulled(status):
		if a.pulled[i].IsZero() {
			a.pulled[i] = time.Now()
		}
		switch {
		case r.pulled:
			p.finish(&a.results[i], Pulled, cmp.Or(r.took, a.pulled[i].Sub(a.begun)))
		case r.present:
			p.finish(&a.results[i], Present, 0)
		case time.Since(a.pulled[i]) >= eventGrace: // events may be lost
			p.finish(&a.results[i], Pulled, a.pulled[i].Sub(a.begun))
		}
	case status.State.Terminated != nil:
		t := status.State.Terminated
		p.fail(a, i, t.Reason+": "+t.Message, adviceNode)
	case says == "":
	case r.failures >= maxAttempts, strings.HasPrefix(says, "InvalidImageName"):
		message := oneLine(cmp.Or(r.failure, says))
		p.fail(a, i, message, p.advice(message))
	default:
		if a.failing[i] == "" {
			p.Log.Warn("a pull failed, the kubelet retries", "node", a.results[i].Name, "image", a.results[i].Image, "error",
				oneLine(cmp.Or(r.failure, says)))
		}
		a.failing[i] = cmp.Or(r.failure, says)
	}
}

// pulled reports whether a kubelet has got past the pull of a container's image. Creating or starting the
// container fails then, because it has no such command: containerd reports StartError, and CRI-O
// CreateContainerError. Before that, kubelets refuse images that would run as root. The reasons are those of
// Kubernetes' pkg/kubelet/kuberuntime and pkg/kubelet/container.
func pulled(c corev1.ContainerStatus) bool {
	if w := c.State.Waiting; w != nil {
		return slices.Contains([]string{"CreateContainerConfigError", "PreCreateHookError", "CreateContainerError",
			"PreStartHookError", "RunContainerError", "PostStartHookError", "CrashLoopBackOff"}, w.Reason)
	}
	// Without an image, the kubelet does not know how a container ended (ContainerStatusUnknown).
	return c.State.Running != nil || c.State.Terminated != nil && c.ImageID != ""
}

// complaint returns why a container waits, if that is about its image, and "" otherwise.
func complaint(c corev1.ContainerStatus) string {
	w := c.State.Waiting
	if w == nil || pulled(c) || slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
		return ""
	}
	return w.Reason + ": " + w.Message
}

type containerKey struct{ pod, container string }

// report is what a kubelet's events tell about a container's image.
type report struct {
	pulled, present bool
	took            time.Duration // 0 if unknown
	failures        int
	failure         string // the newest
	at              metav1.Time
}

var pullTime = regexp.MustCompile(`^Successfully pulled image .* \((\S+) including waiting\)`)

// reports reads events of pods.
func reports(events []corev1.Event) map[containerKey]*report {
	all := map[containerKey]*report{}
	for _, e := range events {
		container, ok := strings.CutPrefix(strings.TrimSuffix(e.InvolvedObject.FieldPath, "}"), "spec.containers{")
		if !ok {
			continue
		}
		key := containerKey{e.InvolvedObject.Name, container}
		r := all[key]
		if r == nil {
			r = &report{}
			all[key] = r
		}
		switch failure, failed := strings.CutPrefix(e.Message, "Failed to pull image "); {
		case e.Reason == "Pulled":
			// A kubelet that has pulled, and could not create the container, says at its next try that the image is there.
			present := strings.Contains(e.Message, "already present on machine")
			r.present, r.pulled = r.present || present, r.pulled || !present
			if found := pullTime.FindStringSubmatch(e.Message); found != nil {
				r.took, _ = time.ParseDuration(found[1]) // unknown otherwise
			}
		case e.Reason == "Failed" && failed:
			r.failures += max(1, int(e.Count))
			if r.failure == "" || r.at.Before(&e.LastTimestamp) {
				_, why, _ := strings.Cut(failure, `": `) // after the quoted reference
				r.failure, r.at = cmp.Or(why, failure), e.LastTimestamp
			}
		}
	}
	return all
}

func (p *Puller) finish(r *Result, outcome Outcome, took time.Duration) {
	r.Outcome, r.Seconds = outcome, seconds(took)
	p.Log.Info(string(outcome), "node", r.Name, "image", r.Image, "seconds", r.Seconds)
}

func (p *Puller) fail(a *attempt, i int, message, remedy string) {
	r := &a.results[i]
	r.Outcome, r.Seconds, r.Message, r.Remedy = Failed, seconds(time.Since(a.begun)), oneLine(message), remedy
	p.Log.Warn("failed", "node", r.Name, "image", r.Image, "error", r.Message)
}

// failRest fails what is not finished.
func (p *Puller) failRest(a *attempt, message, remedy string) {
	for i, r := range a.results {
		if r.Outcome == "" {
			p.fail(a, i, message, remedy)
		}
	}
}

// failOpen fails what is not finished when ctx has ended, with what the kubelets have reported last.
func (p *Puller) failOpen(ended context.Context, open map[string]*attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ended), 10*time.Second)
	defer cancel()
	warnings := map[string]string{}
	if events, err := p.Events.List(ctx, nodes.PodWarnings()); err == nil {
		warnings = nodes.NewestWarnings(events.Items)
	}
	cause := context.Cause(ended).Error()
	for pod, a := range open {
		for i, r := range a.results {
			warning := warnings[pod]
			switch {
			case r.Outcome != "":
			case a.failing[i] != "":
				p.fail(a, i, cause+": "+a.failing[i], p.advice(a.failing[i]))
			case warning != "" && !strings.Contains(warning, commandPrefix): // that is about another image
				p.fail(a, i, cause+": "+warning, adviceNode)
			default:
				p.fail(a, i, cause, adviceAgain)
			}
		}
	}
}

const (
	adviceAgain = "run the command again; what was pulled stays"
	adviceNode  = "kubectl describe node shows the state of the node"
)

// advice returns what to do about a kubelet's complaint about a pull.
func (p *Puller) advice(complaint string) string {
	switch has := func(sign string) bool { return strings.Contains(complaint, sign) }; {
	case has("is not signed by"):
		return "sign the image with a key of registry.verifyKeys"
	case has("no match for platform"), has("no image found in"): // containerd, CRI-O
		return "push the image for the platform of this node, or select other nodes"
	case has("no space left on device"):
		return "free or enlarge the disk of the node's images"
	case has("not found"), has("manifest unknown"):
		return "the image was deleted meanwhile: push it again"
	}
	return verify.Advice(p.Mode, complaint)
}

func containerName(i int) string { return "image-" + strconv.Itoa(i) }

func (p *Puller) selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.Selector(p.Release, names.ComponentWarm)}
}

// pod returns the pod that makes a node pull.
func (p *Puller) pod(node string) *corev1.Pod {
	no, yes, second, limit := false, true, int64(1), int64((p.Limit + deadlineSlack).Seconds())
	var secrets []corev1.LocalObjectReference
	if p.PullSecret != "" {
		secrets = []corev1.LocalObjectReference{{Name: p.PullSecret}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: p.Release + "-warm-",
			Namespace:    p.Namespace,
			Labels:       names.PodLabels(p.Release, names.ComponentWarm),
		},
		Spec: corev1.PodSpec{
			// Set directly: the scheduler plays no part in a pull.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &second,
			ActiveDeadlineSeconds:         &limit,
			ImagePullSecrets:              secrets,
			// No user: the kubelet then refuses to run an image as root, after it has pulled it, and OpenShift
			// admits the pod.
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		},
	}
	for i, image := range p.Images {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name:            containerName(i),
			Image:           image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Command:         []string{commandPrefix + rand.Text()},
			SecurityContext: release.RestrictedContainer(),
			// Quotas may require both. Without a request the pod fits on any node; with less memory, CRI-O refuses.
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0"),
				},
				Limits: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
				},
			},
		})
	}
	return pod
}

// deletePods deletes the pods of this run and of one that was killed.
func (p *Puller) deletePods() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // also if the run's context has ended
	defer cancel()
	pods, err := p.Pods.List(ctx, p.selector())
	if err != nil {
		p.Log.Warn("cannot list the pods that pull; they stay until the next run", "error", err)
		return
	}
	for _, pod := range pods.Items {
		p.deletePod(pod.Name)
	}
}

func (p *Puller) deletePod(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		p.Log.Warn(fmt.Sprintf("cannot delete %s/%s; it stays until the next run", p.Namespace, name), "error", err)
	}
}
