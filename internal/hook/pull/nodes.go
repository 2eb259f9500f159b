package pull

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

	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// nodesAtOnce is how many nodes pull at once; each costs a pod.
	nodesAtOnce = 50
	// pollInterval is how often pods and events are listed: a kubelet needs about a second for an image that it
	// has.
	pollInterval = 500 * time.Millisecond
	// readyInterval is how often nodes are listed. It is about as long as a node that is away remains unnoticed.
	readyInterval = 10 * time.Second
	// createTime bounds the attempts to create a pod, while the API server restarts or other pods use up a quota.
	createTime = 30 * time.Second
	// restarts is how often a verification creates the pod of a node again that was deleted or that the kubelet
	// rejected: it may have no room only while other pods terminate. restartPause is the time in between.
	restarts     = 2
	restartPause = 5 * time.Second
	// maxAttempts is how often a kubelet tries to pull an image before its node has failed: at once, and after
	// 10 s and 20 s.
	maxAttempts = 3
	// eventGrace is how long a pull's event is awaited after the pod's status says that it succeeded.
	eventGrace = 5 * time.Second
	// deadlineSlack keeps a pod's own deadline, for when this program is killed, out of the way.
	deadlineSlack = time.Minute
	// commandPrefix is that of the containers' command, which exists in no image, so that nothing of one runs: the
	// rest is random, because an image could contain any name that is known.
	commandPrefix = "/zarf-registry-warm-"
)

// Pods lists, creates and deletes pods.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Puller makes nodes pull images, with a pod on each that has a container for each image. Its exported fields must be
// set, apart from PullSecret.
type Puller struct {
	// Pods and Events are scoped to Namespace, which is the release's.
	Pods   Pods
	Events nodes.Events
	// Ready maps each node to whether it is ready.
	Ready              func(context.Context) (map[string]bool, error)
	Namespace, Release string
	Mode               state.Mode
	// PullSecret is the name of the Secret to pull with. Proxy mode needs none.
	PullSecret string
	// Images are complete references.
	Images []string
	// Limit is how long a pod may exist, should this program be killed.
	Limit time.Duration
	Log   *slog.Logger

	verify *verification // nil unless pulls are verified

	eventsForbidden bool      // events cannot be listed, which was logged
	plain           bool      // a LimitRange sets the pods' resources
	asked           time.Time // when the nodes were listed
	ready           map[string]bool
}

// verification is how a Puller verifies pulls of one image: the image's own program runs, and no node is tried after
// one has failed, or with everywhere, after as many as are tried at once.
type verification struct {
	pod func() *corev1.Pod // without container
	// limit bounds the pull of each node.
	limit time.Duration
	// permanent reports whether no retry helps a pull with this complaint. Nil: a retry may always help.
	permanent  func(complaint string) bool
	everywhere bool
	// mayFail is how many nodes may fail before no other is tried.
	mayFail int
}

// attempt is a node's pod.
type attempt struct {
	node     string
	tried    time.Time // when a pod was first to be created, and when one was; zero until then
	begun    time.Time
	results  []Result    // by image; those that are not finished have no outcome
	pulled   []time.Time // by image: when the pod's status told
	failing  []string    // by image: what the kubelet has reported last
	restarts int
	pause    time.Time // until then, no pod is created
}

func (p *Puller) newAttempt(node string) *attempt {
	a := &attempt{node: node, results: make([]Result, len(p.Images)), pulled: make([]time.Time, len(p.Images)),
		failing: make([]string, len(p.Images))}
	for i, image := range p.Images {
		a.results[i] = Result{Name: node, Image: image}
	}
	return a
}

func (a *attempt) done() bool {
	return !slices.ContainsFunc(a.results, func(r Result) bool { return r.Outcome == "" })
}

func (a *attempt) failed() bool {
	return slices.ContainsFunc(a.results, func(r Result) bool { return r.Outcome == Failed })
}

// Pull returns the results of all nodes and images, in their order. When ctx ends, what is not finished has
// failed with its cause. It deletes its pods, and those of a run that was killed: only one run may exist.
func (p *Puller) Pull(ctx context.Context, on []corev1.Node) []Result {
	p.deletePods()
	defer p.deletePods()
	p.asked, p.ready = time.Now(), nil
	var all, waiting []*attempt
	for _, n := range on {
		a := p.newAttempt(n.Name)
		all = append(all, a)
		if plan.NodeReady(n) {
			waiting = append(waiting, a)
		} else {
			p.skip(a, "the node is not ready")
		}
	}
	open, failed := map[string]*attempt{}, 0 // open by pod
	for len(waiting)+len(open) > 0 && ctx.Err() == nil {
		waiting = p.start(ctx, waiting, open)
		again := p.look(ctx, open)
		p.giveUp(ctx, open)
		for name, a := range open {
			if a.done() || slices.Contains(again, a) {
				if a.failed() {
					failed++
				}
				delete(open, name)
				p.deletePod(name)
			}
		}
		waiting = append(again, waiting...)
		if p.verify != nil && failed > p.verify.mayFail && (!p.verify.everywhere || failed >= nodesAtOnce) {
			waiting = nil // the others may take hours
		}
		if len(waiting)+len(open) > 0 {
			_ = release.Sleep(ctx, pollInterval) // its error is that of ctx
		}
	}
	if len(open) > 0 {
		p.failOpen(ctx, open, context.Cause(ctx).Error())
	}
	for _, a := range waiting {
		p.failRemaining(a, "not started: "+context.Cause(ctx).Error(), adviceAgain)
	}
	var results []Result
	for _, a := range all {
		results = append(results, a.results...)
	}
	return results
}

// start creates pods for as many nodes as may pull at once, and returns the nodes that still wait.
func (p *Puller) start(ctx context.Context, waiting []*attempt, open map[string]*attempt) (still []*attempt) {
	for i, a := range waiting {
		if len(open) >= nodesAtOnce {
			return append(still, waiting[i:]...)
		}
		if time.Now().Before(a.pause) {
			still = append(still, a)
			continue
		}
		if a.tried.IsZero() {
			a.tried = time.Now()
		}
		pod, err := p.create(ctx, a.node)
		switch {
		case err == nil:
			open[pod.Name] = a
			if a.begun.IsZero() {
				a.begun = time.Now()
			}
		case (release.IsTransient(err) || release.QuotaExceeded(err)) && (len(open) > 0 || time.Since(a.tried) < createTime),
			release.MissingPermission(err) && time.Since(a.tried) < createTime: // the API server may be starting
			return append(still, waiting[i:]...)
		default:
			p.failRemaining(a, "creating a pod for it: "+err.Error(), "")
		}
	}
	return still
}

// create creates the pod of a node. If a LimitRange rejects its resources, it leaves them to the LimitRange.
func (p *Puller) create(ctx context.Context, node string) (created *corev1.Pod, err error) {
	for {
		pod := p.pod(node)
		err = release.RetryOverload(ctx, func() error {
			created, err = p.Pods.Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
		if p.plain || !apierrors.IsForbidden(err) || !limited.MatchString(err.Error()) {
			return created, err
		}
		p.plain = true
	}
}

// limited matches the messages of Kubernetes' plugin/pkg/admission/limitranger.
var limited = regexp.MustCompile(`(minimum|maximum) (cpu|memory) (usage|limit)|to request ratio`)

// look updates the attempts from what the kubelets report, and returns those whose pod is to be created again.
func (p *Puller) look(ctx context.Context, open map[string]*attempt) (again []*attempt) {
	pods, err := p.Pods.List(ctx, p.selector())
	if err != nil {
		p.Log.Debug("cannot list pods, trying again", "error", err)
		return nil
	}
	byName := map[string]*corev1.Pod{}
	needed := false // events are, which are many
	for i := range pods.Items {
		byName[pods.Items[i].Name] = &pods.Items[i]
		needed = needed || slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return pulled(c) && p.verify == nil || complaint(c) != ""
		})
	}
	var reported map[containerKey]*report
	if needed {
		events, err := p.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod"})
		switch {
		case err == nil:
			reported = reports(events.Items)
		case !p.eventsForbidden && ctx.Err() == nil:
			p.eventsForbidden = true
			p.Log.Warn("cannot list events: which images were there already is unknown, and failed pulls are retried until "+
				"the time is over", "error", err)
		}
	}
	if time.Since(p.asked) >= readyInterval {
		p.asked = time.Now()
		if ready, err := p.Ready(ctx); err == nil {
			p.ready = ready
		}
	}
	for name, a := range open {
		pod := byName[name]
		lost := pod == nil || pod.DeletionTimestamp != nil
		if !lost {
			for i := range a.results {
				if a.results[i].Outcome == "" {
					p.finishImage(a, i, pod, reported[containerKey{name, containerName(i)}])
				}
			}
		}
		switch rejected := !lost && pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != ""; {
		case a.done():
		case p.ready != nil && !p.ready[a.node]:
			p.skip(a, "the node is gone or no longer ready")
		case !lost && !rejected:
		case p.verify != nil && a.restarts < restarts:
			a.restarts++
			a.pause = time.Now().Add(restartPause)
			again = append(again, a)
		case lost:
			p.failRemaining(a, "its pod was deleted, as another run of this command does", adviceAgain)
		default:
			p.skip(a, "its kubelet rejected the pod: "+pod.Status.Reason+": "+pod.Status.Message)
		}
	}
	return again
}

// giveUp fails the attempts of a verification that took too long, or all if none can succeed.
func (p *Puller) giveUp(ctx context.Context, open map[string]*attempt) {
	if p.verify == nil {
		return
	}
	late, permanent := map[string]*attempt{}, true
	for name, a := range open {
		if a.done() {
			continue
		}
		took := time.Since(a.begun)
		if took >= p.verify.limit && (a.failing[0] != "" || took >= silentTimeout) {
			late[name] = a
		}
		permanent = permanent && took >= permanentAfter && p.verify.permanent != nil && p.verify.permanent(a.failing[0])
	}
	switch {
	case len(late) > 0:
		p.failOpen(ctx, late, "not in time")
	case permanent:
		for _, a := range open {
			p.failRemaining(a, a.failing[0], p.advice(a.failing[0]))
		}
	}
}

// finishImage finishes an image whose pull has ended.
func (p *Puller) finishImage(a *attempt, i int, pod *corev1.Pod, r *report) {
	if p.verify != nil && ran(pod) {
		p.finish(&a.results[i], Pulled, time.Since(a.begun))
		return
	}
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
	case p.verify != nil && status.State.Running == nil && pulled(status):
		a.failing[i] = "the image was pulled but could not run: " + nodes.PodComplaint(*pod)
		if status.State.Terminated != nil {
			p.fail(a, i, a.failing[i], adviceNode)
		}
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
	case p.verify == nil && r.failures >= maxAttempts, strings.HasPrefix(says, "InvalidImageName"):
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

// ran reports whether a pod's container has run. A kubelet takes two more seconds to report that the pod has
// succeeded.
func ran(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || slices.ContainsFunc(p.Status.ContainerStatuses,
		func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil || c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		})
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
	if p.verify != nil {
		return // the release has a line for all nodes
	}
	p.Log.Info(string(outcome), "node", r.Name, "image", r.Image, "seconds", r.Seconds)
}

func (p *Puller) fail(a *attempt, i int, message, remedy string) {
	r := &a.results[i]
	r.Outcome, r.Message, r.Remedy = Failed, oneLine(message), remedy
	if !a.begun.IsZero() {
		r.Seconds = seconds(time.Since(a.begun))
	}
	if p.verify != nil {
		return // the error says it
	}
	p.Log.Warn("failed", "node", r.Name, "image", r.Image, "error", r.Message)
}

// skip finishes a node that cannot pull now. That fails no verification.
func (p *Puller) skip(a *attempt, message string) {
	if p.verify == nil {
		p.failRemaining(a, message, adviceNode)
		return
	}
	for i := range a.results {
		a.results[i].Outcome, a.results[i].Message = skipped, oneLine(message)
	}
	p.Log.Warn("skipping a node, whose pulls are not verified", "node", a.node, "reason", oneLine(message))
}

// failRemaining fails what is not finished.
func (p *Puller) failRemaining(a *attempt, message, remedy string) {
	for i, r := range a.results {
		if r.Outcome == "" {
			p.fail(a, i, message, remedy)
		}
	}
}

// failOpen fails what is not finished for a cause, with what the kubelets have reported last. ctx may have ended.
func (p *Puller) failOpen(ended context.Context, open map[string]*attempt, cause string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ended), 10*time.Second)
	defer cancel()
	warnings := map[string]string{}
	if events, err := p.Events.List(ctx, nodes.PodWarnings()); err == nil {
		warnings = nodes.NewestWarnings(events.Items)
	}
	for pod, a := range open {
		for i, r := range a.results {
			warning := warnings[pod]
			switch {
			case r.Outcome != "":
			case a.failing[i] != "":
				p.fail(a, i, cause+": "+a.failing[i], p.advice(a.failing[i]))
			case warning != "" && p.verify != nil:
				p.fail(a, i, cause+": "+warning, p.advice(warning))
			case p.verify != nil:
				p.fail(a, i, cause+", and its kubelet reported nothing", p.advice(""))
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
	case p.verify != nil:
	case has("is not signed by"):
		return "sign the image with a key of registry.signatures"
	case has("no match for platform"), has("no image found in"): // containerd, CRI-O
		return "push the image for the platform of this node, or select other nodes"
	case has("no space left on device"):
		return "free or enlarge the disk of the node's images"
	case has("not found"), has("manifest unknown"):
		return "the image was deleted meanwhile: push it again"
	}
	return advice(p.Mode, complaint)
}

func containerName(i int) string { return "image-" + strconv.Itoa(i) }

func (p *Puller) selector() metav1.ListOptions {
	component := names.ComponentWarm
	if p.verify != nil {
		component = names.ComponentProbe
	}
	return metav1.ListOptions{LabelSelector: names.Selector(p.Release, component)}
}

// warming returns the pod that brings images onto a node, without its containers.
func (p *Puller) warming() *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: p.Release + "-warm-", Labels: names.PodLabels(p.Release, names.ComponentWarm),
		},
		// No user: the kubelet then refuses to run an image as root, after it has pulled it, and OpenShift admits the pod.
		Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}},
	}
}

// pod returns the pod that makes a node pull.
func (p *Puller) pod(node string) *corev1.Pod {
	no, second, limit := false, int64(1), int64((p.Limit + deadlineSlack).Seconds())
	pod := p.warming()
	if p.verify != nil {
		pod = p.verify.pod()
	}
	pod.Namespace = p.Namespace
	s := &pod.Spec
	// Set directly: the scheduler plays no part in a pull.
	s.NodeName = node
	s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	s.RestartPolicy = corev1.RestartPolicyNever
	s.AutomountServiceAccountToken, s.EnableServiceLinks = &no, &no
	s.TerminationGracePeriodSeconds, s.ActiveDeadlineSeconds = &second, &limit
	if p.PullSecret != "" {
		s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: p.PullSecret}}
	}
	for i, image := range p.Images {
		c := corev1.Container{
			Name:            containerName(i),
			Image:           image,
			ImagePullPolicy: corev1.PullAlways,
			SecurityContext: release.RestrictedContainer(),
		}
		if p.verify == nil {
			c.ImagePullPolicy, c.Command = corev1.PullIfNotPresent, []string{commandPrefix + rand.Text()}
		}
		if !p.plain {
			// Quotas may require both. Without a request the pod fits on any node; with less memory, CRI-O refuses. The limit
			// of the CPU holds for runc too, which starts sandbox and container: with 10m, each took 11 s.
			c.Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0"),
				},
				Limits: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
				},
			}
		}
		s.Containers = append(s.Containers, c)
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
