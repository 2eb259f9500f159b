package hook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
)

// pollInterval is how often the cluster is looked at while waiting: often enough
// not to be noticed by people, seldom enough not to be noticed by the API server,
// whose looks take milliseconds in a small cluster; see restFactor for a large one.
const pollInterval = 200 * time.Millisecond

const (
	// restFactor is how many times as long as a look took is rested after it: of a thousand
	// nodes and their pods a look is tens of megabytes.
	restFactor = 4
	// longestRest bounds that, since what took long may have been the API server's restart.
	longestRest = 5 * time.Second
)

func (f *finishing) waitRegistry(ctx context.Context) (string, error) {
	name := f.Settings.Name
	err := f.wait(ctx, "the registry", func() (string, error) {
		d, err := f.Cluster.Deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", f.object("Deployment", name), err)
		}
		missing := deploymentMissing(d, 0)
		if missing != "" && d.Status.AvailableReplicas > 0 {
			down, err := f.registryPodsDown(ctx)
			if err != nil {
				return "", err
			}
			missing = deploymentMissing(d, down)
		}
		if missing != "" {
			return f.object("Deployment", name) + ": " + missing, nil
		}
		return "", nil
	}, names.ComponentRegistry)
	if err != nil {
		return "", err
	}
	return f.object("Deployment", name) + " is rolled out", nil
}

// registryPodsDown counts the registry's pods on nodes that are not ready. Kubernetes
// replaces them minutes later.
func (h *Hook) registryPodsDown(ctx context.Context) (int32, error) {
	nodes, err := h.nodesReady(ctx)
	if err != nil {
		return 0, err
	}
	pods, err := h.Cluster.Pods.List(ctx, h.selector(names.ComponentRegistry))
	if err != nil {
		return 0, fmt.Errorf("listing the registry pods in namespace %s: %w", h.Settings.Namespace, err)
	}
	down := int32(0)
	for _, p := range pods.Items {
		if ready, exists := nodes[p.Spec.NodeName]; exists && !ready && p.DeletionTimestamp == nil && !PodReady(p) {
			down++
		}
	}
	return down, nil
}

// deploymentMissing says what a rollout is still waiting for, "" when nothing. Of
// several pods those need not be available that are down with their nodes, as long as
// one is.
func deploymentMissing(d *appsv1.Deployment, down int32) string {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	switch s := d.Status; {
	case s.ObservedGeneration < d.Generation:
		return "the controller has not seen the last change"
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d pods are made from the last change", s.UpdatedReplicas, want)
	case s.Replicas > want:
		return fmt.Sprintf("%d former pods are still there", s.Replicas-want)
	case s.AvailableReplicas < want && (s.AvailableReplicas == 0 || s.AvailableReplicas+down < want):
		return fmt.Sprintf("%d of %d pods are available", s.AvailableReplicas, want)
	}
	return ""
}

func (f *finishing) waitProxies(ctx context.Context) (string, error) {
	covered := 0
	err := f.wait(ctx, "the proxies", func() (string, error) {
		sets, former, err := f.proxySets(ctx)
		if err != nil {
			return "", err
		}
		for _, name := range f.Settings.Proxy.DaemonSets {
			if !slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.Name == name }) {
				return f.object("DaemonSet", name) + " is missing", nil
			}
		}
		nodes, err := f.nodesReady(ctx)
		if err != nil {
			return "", err
		}
		pods, err := f.proxyPods(ctx)
		if err != nil {
			return "", err
		}
		if len(former) > 0 && slices.ContainsFunc(pods, unschedulable) {
			return "the nodes' port, which former proxies hold", f.makeRoom(ctx, former)
		}
		var missing string
		missing, covered = proxiesMissing(sets, pods, nodes)
		return missing, nil
	}, names.ComponentProxy)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d nodes have a ready proxy", covered), nil
}

// proxyPods lists the pods of the proxies that the chart renders.
func (f *finishing) proxyPods(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := f.Cluster.Pods.List(ctx, f.selector(names.ComponentProxy))
	if err != nil {
		return nil, fmt.Errorf("listing the proxy pods in namespace %s: %w", f.Settings.Namespace, err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !f.usesProxy(p) }), nil
}

// unschedulable: a proxy goes to one node only, so the scheduler has no place for
// it when something on that node is in its way.
func unschedulable(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "free ports")
	})
}

// makeRoom deletes former proxies before others are proven: a host port belongs to
// one pod, and the nodes of a group that was split or renamed have two that want it.
func (f *finishing) makeRoom(ctx context.Context, former []appsv1.DaemonSet) error {
	did, err := f.deleteDaemonSets(ctx, former)
	if err == nil {
		f.Log.Info("former proxies held the port of new ones", "did", did)
	}
	return err
}

// nodesReady says of every node that runs Linux whether it is ready.
func (h *Hook) nodesReady(ctx context.Context) (map[string]bool, error) {
	nodes, err := h.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	isReady := map[string]bool{}
	for _, n := range nodes.Items {
		if linux(n) {
			isReady[n.Name] = NodeReady(n)
		}
	}
	return isReady, nil
}

// proxiesMissing says what the proxies are still waiting for, "" when nothing.
// Pods on nodes that are down do not count, and neither does a rollout that only
// those hold up. Pods of nodes that are gone stay for a while and mean nothing.
func proxiesMissing(sets []appsv1.DaemonSet, pods []corev1.Pod, nodes map[string]bool) (missing string, covered int) {
	podsDown, desired := 0, 0
	var waiting []string
	for _, p := range pods {
		nodeReady, nodeExists := nodes[p.Spec.NodeName]
		switch {
		case p.Spec.NodeName != "" && !nodeExists:
		case nodeExists && !nodeReady:
			podsDown++ // also one that is to end: nobody ends it there, and its successor waits for that
		case p.DeletionTimestamp != nil:
		case PodReady(p):
			covered++
		default:
			waiting = append(waiting, p.Spec.NodeName)
		}
	}
	for _, d := range sets {
		if d.Status.ObservedGeneration < d.Generation {
			return fmt.Sprintf("DaemonSet %s/%s: the controller has not seen the last change", d.Namespace, d.Name), covered
		}
		desired += int(d.Status.DesiredNumberScheduled)
		if outdated := int(d.Status.DesiredNumberScheduled - d.Status.UpdatedNumberScheduled); outdated > podsDown {
			return fmt.Sprintf("DaemonSet %s/%s: %d pods are not yet made from the last change", d.Namespace, d.Name, outdated), covered
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		return "proxies not ready on nodes " + strings.Join(waiting, ", "), covered
	}
	if covered+podsDown < desired {
		return fmt.Sprintf("%d of %d proxy pods exist", covered+podsDown, desired), covered
	}
	return "", covered
}

// PodReady says whether a pod's status has it ready.
func PodReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// wait polls until check finds nothing missing, the less often the longer a look takes. When the context ends first, the
// error says what was missing and what the component's pods complain about.
func (h *Hook) wait(ctx context.Context, what string, check func() (missing string, err error), component string) error {
	reported := ""
	for {
		begin := time.Now()
		missing, err := check()
		rest := min(max(pollInterval, restFactor*time.Since(begin)), longestRest)
		switch {
		case err != nil && ctx.Err() == nil:
			// The API server may be restarting: as good as not knowing.
			missing = err.Error()
		case err == nil && missing == "":
			return nil
		}
		if missing != reported && missing != "" {
			h.Log.Info("waiting", "for", what, "missing", missing)
			reported = missing
		}
		if sleepErr := sleep(ctx, rest); sleepErr != nil {
			return fmt.Errorf("waiting for %s: %s%s: %w", what, reported, h.complaints(component), sleepErr)
		}
	}
}

// complaints gathers what the pods of a component say is wrong, for a message.
func (h *Hook) complaints(component string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the run's own context has ended
	defer cancel()
	pods, err := h.Cluster.Pods.List(ctx, h.selector(component))
	if err != nil {
		return ""
	}
	byPod := h.warnings(ctx)
	var lines []string
	for _, p := range pods.Items {
		if PodReady(p) {
			continue
		}
		complaint := podComplaint(p)
		if complaint == "" {
			complaint = byPod[p.Name]
		}
		if complaint != "" {
			lines = append(lines, fmt.Sprintf("%s on node %s: %s", h.object("pod", p.Name), orNone(p.Spec.NodeName), complaint))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Sort(lines)
	return "; " + enumerate(lines)
}

// warnings returns the newest warning event of each pod that says more than that
// there was an error.
func (h *Hook) warnings(ctx context.Context) map[string]string {
	events, err := h.Cluster.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"})
	if err != nil {
		return nil
	}
	newest := map[string]corev1.Event{}
	for _, e := range events.Items {
		// Beside "Failed to pull image …: why", kubelets say "Error: ErrImagePull".
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

// podComplaint is what a pod's status says is wrong with it, "" where it says nothing.
func podComplaint(p corev1.Pod) string {
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
