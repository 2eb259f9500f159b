package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Registry is the registry as the steps use it.
type Registry interface {
	// PushProgramImages pushes the project's own images below zarf-registry/ and
	// returns them as "<repository>:<tag>". What the registry has is not sent.
	PushProgramImages(ctx context.Context, access Access) ([]string, error)
	// HookImage is init-hook's own image as PushProgramImages pushes it; nil where
	// it does not, because this process does not run on Linux.
	HookImage() *state.HookImage
	// ProbeImage is the "<repository>:<tag>" of the tiny image that proves a pull
	// in a mode: the registry serves zarf-registry/probe-proxy to proxies only, and
	// zarf-registry/probe-nodeport at the plain listener only, so that a pull cannot
	// succeed by the other way.
	ProbeImage(mode state.Mode) string
	// PlainOpen says whether the plain listener of a registry pod accepts
	// connections. An error means that nothing could be found out.
	PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error)
}

// PlainPort is the registry's port without TLS, which the node port leads to.
const PlainPort = 5001

// Access is what it takes to write to the registry from inside the cluster.
type Access struct {
	// ServerName is the DNS name of the registry's Service, verified against the registry's certificate.
	ServerName string
	// Authority, Certificate and Key are PEM-encoded.
	Authority, Certificate, Key []byte
	Username, Password          string
}

// NewAccess puts together what stands in the Secrets of push certificate and
// push credential.
func NewAccess(name, namespace string, certificate, credentials *corev1.Secret) Access {
	return Access{
		ServerName:  serverName(name, namespace),
		Authority:   certificate.Data[keyAuthority],
		Certificate: certificate.Data[keyCertificate],
		Key:         certificate.Data[keyPrivateKey],
		Username:    string(credentials.Data[keyUsername]),
		Password:    string(credentials.Data[keyPassword]),
	}
}

// pollInterval is how often the cluster is looked at while waiting: often enough
// not to be noticed by people, seldom enough not to be noticed by the API server.
const pollInterval = 500 * time.Millisecond

// Finish waits for what the chart applied, pushes the project's images, proves on
// every node that a pull works and records what was proven.
func (h *Hook) Finish(ctx context.Context) error {
	f := finishing{Hook: h}
	steps := []step{
		{"wait for the registry", "proxies and pushes need it", f.waitRegistry},
		{"wait for the proxies", "each node pulls through its own", f.waitProxies},
	}
	if h.Options.PushImages {
		steps = append(steps, step{"push the project's images", "later upgrades and the proof pull them from the registry itself", f.push})
	}
	if h.Options.Prove {
		steps = append(steps, step{"prove by pulling", "only a pull on every node covers network plugin, kube-proxy and container runtime at once", f.prove})
	}
	steps = append(steps,
		step{"record the proven mode", "the state never says more than was proven", f.record},
		step{"collect former payloads", "no pod needs them any more", f.collect},
	)
	return h.runSteps(ctx, "finish", steps)
}

// finishing is what the steps of one Finish hand on to each other.
type finishing struct {
	*Hook
	proven []string
}

func (f *finishing) waitRegistry(ctx context.Context) (string, error) {
	name := f.Options.Name
	err := f.wait(ctx, "the registry", func() (string, error) {
		d, err := f.Cluster.Deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", f.object("Deployment", name), err)
		}
		if missing := deploymentMissing(d); missing != "" {
			return f.object("Deployment", name) + ": " + missing, nil
		}
		return "", nil
	}, componentRegistry)
	if err != nil {
		return "", err
	}
	return f.object("Deployment", name) + " is rolled out", nil
}

func deploymentMissing(d *appsv1.Deployment) string {
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
	case s.AvailableReplicas < want:
		return fmt.Sprintf("%d of %d pods are available", s.AvailableReplicas, want)
	}
	return ""
}

func (f *finishing) waitProxies(ctx context.Context) (string, error) {
	covered := 0
	err := f.wait(ctx, "the proxies", func() (string, error) {
		sets, err := f.Cluster.DaemonSets.List(ctx, f.selector(componentProxy))
		if err != nil {
			return "", fmt.Errorf("listing the proxy DaemonSets in namespace %s: %w", f.Options.Namespace, err)
		}
		nodes, err := f.nodes(ctx)
		if err != nil {
			return "", err
		}
		pods, err := f.Cluster.Pods.List(ctx, f.selector(componentProxy))
		if err != nil {
			return "", fmt.Errorf("listing the proxy pods in namespace %s: %w", f.Options.Namespace, err)
		}
		var missing string
		missing, covered = proxiesMissing(sets.Items, pods.Items, nodes)
		return missing, nil
	}, componentProxy)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d nodes have a ready proxy", covered), nil
}

// nodes says of every node whether it is ready.
func (f *finishing) nodes(ctx context.Context) (map[string]bool, error) {
	nodes, err := f.Cluster.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	isReady := map[string]bool{}
	for _, n := range nodes.Items {
		isReady[n.Name] = ready(n)
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
		case p.DeletionTimestamp != nil:
		case p.Spec.NodeName != "" && !nodeExists:
		case nodeExists && !nodeReady:
			podsDown++
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

// wait polls until check finds nothing missing. When the context ends first, the
// error says what was missing and what the component's pods complain about.
func (h *Hook) wait(ctx context.Context, what string, check func() (missing string, err error), component string) error {
	reported := ""
	for {
		missing, err := check()
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
		if sleepErr := sleep(ctx, pollInterval); sleepErr != nil {
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
	return "; " + strings.Join(lines, "; ")
}

// warnings returns the newest warning event of each pod.
func (h *Hook) warnings(ctx context.Context) map[string]string {
	events, err := h.Cluster.Events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"})
	if err != nil {
		return nil
	}
	newest := map[string]corev1.Event{}
	for _, e := range events.Items {
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

func (f *finishing) push(ctx context.Context) (string, error) {
	access, err := f.access(ctx)
	if err != nil {
		return "", err
	}
	images, err := f.Registry.PushProgramImages(ctx, access)
	if err != nil {
		return "", err
	}
	return "the registry has " + strings.Join(images, ", "), nil
}

func (f *finishing) access(ctx context.Context) (Access, error) {
	read := func(suffix, made string) (*corev1.Secret, error) {
		s, err := f.secret(ctx, f.Options.Name+suffix)
		if err == nil && s == nil {
			err = fmt.Errorf("%s is missing: run %s again, by helm upgrade or init-hook prepare", f.object("Secret", f.Options.Name+suffix), made)
		}
		return s, err
	}
	certificate, certificateErr := read(SuffixPushTLS, "prepare")
	credentials, credentialsErr := read(SuffixCredentials, "prepare")
	if err := errors.Join(certificateErr, credentialsErr); err != nil {
		return Access{}, err
	}
	return NewAccess(f.Options.Name, f.Options.Namespace, certificate, credentials), nil
}

func (f *finishing) record(ctx context.Context) (string, error) {
	secret, s, err := f.loadState(ctx)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "", fmt.Errorf("%s is missing: run prepare again, by helm upgrade or init-hook prepare", f.object("Secret", f.Options.Name+SuffixState))
	}
	if !f.Options.Prove {
		return "nothing: the proof was switched off (initHook.prove=false)", nil
	}
	next := *s
	next.Phase, next.Current, next.Nodes = state.PhaseReady, &next.Desired, f.proven
	if err := f.saveState(ctx, secret, next); err != nil {
		return "", err
	}
	return fmt.Sprintf("current is %s, proven on %d nodes", next.Current.Mode, len(f.proven)), nil
}
