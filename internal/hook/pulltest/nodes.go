package pulltest

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
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
	// restarts is how often the pod of a node is created again that was deleted or that the kubelet rejected: it may
	// have no room only while other pods terminate. restartPause is the time in between.
	restarts     = 2
	restartPause = 5 * time.Second
	// podDeadline bounds a pod should this program be killed: a minute more than a pull may take.
	podDeadline = verifyTimeout + time.Minute
)

// containerName is that of a pod's only container.
const containerName = "image"

// Pods lists, creates and deletes pods.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// puller makes nodes pull an image, with a pod on each that runs the image's program. No node is tried after one has
// failed, or with everywhere, after as many as are tried at once.
type puller struct {
	*Verifier
	image string // complete reference
	// pullSecret is the name of the Secret to pull with. Proxy mode needs none.
	pullSecret string
	// limit bounds the pull of each node.
	limit time.Duration
	// permanent reports whether no retry helps a pull with this complaint. Nil: a retry may always help.
	permanent  func(complaint string) bool
	everywhere bool
	// mayFail is how many nodes may fail before no other is tried.
	mayFail int

	eventsForbidden bool      // events cannot be listed, which was logged
	plain           bool      // a LimitRange sets the pods' resources
	asked           time.Time // when the nodes were listed
	ready           map[string]bool
}

// attempt is a node's pod.
type attempt struct {
	Result             // without outcome until it is finished
	tried    time.Time // when a pod was first to be created, and when one was; zero until then
	begun    time.Time
	failing  string // what the kubelet has reported last
	restarts int
	pause    time.Time // until then, no pod is created
}

func (a *attempt) done() bool { return a.Outcome != "" }

// pull returns the results of all nodes, in their order. When ctx ends, what is not finished has failed with its
// cause. It deletes its pods, and those of a run that was killed: only one run may exist.
func (p *puller) pull(ctx context.Context, on []corev1.Node) []Result {
	p.deletePods()
	defer p.deletePods()
	p.asked, p.ready = time.Now(), nil
	var all, waiting []*attempt
	for _, n := range on {
		a := &attempt{Result: Result{Node: n.Name}}
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
				if a.Outcome == Failed {
					failed++
				}
				delete(open, name)
				p.deletePod(name)
			}
		}
		waiting = append(again, waiting...)
		if failed > p.mayFail && (!p.everywhere || failed >= nodesAtOnce) {
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
		a.fail("not started: "+context.Cause(ctx).Error(), adviceAgain)
	}
	var results []Result
	for _, a := range all {
		results = append(results, a.Result)
	}
	return results
}

// start creates pods for as many nodes as may pull at once, and returns the nodes that still wait.
func (p *puller) start(ctx context.Context, waiting []*attempt, open map[string]*attempt) (still []*attempt) {
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
		pod, err := p.create(ctx, a.Node)
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
			a.fail("creating a pod for it: "+err.Error(), "")
		}
	}
	return still
}

// create creates the pod of a node. If a LimitRange rejects its resources, it leaves them to the LimitRange.
func (p *puller) create(ctx context.Context, node string) (created *corev1.Pod, err error) {
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
func (p *puller) look(ctx context.Context, open map[string]*attempt) (again []*attempt) {
	pods, err := p.Pods.List(ctx, p.Selector(names.ComponentProbe))
	if err != nil {
		p.Log.Debug("cannot list pods, trying again", "error", err)
		return nil
	}
	byName := map[string]*corev1.Pod{}
	needed := false // events are, which are many
	for i := range pods.Items {
		byName[pods.Items[i].Name] = &pods.Items[i]
		needed = needed || slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return complaint(c) != ""
		})
	}
	var reported map[string]string
	if needed {
		events, err := p.Cluster.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod"})
		switch {
		case err == nil:
			reported = failedPulls(events.Items)
		case !p.eventsForbidden && ctx.Err() == nil:
			p.eventsForbidden = true
			p.Log.Warn("cannot list events: why pulls fail is known only in part", "error", err)
		}
	}
	if time.Since(p.asked) >= readyInterval {
		p.asked = time.Now()
		if ready, err := p.NodesReady(ctx); err == nil {
			p.ready = ready
		}
	}
	for name, a := range open {
		pod := byName[name]
		lost := pod == nil || pod.DeletionTimestamp != nil
		if !lost {
			p.finish(a, pod, reported[name])
		}
		switch rejected := !lost && pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != ""; {
		case a.done():
		case p.ready != nil && !p.ready[a.Node]:
			p.skip(a, "the node is gone or no longer ready")
		case !lost && !rejected:
		case a.restarts < restarts:
			a.restarts++
			a.pause = time.Now().Add(restartPause)
			again = append(again, a)
		case lost:
			a.fail("its pod was deleted each time", adviceAgain)
		default:
			p.skip(a, "its kubelet rejected the pod: "+pod.Status.Reason+": "+pod.Status.Message)
		}
	}
	return again
}

// giveUp fails the attempts that took too long, or all if none can succeed.
func (p *puller) giveUp(ctx context.Context, open map[string]*attempt) {
	late, permanent := map[string]*attempt{}, true
	for name, a := range open {
		if a.done() {
			continue
		}
		took := time.Since(a.begun)
		if took >= p.limit && (a.failing != "" || took >= silentTimeout) {
			late[name] = a
		}
		permanent = permanent && took >= permanentAfter && p.permanent != nil && p.permanent(a.failing)
	}
	switch {
	case len(late) > 0:
		p.failOpen(ctx, late, "not in time")
	case permanent:
		for _, a := range open {
			if !a.done() {
				a.fail(a.failing, advice(p.Settings.Mode, a.failing))
			}
		}
	}
}

// finish finishes an attempt whose pull has ended. failure is what the kubelet's newest event says about it, or "".
func (p *puller) finish(a *attempt, pod *corev1.Pod, failure string) {
	if ran(pod) {
		a.Outcome = Pulled
		return
	}
	at := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == containerName
	})
	if at < 0 {
		return
	}
	status := pod.Status.ContainerStatuses[at]
	says := complaint(status)
	switch {
	case pulled(status):
		a.failing = "the image was pulled but could not run: " + nodes.PodComplaint(*pod)
		if status.State.Terminated != nil {
			a.fail(a.failing, adviceNode)
		}
	case status.State.Terminated != nil:
		t := status.State.Terminated
		a.fail(t.Reason+": "+t.Message, adviceNode)
	case says == "":
	case strings.HasPrefix(says, "InvalidImageName"):
		a.fail(cmp.Or(failure, says), advice(p.Settings.Mode, says))
	default:
		says = cmp.Or(failure, says)
		if a.failing == "" {
			p.Log.Warn("a pull failed, the kubelet retries", "node", a.Node, "image", p.image, "error", oneLine(says))
		}
		a.failing = says
	}
}

// pulled reports whether a kubelet has got past the pull of a container's image. The reasons are those of Kubernetes'
// pkg/kubelet/kuberuntime and pkg/kubelet/container.
func pulled(c corev1.ContainerStatus) bool {
	if w := c.State.Waiting; w != nil {
		return slices.Contains([]string{"CreateContainerConfigError", "PreCreateHookError", "CreateContainerError",
			"PreStartHookError", "RunContainerError", "PostStartHookError", "CrashLoopBackOff"}, w.Reason)
	}
	// Without an image, the kubelet does not know how a container ended (ContainerStatusUnknown).
	return c.State.Terminated != nil && c.ImageID != ""
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

// failedPulls returns what the newest event of each pod says about a failed pull.
func failedPulls(events []corev1.Event) map[string]string {
	newest, at := map[string]string{}, map[string]metav1.Time{}
	for i := range events {
		e := &events[i]
		failure, failed := strings.CutPrefix(e.Message, "Failed to pull image ")
		pod := e.InvolvedObject.Name
		last, ok := at[pod]
		if e.Reason == "Failed" && failed && (!ok || last.Before(&e.LastTimestamp)) {
			_, why, _ := strings.Cut(failure, `": `) // after the quoted reference
			newest[pod], at[pod] = cmp.Or(why, failure), e.LastTimestamp
		}
	}
	return newest
}

func (a *attempt) fail(message, remedy string) {
	a.Outcome, a.Message, a.Remedy = Failed, oneLine(message), remedy
}

// skip finishes a node that cannot pull now.
func (p *puller) skip(a *attempt, message string) {
	a.Outcome, a.Message = skipped, oneLine(message)
	p.Log.Warn("skipping a node, whose pulls are not verified", "node", a.Node, "reason", a.Message)
}

// failOpen fails what is not finished for a cause, with what the kubelets have reported last. ctx may have ended.
func (p *puller) failOpen(ended context.Context, open map[string]*attempt, cause string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ended), 10*time.Second)
	defer cancel()
	warnings := map[string]string{}
	if events, err := p.Cluster.Events.List(ctx, nodes.PodWarnings()); err == nil {
		warnings = nodes.NewestWarnings(events.Items)
	}
	for pod, a := range open {
		switch says := cmp.Or(a.failing, warnings[pod]); {
		case a.done():
		case says != "":
			a.fail(cause+": "+says, advice(p.Settings.Mode, says))
		default:
			a.fail(cause+", and its kubelet reported nothing", advice(p.Settings.Mode, ""))
		}
	}
}

const (
	adviceAgain = "run the command again"
	adviceNode  = "kubectl describe node shows the state of the node"
)

// pod returns the pod that makes a node pull.
func (p *puller) pod(node string) *corev1.Pod {
	no, second, deadline := false, int64(1), int64(podDeadline.Seconds())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: p.Settings.Name + "-probe-", Namespace: p.Settings.Namespace,
			Labels: p.PodLabels(names.ComponentProbe),
		},
		Spec: corev1.PodSpec{
			SecurityContext: p.RestrictedPod(),
			// Set directly: the scheduler plays no part in a pull.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &second,
			ActiveDeadlineSeconds:         &deadline,
			Containers: []corev1.Container{{
				Name: containerName, Image: p.image, ImagePullPolicy: corev1.PullAlways,
				SecurityContext: release.RestrictedContainer(),
			}},
		},
	}
	if p.pullSecret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: p.pullSecret}}
	}
	if !p.plain {
		// Quotas may require both. Without a request the pod fits on any node; with less memory, CRI-O refuses. The limit
		// of the CPU holds for runc too, which starts sandbox and container: with 10m, each took 11 s.
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0"),
			},
			Limits: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
			},
		}
	}
	return pod
}

// deletePods deletes the pods of this run and of one that was killed.
func (p *puller) deletePods() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // also if the run's context has ended
	defer cancel()
	pods, err := p.Pods.List(ctx, p.Selector(names.ComponentProbe))
	if err != nil {
		p.Log.Warn("cannot list the pods that pull; they stay until the next run", "error", err)
		return
	}
	for _, pod := range pods.Items {
		p.deletePod(pod.Name)
	}
}

func (p *puller) deletePod(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		p.Log.Warn(fmt.Sprintf("cannot delete %s/%s; it stays until the next run", p.Settings.Namespace, name), "error", err)
	}
}
