// Package status looks at an installed registry and says how it is: its mode, its
// registry, each node's way to it, its certificates, its release, and what to do
// about everything that is wrong. It changes nothing, and what it may not read it
// names and goes on.
package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Options say which registry, and how to reach it.
type Options struct {
	// Namespace is that of the objects.
	Namespace, Release, Name string
	Client                   kubernetes.Interface
	// Metadata reads names and labels of what is large: payload, releases.
	Metadata metadata.Interface
	// Loaded asks a pod of the registry or of a proxy what it has loaded. Collect asks
	// the registry only, and goes without where it is nil.
	Loaded func(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error)
	// KubeletStarted says when a node's kubelet was started; for Collect only. A
	// forbidden answer is not known, which is no error.
	KubeletStarted func(ctx context.Context, node string) (time.Time, error)
	Now            func() time.Time
}

// Report is what was found. Its JSON is what init-hook status prints.
type Report struct {
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	Name      string `json:"name"`
	// Healthy says that Next is empty.
	Healthy bool `json:"healthy"`
	// State is the saved state; nil where it is missing or cannot be read.
	State *State `json:"state,omitempty"`
	// Helm is the newest revision; nil where there is none, as with Argo CD.
	Helm *Revision `json:"helm,omitempty"`
	// Registry is nil in external mode.
	Registry *Registry `json:"registry,omitempty"`
	Nodes    []Node    `json:"nodes"`
	// NodeConfig is of each node whose container runtime is configured; empty where
	// none is.
	NodeConfig   []NodeConfig  `json:"nodeConfig"`
	Certificates []Certificate `json:"certificates"`
	Payloads     []Payload     `json:"payloads"`
	// Leftovers are objects of another mode than the one in use.
	Leftovers []string `json:"leftovers"`
	// Unreadable is what could not be read, with the reason.
	Unreadable []string `json:"unreadable"`
	// Next is what to do, one sentence for everything that is wrong.
	Next []string `json:"next"`
}

// State is the saved state as far as it matters to people.
type State struct {
	Phase   state.Phase     `json:"phase"`
	Desired state.Settings  `json:"desired"`
	Current *state.Settings `json:"current,omitempty"`
	// Proven are the nodes that pulled in the last proof.
	Proven []string `json:"proven"`
	// PKI is how certificates are made; nil in external mode, and after releases that
	// did not record it.
	PKI *state.PKI `json:"pki,omitempty"`
	// Rotation is a change of authorities that is under way.
	Rotation *state.Rotation `json:"rotation,omitempty"`
	// NodeDirectories are those of nodes that may hold files of the release.
	NodeDirectories []string  `json:"nodeDirectories,omitempty"`
	UpdatedBy       string    `json:"updatedBy"`
	UpdatedAt       time.Time `json:"updatedAt"`
}

// Switching says whether the cluster is between two modes: a switch is under way,
// or was interrupted.
func (s *State) Switching() bool {
	return s.Phase != state.PhaseReady && s.Current != nil && s.Current.Mode != s.Desired.Mode
}

// mode is the one that nodes use: what was proven last, else what was asked for.
func (s *State) mode() state.Mode {
	if s.Current != nil {
		return s.Current.Mode
	}
	return s.Desired.Mode
}

// port is the one on each node's loopback address.
func (s *State) port() int {
	if s.Current != nil {
		return s.Current.Port
	}
	return s.Desired.Port
}

// Revision is one of a Helm release.
type Revision struct {
	Revision int `json:"revision"`
	// Status is Helm's: deployed, failed, pending-upgrade and so on.
	Status string `json:"status"`
}

// Registry is the registry's Deployment.
type Registry struct {
	// Ready says that as many pods are ready as are Wanted; Why says why not.
	Ready  bool   `json:"ready"`
	Wanted int    `json:"wanted"`
	Why    string `json:"why,omitempty"`
	Pods   []Pod  `json:"pods"`
	// Collection is how garbage collection stands; nil where no pod could be asked.
	Collection *reloadstatus.Collection `json:"collection,omitempty"`
}

// ReadyPods counts them. Of several, one serves all.
func (r *Registry) ReadyPods() int {
	n := 0
	for _, p := range r.Pods {
		if p.Ready {
			n++
		}
	}
	return n
}

// Pod is one pod.
type Pod struct {
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"`
}

// ErrNotInstalled is the error of Collect where there is nothing to look at.
var ErrNotInstalled = errors.New("zarf-registry is not installed")

// collector gathers a report.
type collector struct {
	Options
	report *Report
	home   string // the namespace of Helm's record: not that of the objects where the value namespaceOverride names another

	objects       []appsv1.DaemonSet // of the proxies
	configObjects []appsv1.DaemonSet // of node configuration
	deployment    *appsv1.Deployment
	warnings      map[string]string // of pods, by name
	linux         []corev1.Node     // empty where they may not be listed
}

// Collect looks at everything. The error is ErrNotInstalled, or that the cluster
// does not answer.
func Collect(ctx context.Context, o Options) (*Report, error) {
	c := &collector{Options: o, report: &Report{
		Namespace: o.Namespace, Release: o.Release, Name: o.Name,
		Nodes: []Node{}, NodeConfig: []NodeConfig{}, Certificates: []Certificate{}, Payloads: []Payload{}, Leftovers: []string{}, Unreadable: []string{}, Next: []string{},
	}}
	for _, look := range []func(context.Context) error{
		c.locate, c.state, c.phase, c.helm, c.workloads, c.installed, c.events, c.registry, c.nodes, c.nodeConfig, c.nodePort, c.certificates, c.payloads, c.leftovers,
	} {
		if err := look(ctx); err != nil {
			return nil, err
		}
	}
	c.nextForUnreadable()
	c.report.Healthy = len(c.report.Next) == 0
	return c.report, nil
}

func (c *collector) nextForUnreadable() {
	for _, what := range c.report.Unreadable {
		c.next("Not checked, because it could not be read (%s): request the permission, or use another identity (--kubeconfig, --context).", what)
	}
}

// next notes what to do, once.
func (c *collector) next(format string, args ...any) {
	if sentence := fmt.Sprintf(format, args...); !slices.Contains(c.report.Next, sentence) {
		c.report.Next = append(c.report.Next, sentence)
	}
}

// again is the command that puts right whatever prepare, the chart or finish can.
func (c *collector) again() string {
	command := "init-hook install --namespace " + c.home
	if c.Release != "zarf-registry" {
		command += " --release " + c.Release
	}
	return command
}

// unreadable notes an answer of the API server that is an error, and returns every
// other one: then the cluster cannot be asked at all.
func (c *collector) unreadable(what string, err error) error {
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.report.Unreadable = append(c.report.Unreadable, fmt.Sprintf("%s: %v", what, err))
	return nil
}

// secret reads a Secret, nil where there is none or where it may not be read.
func (c *collector) secret(ctx context.Context, name string) (secret *corev1.Secret, missing bool, err error) {
	secret, err = c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, c.unreadable(fmt.Sprintf("reading Secret %s/%s", c.Namespace, name), err)
	}
	return secret, false, nil
}

// locate finds out where Helm has its record. What cannot be read here is reported by
// workloads.
func (c *collector) locate(ctx context.Context) error {
	c.home = c.Namespace
	deployment, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err == nil && deployment.Annotations[names.AnnotationReleaseNamespace] != "" {
		c.home = deployment.Annotations[names.AnnotationReleaseNamespace]
	}
	return nil
}

func (c *collector) state(ctx context.Context) error {
	name := c.Name + names.SuffixState
	secret, missing, err := c.secret(ctx, name)
	if err != nil {
		return err
	}
	if missing {
		c.next("Secret %s/%s is missing, so the mode is unknown: %s writes it%s.", c.Namespace, name, c.again(), c.otherName(ctx))
	}
	if secret == nil {
		return nil
	}
	s, err := state.Decode(secret.Data[state.Key])
	if err != nil {
		c.next("Secret %s/%s, key %s: %v.", c.Namespace, name, state.Key, err)
		return nil
	}
	c.report.State = &State{
		Phase: s.Phase, Desired: s.Desired, Current: s.Current, Proven: append([]string{}, s.Nodes...),
		PKI: s.PKI, Rotation: s.Rotation, UpdatedBy: s.UpdatedBy, UpdatedAt: s.UpdatedAt,
	}
	if s.NodeConfig != nil {
		c.report.State.NodeDirectories = s.NodeConfig.Directories
	}
	return nil
}

// phase says what is to be done where the desired mode is not proven.
func (c *collector) phase(context.Context) error {
	s := c.report.State
	if s == nil || s.Phase == state.PhaseReady {
		return nil
	}
	since := s.UpdatedAt.Format(time.RFC3339)
	if s.Switching() {
		c.next("A switch from %s to %s mode was started at %s and is not complete: unless a run is in progress, run %s, which continues it.", s.Current.Mode, s.Desired.Mode, since, c.again())
	} else {
		c.next("%s mode was prepared at %s and is not verified: unless a run is in progress, run %s.", s.Desired.Mode, since, c.again())
	}
	return nil
}

// otherName says under which other name the release's state is.
func (c *collector) otherName(ctx context.Context) string {
	list, err := c.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(c.Namespace).List(ctx, selector(c.Release, "state"))
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	return ", or select the release's objects with --name " + strings.TrimSuffix(list.Items[0].Name, names.SuffixState)
}

// selector selects the release's objects of a component, whoever made them.
func selector(release, component string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.Selector(release, component)}
}

func (c *collector) helm(ctx context.Context) error {
	list, err := c.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(c.home).List(ctx, metav1.ListOptions{
		LabelSelector: "owner=helm,name=" + c.Release,
		FieldSelector: "type=helm.sh/release.v1",
	})
	if err != nil {
		return c.unreadable("listing the release's revisions in namespace "+c.home, err)
	}
	for _, s := range list.Items {
		revision, err := strconv.Atoi(s.Labels["version"])
		if err == nil && (c.report.Helm == nil || revision > c.report.Helm.Revision) {
			c.report.Helm = &Revision{revision, s.Labels["status"]}
		}
	}
	helm := c.report.Helm
	if helm == nil || helm.Status == "deployed" || helm.Status == "uninstalled" {
		return nil
	}
	switch {
	case helm.Status == "uninstalling":
		c.next("The release is being deleted: run helm uninstall %s --namespace %s to finish.", c.Release, c.home)
	case strings.HasPrefix(helm.Status, "pending-"):
		c.next("Helm's revision %d is %s: unless a run is in progress, run %s, which continues it.", helm.Revision, helm.Status, c.again())
	default:
		c.next("Helm's revision %d is %s, helm history %s --namespace %s shows why: run %s.", helm.Revision, helm.Status, c.Release, c.home, c.again())
	}
	return nil
}

func (c *collector) workloads(ctx context.Context) error {
	deployment, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		if err := c.unreadable(fmt.Sprintf("reading Deployment %s/%s", c.Namespace, c.Name), err); err != nil {
			return err
		}
	default:
		c.deployment = deployment
	}
	sets, err := c.Client.AppsV1().DaemonSets(c.Namespace).List(ctx, selector(c.Release, "proxy"))
	if err != nil {
		return c.unreadable("listing the DaemonSets in namespace "+c.Namespace, err)
	}
	c.objects = sets.Items
	return nil
}

// installed ends the look where there is nothing at all.
func (c *collector) installed(context.Context) error {
	r := c.report
	// "Nothing found" must not come of "nothing may be read".
	if r.State != nil || c.deployment != nil || len(c.objects) > 0 || len(r.Unreadable) > 0 || r.Helm != nil && r.Helm.Status != "uninstalled" {
		return nil
	}
	return fmt.Errorf("%w in namespace %s as release %s: run %s, or name another with --namespace, --release and --name", ErrNotInstalled, c.Namespace, c.Release, c.again())
}

func (c *collector) external() bool {
	return c.report.State != nil && c.report.State.mode() == state.ModeExternal
}

func (c *collector) events(ctx context.Context) error {
	c.warnings = map[string]string{}
	events, err := c.Client.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,type=Warning"})
	if err != nil {
		return c.unreadable("listing the events in namespace "+c.Namespace, err)
	}
	slices.SortStableFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	for _, e := range events.Items {
		c.warnings[e.InvolvedObject.Name] = fmt.Sprintf("%s: %s", e.Reason, e.Message)
	}
	return nil
}

func (c *collector) registry(ctx context.Context) error {
	if c.external() {
		return nil
	}
	r := &Registry{Pods: []Pod{}}
	c.report.Registry = r
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, nodes.RegistryPods(c.Release))
	if err != nil {
		if err := c.unreadable("listing the registry's pods in namespace "+c.Namespace, err); err != nil {
			return err
		}
		pods = &corev1.PodList{}
	}
	for _, p := range pods.Items {
		pod := c.pod(p)
		r.Pods = append(r.Pods, pod)
		if !pod.Ready && (r.Why == "" || r.Why == ending) {
			r.Why = pod.Why
		}
	}
	c.collection(ctx, pods.Items)
	r.Wanted = 1
	switch d := c.deployment; {
	case d == nil && len(c.report.Unreadable) > 0:
	case d == nil:
		r.Why = "the Deployment is missing"
		c.next("Deployment %s/%s is missing: run %s.", c.Namespace, c.Name, c.again())
		return nil
	case d.Spec.Replicas != nil:
		r.Wanted = int(*d.Spec.Replicas)
	}
	switch ready := r.ReadyPods(); {
	case r.Wanted == 0:
		r.Why = "scaled to 0 pods"
		c.next("The registry is scaled to 0 pods: run kubectl --namespace %s scale deployment %s --replicas 1.", c.Namespace, c.Name)
	case ready >= r.Wanted:
		r.Ready, r.Why = true, ""
	case len(r.Pods) == 0:
		r.Why = "no pod exists"
		c.next("The registry has no pod: kubectl --namespace %s describe deployment %s shows why.", c.Namespace, c.Name)
	case ready > 0:
		r.Why = cmp.Or(r.Why, "the others do not exist yet")
		c.next("%d of %d registry pods are ready and serve all requests (%s): kubectl --namespace %s describe pods --selector app.kubernetes.io/instance=%s,app.kubernetes.io/component=registry shows more.", ready, r.Wanted, r.Why, c.Namespace, c.Release)
	default:
		c.next("The registry is not ready (%s): kubectl --namespace %s describe pods --selector app.kubernetes.io/instance=%s,app.kubernetes.io/component=registry shows more.", orUnknown(r.Why), c.Namespace, c.Release)
	}
	return nil
}

// collection asks the first pod that answers: what they know is in the storage. To ask
// takes a right that looking at everything else does not, so none answering is no trouble.
func (c *collector) collection(ctx context.Context, pods []corev1.Pod) {
	if c.Loaded == nil {
		return
	}
	for _, p := range pods {
		if p.DeletionTimestamp != nil || !nodes.PodReady(p) {
			continue
		}
		report, err := c.Loaded(ctx, &p)
		if err != nil || report.Collection == nil {
			continue
		}
		c.report.Registry.Collection = report.Collection
		if problem := report.Collection.Problem; problem != "" {
			c.next("The last garbage collection failed (%s): init-hook garbage-collect --namespace %s runs it again.", oneLine(problem), c.Namespace)
		}
		return
	}
}

// pod says whether a pod is ready, and if not why.
func (c *collector) pod(p corev1.Pod) Pod {
	pod := Pod{Name: p.Name, Node: p.Spec.NodeName, Ready: p.DeletionTimestamp == nil && nodes.PodReady(p)}
	if !pod.Ready {
		pod.Why = c.why(p)
	}
	return pod
}

// why is what a pod that is not ready says of itself, else what its newest
// warning says.
func (c *collector) why(p corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return ending
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Ready {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				return oneLine(fmt.Sprintf("container %s exited with code %d: %s", s.Name, t.ExitCode, t.Message))
			}
		}
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return oneLine(w.Reason + ": " + w.Message)
		}
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
			return oneLine(condition.Reason + ": " + condition.Message)
		}
	}
	if warning := c.warnings[p.Name]; warning != "" {
		return oneLine(warning)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil {
			return "starting"
		}
		if w := s.State.Waiting; w != nil {
			return w.Reason
		}
	}
	return ""
}

// ending is why a pod is not ready that was told to end.
const ending = "terminating"

// oneLine keeps a table a table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func orUnknown(why string) string {
	if why == "" {
		return "no reason reported"
	}
	return why
}
