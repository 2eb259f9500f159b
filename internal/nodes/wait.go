package nodes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
)

const (
	// restFactor is the pause after a poll as a multiple of its duration. With a thousand nodes, a
	// poll transfers tens of megabytes.
	restFactor = 4
	// longestRest bounds the pause, since a slow poll may have met a restart of the API server.
	longestRest = 5 * time.Second
)

// Wait polls until check finds nothing missing, less often the longer a poll takes. If the context
// ends first, the error says what was missing and what is wrong with the component's pods.
func (o *Observer) Wait(ctx context.Context, what string, check func() (missing string, err error),
	component string) error {
	reported := ""
	for {
		begin := time.Now()
		missing, err := check()
		rest := min(max(release.PollInterval, restFactor*time.Since(begin)), longestRest)
		switch {
		case err != nil && ctx.Err() == nil:
			// The API server may be restarting, so treat this as unknown.
			missing = err.Error()
		case err == nil && missing == "":
			return nil
		}
		if missing != reported && missing != "" {
			o.Log.Info("waiting", "for", what, "missing", missing)
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
	pods, err := o.Cluster.Pods.List(ctx, o.Selector(component))
	if err != nil {
		return ""
	}
	byPod := o.Warnings(ctx)
	var lines []string
	for _, p := range pods.Items {
		if release.PodReady(p) {
			continue
		}
		complaint := PodComplaint(p)
		if complaint == "" {
			complaint = byPod[p.Name]
		}
		if complaint != "" {
			lines = append(lines, fmt.Sprintf("%s on node %s: %s", o.Object("pod", p.Name), orNone(p.Spec.NodeName), complaint))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Sort(lines)
	return "; " + release.List(lines)
}

// Warnings returns the newest warning event of each pod, ignoring those without details.
func (o *Observer) Warnings(ctx context.Context) map[string]string {
	events, err := o.Cluster.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"})
	if err != nil {
		return nil
	}
	newest := map[string]corev1.Event{}
	for _, e := range events.Items {
		// Besides "Failed to pull image …: why", kubelets send "Error: ErrImagePull".
		if strings.HasPrefix(e.Message, "Error: Err") || strings.HasPrefix(e.Message, "Error: ImagePull") {
			continue
		}
		if old, ok := newest[e.InvolvedObject.Name]; !ok || !e.LastTimestamp.Before(&old.LastTimestamp) {
			newest[e.InvolvedObject.Name] = e
		}
	}
	out := make(map[string]string, len(newest))
	for pod, e := range maps.All(newest) {
		out[pod] = fmt.Sprintf("%s: %s", e.Reason, e.Message)
	}
	return out
}

// PodComplaint returns what a pod's status says is wrong, or "".
func PodComplaint(p corev1.Pod) string {
	if failed := readNodePod(p).failed; failed != "" {
		return failed
	}
	for _, c := range p.Status.ContainerStatuses {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 && !c.Ready {
				return fmt.Sprintf("container %s ended with exit code %d: %s", c.Name, t.ExitCode, strings.TrimSpace(t.Message))
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

func orNone(name string) string {
	if name == "" {
		return "(none yet)"
	}
	return name
}
