package nodes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// restFactor is the pause after a poll as a multiple of its duration. With a thousand nodes, a
	// poll transfers tens of megabytes.
	restFactor = 4
	// longestRest bounds the pause, since a slow poll may have met a restart of the API server.
	longestRest = 5 * time.Second
	// deniedTime is how long permissions may be missing: an API server that starts denies requests until it has read
	// the roles (kubernetes/kubernetes#121635).
	deniedTime = 15 * time.Second
)

// Wait polls until check finds nothing missing, less often the longer a poll takes. If the context
// ends first, the error says what was missing and what is wrong with the component's pods. It returns errors of check
// that a retry does not change: refusals, missing permissions, rejected requests.
func (o *Observer) Wait(ctx context.Context, what string, check func() (missing string, err error),
	component string) error {
	reported := ""
	var denied time.Time // since when permissions are missing
	for {
		begin := time.Now()
		missing, err := check()
		if !release.MissingPermission(err) {
			denied = time.Time{}
		} else if denied.IsZero() {
			denied = begin
		}
		rest := min(max(release.PollInterval, restFactor*time.Since(begin)), longestRest)
		switch {
		case exitcode.IsRefusal(err), release.Rejected(err), !denied.IsZero() && time.Since(denied) >= deniedTime:
			return release.RefuseForbidden(err)
		case err != nil && ctx.Err() == nil:
			// The API server may be restarting, so treat this as unknown.
			missing = err.Error()
		case err == nil && missing == "":
			return nil
		}
		if missing != reported && missing != "" {
			o.Progress.Waiting(what, missing)
			reported = missing
		}
		if sleepErr := release.Sleep(ctx, rest); sleepErr != nil {
			return fmt.Errorf("waiting for %s: %s%s: %w", what, reported, o.complaints(component), sleepErr)
		}
	}
}

// complaints describes for a message what is wrong with the pods of a component.
func (o *Observer) complaints(component string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the run's context has ended
	defer cancel()
	pods, err := o.ListPods(ctx, component)
	if err != nil {
		return ""
	}
	byPod := o.Warnings(ctx)
	var lines []string
	for _, p := range pods {
		if release.PodReady(p) {
			continue
		}
		if complaint := cmp.Or(PodComplaint(p), byPod[p.Name]); complaint != "" {
			line := fmt.Sprintf("%s on node %s: %s", o.Object("pod", p.Name), orNone(p.Spec.NodeName), complaint)
			switch advice := DescribeClaim(p); {
			case advice != "":
				line += ": " + advice
			case component == names.ComponentRegistry && strings.Contains(complaint, "Readiness probe failed"):
				// The probe does not say more. The storage may not answer.
				line += fmt.Sprintf(": kubectl --namespace %s logs %s says why", p.Namespace, p.Name)
			}
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		lines = o.controllerWarnings(ctx, component) // perhaps they cannot create pods
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Sort(lines)
	return "; " + release.List(lines)
}

// Warnings returns the newest warning event of each pod, ignoring those without details.
func (o *Observer) Warnings(ctx context.Context) map[string]string {
	events, err := o.Cluster.Events.List(ctx, PodWarnings())
	if err != nil {
		return nil
	}
	return NewestWarnings(events.Items)
}

// controllerWarnings returns the newest warning of each controller of a component's pods.
func (o *Observer) controllerWarnings(ctx context.Context, component string) []string {
	events, err := o.Cluster.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind!=Pod,type=Warning"})
	if err != nil {
		return nil
	}
	name := o.Settings.Name
	if component != names.ComponentRegistry {
		name += "-" + component
	}
	var lines []string
	for _, kind := range []string{"Deployment", "ReplicaSet", "DaemonSet"} {
		newest := NewestWarnings(slices.DeleteFunc(slices.Clone(events.Items), func(e corev1.Event) bool {
			controller := e.InvolvedObject.Name
			switch {
			case kind == "ReplicaSet": // the name of its Deployment, and a hash
				controller = controller[:max(strings.LastIndexByte(controller, '-'), 0)]
			case kind == "DaemonSet" && strings.HasPrefix(controller, name+"-"): // of an architecture
				controller = name
			}
			return e.InvolvedObject.Kind != kind || controller != name
		}))
		for controller, warning := range newest {
			lines = append(lines, o.Object(kind, controller)+": "+warning)
		}
	}
	return lines
}

// PodWarnings selects the warning events of pods.
func PodWarnings() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"}
}

// NewestWarnings returns the text of the newest event of each object, ignoring those of pods without details.
func NewestWarnings(events []corev1.Event) map[string]string {
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	newest := map[string]string{}
	for _, e := range events {
		name := e.InvolvedObject.Name
		switch {
		// Besides "Failed to pull image …: why", kubelets send "Error: ErrImagePull".
		case strings.HasPrefix(e.Message, "Error: Err"), strings.HasPrefix(e.Message, "Error: ImagePull"):
		// The attach-detach controller says only once why a volume is not attached; then the kubelet repeats that it
		// waits.
		case newest[name] != "" && strings.HasPrefix(e.Message, "Unable to attach or mount volumes: "):
		default:
			newest[name] = fmt.Sprintf("%s: %s", e.Reason, e.Message)
		}
	}
	return newest
}

// PodComplaint returns what a pod's status says is wrong, or "".
func PodComplaint(p corev1.Pod) string {
	if failed := readNodePod(p).failed; failed != "" {
		return failed
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Ready {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				return fmt.Sprintf("container %s exited with code %d: %s", c.Name, t.ExitCode, lastWords(t.Message))
			}
		}
		if w := c.State.Waiting; w != nil && w.Message != "" {
			return fmt.Sprintf("%s: %s", w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return ""
}

// lastWords returns a termination message without the log lines in JSON that precede the error. If all lines are
// JSON, it returns all.
func lastWords(message string) string {
	message = strings.TrimSpace(message)
	lines := slices.DeleteFunc(strings.Split(message, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "{")
	})
	return cmp.Or(strings.Join(lines, "\n"), message)
}

func orNone(name string) string {
	return cmp.Or(name, "(none yet)")
}
