// Package status reports the state of an installation: mode, registry, each node's access
// to images, certificates, Helm release, and what to do about each problem. It changes
// nothing. Objects that it may not read are listed in the report and skipped.
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
	"k8s.io/utils/ptr"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Options select the installation and how to reach it.
type Options struct {
	// Namespace is that of the objects.
	Namespace, Release, Name string
	Client                   kubernetes.Interface
	// Metadata reads names and labels of large objects: payloads, releases.
	Metadata metadata.Interface
	// Loaded queries a pod of the registry, a proxy or a cache for what it has loaded. Collect
	// queries no proxies.
	Loaded func(ctx context.Context, pod *corev1.Pod) (*loaded.State, error)
	Now    func() time.Time
}

// Report is the result of Collect. Its JSON is the output of zarf-registry status.
type Report struct {
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	Name      string `json:"name"`
	// Healthy reports whether Next is empty.
	Healthy bool `json:"healthy"`
	// State is the saved state. It is nil if it is missing or unreadable.
	State *State `json:"state,omitempty"`
	// Helm is the latest revision. It is nil if there is none, as with Argo CD.
	Helm *Revision `json:"helm,omitempty"`
	// Registry is nil in external mode.
	Registry *Registry `json:"registry,omitempty"`
	// Caches is nil if there are none.
	Caches *Caches `json:"caches,omitempty"`
	// Healer is nil if it is off.
	Healer *Healer `json:"healer,omitempty"`
	// Rewriting is nil if no policy rewrites image references, or if reading it is forbidden.
	Rewriting *Rewriting `json:"rewriting,omitempty"`
	Nodes     []Node     `json:"nodes"`
	// NodeConfig has an entry for each node whose container runtime is configured.
	NodeConfig   []NodeConfig  `json:"nodeConfig"`
	Certificates []Certificate `json:"certificates"`
	Payloads     []Payload     `json:"payloads"`
	// Leftovers are objects of a mode that is not in use.
	Leftovers []string `json:"leftovers"`
	// Unreadable lists objects that could not be read, with the reason.
	Unreadable []string `json:"unreadable"`
	// Next lists what to do, one sentence for each problem.
	Next []string `json:"next"`
}

// State is the part of the saved state that the report shows.
type State struct {
	Phase   state.Phase     `json:"phase"`
	Desired state.Settings  `json:"desired"`
	Current *state.Settings `json:"current,omitempty"`
	// VerifiedNodes are the nodes that pulled in the last verification.
	VerifiedNodes []string `json:"verifiedNodes"`
	// PKI is how certificates are issued. It is nil in external mode.
	PKI *state.PKI `json:"pki,omitempty"`
	// Rotation is the CA rotation in progress, or nil.
	Rotation *state.Rotation `json:"rotation,omitempty"`
	// PauseImages are the images of injected programs, by architecture.
	PauseImages map[string]state.PauseImage `json:"pauseImages,omitempty"`
	// NodeDirectories are directories on nodes that may contain files of the release.
	NodeDirectories []string  `json:"nodeDirectories,omitempty"`
	UpdatedBy       string    `json:"updatedBy"`
	UpdatedAt       time.Time `json:"updatedAt"`

	mirrors    *state.Mirrors
	excused    map[string]string
	unreserved string // why no Service has to own the node port
	pushed     bool   // the registry got the project's own images
}

// Switching reports whether a switch between two modes is in progress or was interrupted.
func (s *State) Switching() bool {
	return s.Phase != state.PhaseReady && s.Current != nil && s.Current.Mode != s.Desired.Mode
}

// mode returns the mode that nodes use: the last verified one, else the desired one.
func (s *State) mode() state.Mode {
	if s.Current != nil {
		return s.Current.Mode
	}
	return s.Desired.Mode
}

// port returns the port on each node's loopback address.
func (s *State) port() int {
	if s.Current != nil {
		return s.Current.Port
	}
	return s.Desired.Port
}

// Revision is a revision of a Helm release.
type Revision struct {
	Revision int `json:"revision"`
	// Status is Helm's status: deployed, failed, pending-upgrade and so on.
	Status string `json:"status"`
}

// Registry describes the registry's Deployment.
type Registry struct {
	// Ready reports whether Desired pods are ready. Message says why not.
	Ready   bool   `json:"ready"`
	Desired int    `json:"desired"`
	Message string `json:"message,omitempty"`
	Pods    []Pod  `json:"pods"`
	// StorageEmpty means that the storage has lost its content: the project's own images, which were pushed, are
	// missing.
	StorageEmpty bool `json:"storageEmpty,omitempty"`
	// Claim is nil if the registry needs no volume, or if reading it is forbidden.
	Claim *Claim `json:"claim,omitempty"`
	// GarbageCollection is the state of garbage collection. It is nil if no pod responded.
	GarbageCollection *loaded.GarbageCollection `json:"garbageCollection,omitempty"`
	// Scrub is the result of the last complete zarf-registry images scrub. It is nil if there was none, or if no pod
	// responded.
	Scrub *loaded.Scrub `json:"scrub,omitempty"`
	// Space is how full the volume is. It is nil if no pod responded, and with S3.
	Space *space.Usage `json:"space,omitempty"`
}

// ReadyPods counts the ready pods. One is enough to serve all requests.
func (r *Registry) ReadyPods() int {
	n := 0
	for _, p := range r.Pods {
		if p.Ready {
			n++
		}
	}
	return n
}

// Pod describes a pod of the registry, or a cache.
type Pod struct {
	Name    string `json:"name"`
	Node    string `json:"node,omitempty"`
	Ready   bool   `json:"ready"`
	Message string `json:"message,omitempty"`
}

// ErrNotInstalled is the error of Collect and CollectCertificates without an installation.
var ErrNotInstalled = errors.New("zarf-registry is not installed")

type collector struct {
	Options
	report           *Report
	releaseNamespace string // the namespace of the Helm release; differs from Namespace with namespaceOverride

	objects       []appsv1.DaemonSet // of the proxies
	configObjects []appsv1.DaemonSet // of node configuration
	deployment    *appsv1.Deployment
	warnings      map[string]string // of pods, by name
	linux         []corev1.Node     // empty if listing nodes is forbidden
}

// Collect reports the state of the installation. The error is ErrNotInstalled, or the
// cluster does not respond.
func Collect(ctx context.Context, o Options) (*Report, error) {
	c := &collector{Options: o, report: &Report{
		Namespace: o.Namespace, Release: o.Release, Name: o.Name,
		Nodes: []Node{}, NodeConfig: []NodeConfig{}, Certificates: []Certificate{}, Payloads: []Payload{},
		Leftovers: []string{}, Unreadable: []string{}, Next: []string{},
	}}
	for _, look := range []func(context.Context) error{
		c.locate, c.state, c.phase, c.helm, c.workloads, c.installed, c.events,
		c.registry, c.caches, c.healer, c.rewriting, c.nodes, c.nodeConfig, c.nodePort, c.port, c.certificates, c.payloads,
		c.leftovers,
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
		c.next("Not checked, because it could not be read (%s): request the permission, or use another identity "+
			"(--kubeconfig, --context).", what)
	}
}

// next adds a sentence to the next steps, without duplicates.
func (c *collector) next(format string, args ...any) {
	if sentence := fmt.Sprintf(format, args...); !slices.Contains(c.report.Next, sentence) {
		c.report.Next = append(c.report.Next, sentence)
	}
}

// installCommand returns the command that repeats the installation.
func (c *collector) installCommand() string {
	command := "zarf-registry install --namespace " + c.releaseNamespace
	if c.Release != "zarf-registry" {
		command += " --release " + c.Release
	}
	return command
}

// modeFlag returns the flag of the command that selects a mode.
func modeFlag(s state.Settings) string {
	switch s.Mode {
	case state.ModeExternal:
		return "--registry-url " + s.Address
	case state.ModeProxy:
		return "--registry-proxy"
	}
	return "--registry-proxy=false"
}

// unreadable records an error response of the API server and returns nil. It returns any
// other error, because then the cluster cannot be reached.
func (c *collector) unreadable(what string, err error) error {
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.report.Unreadable = append(c.report.Unreadable, fmt.Sprintf("%s: %v", what, err))
	return nil
}

// secret reads a Secret. It is nil if it does not exist or reading is forbidden.
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

// locate determines the namespace of the Helm release. workloads reports read errors.
func (c *collector) locate(ctx context.Context) error {
	c.releaseNamespace = c.Namespace
	deployment, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err == nil && deployment.Annotations[names.AnnotationReleaseNamespace] != "" {
		c.releaseNamespace = deployment.Annotations[names.AnnotationReleaseNamespace]
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
		c.next("Secret %s/%s is missing, so the mode is unknown: %s writes it%s.", c.Namespace, name, c.installCommand(),
			c.otherName(ctx))
	}
	if secret == nil {
		return nil
	}
	s, err := state.Decode(secret.Data[state.Key])
	if err != nil {
		c.next("Secret %s/%s, key %s: %v.", c.Namespace, name, state.Key, err)
		return nil
	}
	if s.RenewalFailed != "" {
		c.next("The last renewal of the certificates failed at %s.", strings.TrimSuffix(s.RenewalFailed, "."))
	}
	c.report.State = &State{
		Phase: s.Phase, Desired: s.Desired, Current: s.Current, VerifiedNodes: append([]string{}, s.VerifiedNodes...),
		PKI: s.PKI, Rotation: s.Rotation, PauseImages: s.PauseImages, UpdatedBy: s.UpdatedBy, UpdatedAt: s.UpdatedAt,
		unreserved: s.PortNotReserved,
		pushed:     s.Phase == state.PhaseReady && s.HookImage != nil,
		mirrors:    s.Mirrors,
		excused:    s.ExcusedNodes,
	}
	if s.NodeConfig != nil {
		c.report.State.NodeDirectories = s.NodeConfig.Directories
	}
	return nil
}

// phase adds the next step if the desired mode is not verified.
func (c *collector) phase(context.Context) error {
	s := c.report.State
	if s == nil || s.Phase == state.PhaseReady {
		return nil
	}
	since := s.UpdatedAt.Format(time.RFC3339)
	if s.Switching() {
		c.next("A switch from %s to %s mode was started at %s and is not complete: unless a run is in progress, run %s %s "+
			"to continue it, or %s %s to go back.", s.Current.Mode, s.Desired.Mode, since,
			c.installCommand(), modeFlag(s.Desired), c.installCommand(), modeFlag(*s.Current))
	} else {
		c.next("%s mode was prepared at %s and is not verified: unless a run is in progress, run %s.", s.Desired.Mode, since,
			c.installCommand())
	}
	return nil
}

// otherName returns advice if the release's state has another name.
func (c *collector) otherName(ctx context.Context) string {
	list, err := c.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(
		c.Namespace).List(ctx, selector(c.Release, "state"))
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	return ", or select the release's objects with --name " + strings.TrimSuffix(list.Items[0].Name, names.SuffixState)
}

// selector selects the release's objects of a component, made by the chart or the hooks.
func selector(release, component string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.Selector(release, component)}
}

func (c *collector) helm(ctx context.Context) error {
	list, err := c.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(
		c.releaseNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "owner=helm,name=" + c.Release,
		FieldSelector: "type=helm.sh/release.v1",
	})
	if err != nil {
		return c.unreadable("listing the release's revisions in namespace "+c.releaseNamespace, err)
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
		c.next("The release is being deleted: run helm uninstall %s --namespace %s to finish.", c.Release, c.releaseNamespace)
	case strings.HasPrefix(helm.Status, "pending-"):
		c.next("Helm's revision %d is %s: unless a run is in progress, run %s with the values of that run.", helm.Revision,
			helm.Status, c.installCommand())
	default:
		c.next("Helm's revision %d is %s, helm history %s --namespace %s shows why: run %s.", helm.Revision, helm.Status,
			c.Release, c.releaseNamespace, c.installCommand())
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

// installed returns ErrNotInstalled if no object of the release exists.
func (c *collector) installed(context.Context) error {
	r := c.report
	// Unreadable objects may exist.
	if r.State != nil || c.deployment != nil || len(c.objects) > 0 || len(r.Unreadable) > 0 || r.Helm != nil &&
		r.Helm.Status != "uninstalled" {
		return nil
	}
	return fmt.Errorf("%w in namespace %s as release %s: run %s, or name another with --namespace, --release and --name",
		ErrNotInstalled, c.Namespace, c.Release, c.installCommand())
}

func (c *collector) external() bool {
	s := c.report.State
	return s != nil && s.mode() == state.ModeExternal && s.Desired.Mode == state.ModeExternal
}

func (c *collector) events(ctx context.Context) error {
	events, err := c.Client.CoreV1().Events(c.Namespace).List(ctx, nodes.PodWarnings())
	if err != nil {
		return c.unreadable("listing the events in namespace "+c.Namespace, err)
	}
	c.warnings = nodes.NewestWarnings(events.Items)
	return nil
}

func (c *collector) registry(ctx context.Context) error {
	if c.external() {
		return nil
	}
	r := &Registry{Pods: []Pod{}}
	c.report.Registry = r
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, selector(c.Release, names.ComponentRegistry))
	if err != nil {
		if err := c.unreadable("listing the registry's pods in namespace "+c.Namespace, err); err != nil {
			return err
		}
		pods = &corev1.PodList{}
	}
	c.claim(ctx)
	more := fmt.Sprintf("kubectl --namespace %s describe pods --selector "+
		"app.kubernetes.io/instance=%s,app.kubernetes.io/component=registry shows more", c.Namespace, c.Release)
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			continue // evicted, for example: another one has replaced it
		}
		pod := c.pod(p)
		if !pod.Ready && pod.Message != ending {
			more = cmp.Or(c.claimAdvice(p), more)
			if problem := c.storage(ctx, p); problem != "" {
				pod.Message, more = problem, "it is ready again once its storage responds"
			}
		}
		r.Pods = append(r.Pods, pod)
		if !pod.Ready && (r.Message == "" || r.Message == ending) {
			r.Message = pod.Message
		}
	}
	c.sharedState(ctx, pods.Items)
	r.Desired = 1
	switch d := c.deployment; {
	case d != nil:
		r.Desired = int(ptr.Deref(d.Spec.Replicas, 1))
	case len(c.report.Unreadable) == 0:
		r.Message = "the Deployment is missing"
		c.next("Deployment %s/%s is missing: run %s.", c.Namespace, c.Name, c.installCommand())
		return nil
	}
	switch ready := r.ReadyPods(); {
	case r.Desired == 0:
		r.Message = "scaled to 0 pods"
		c.next("The registry is scaled to 0 pods: run kubectl --namespace %s scale deployment %s --replicas 1.", c.Namespace,
			c.Name)
	case ready >= r.Desired:
		r.Ready, r.Message = true, ""
	case len(r.Pods) == 0:
		r.Message = "no pod exists"
		c.next("The registry has no pod: kubectl --namespace %s describe deployment %s shows why.", c.Namespace, c.Name)
	case ready > 0:
		r.Message = cmp.Or(r.Message, "the others do not exist yet")
		c.next("%d of %d registry pods are ready and serve all requests (%s): %s.", ready, r.Desired, r.Message, more)
	default:
		c.next("The registry is not ready (%s): %s.", orUnknown(r.Message), cmp.Or(c.lost(ctx, pods.Items), more))
	}
	return nil
}

// storage queries a pod of the registry, and returns why its storage fails; empty if it works, or if that is unknown.
func (c *collector) storage(ctx context.Context, p corev1.Pod) string {
	if p.Status.PodIP == "" {
		return ""
	}
	report, err := c.Loaded(ctx, &p)
	if err != nil {
		return ""
	}
	return oneLine(report.StorageError)
}

// sharedState queries the first pod that responds: all share the state in the storage. A
// query requires a permission that the rest of the report does not, so no response is not
// a problem.
func (c *collector) sharedState(ctx context.Context, pods []corev1.Pod) {
	for _, p := range pods {
		if !release.PodServes(p) {
			continue
		}
		report, err := c.Loaded(ctx, &p)
		if err != nil || report.GarbageCollection == nil {
			continue
		}
		c.report.Registry.GarbageCollection = report.GarbageCollection
		c.space(report.Space)
		if scrub := report.Scrub; scrub != nil {
			c.report.Registry.Scrub = scrub
			c.scrub(scrub)
		}
		if s := c.report.State; report.StorageEmpty && s != nil && s.pushed {
			c.report.Registry.StorageEmpty = true
			c.next("The registry's storage has lost its content: run %s, which pushes the project's images, and push yours "+
				"again, from a backup or from their archives.", c.installCommand())
		}
		if problem := report.GarbageCollection.Problem; problem != "" {
			c.next("The last garbage collection failed (%s): zarf-registry images garbage-collect --namespace %s runs it again.",
				oneLine(problem), c.Namespace)
		}
		return
	}
}

// scrub adds a next step if stored content is missing or damaged.
func (c *collector) scrub(report *loaded.Scrub) {
	switch {
	case report.Problems == 0:
	case len(report.Images) == 0:
		c.next("The registry's storage has damaged content that no image needs: zarf-registry images garbage-collect "+
			"--namespace %s removes it.", c.Namespace)
	default:
		c.next("The registry's storage lacks content, or has damaged content, of %s: push these images again.",
			strings.Join(report.Images, " "))
	}
}

// space adds a next step if the volume is full or nearly full.
func (c *collector) space(usage *space.Usage) {
	c.report.Registry.Space = usage
	if usage == nil || usage.Percent() < space.NearlyFull {
		return
	}
	level, effect := "nearly full", fmt.Sprintf("pushes are refused from %d %%", space.Full)
	if usage.Percent() >= space.Full {
		level, effect = "full", "pushes are refused"
	}
	c.next("The registry's storage is %s (%s; %s): %s.", level, usage, effect, space.Remedy)
}

func (c *collector) pod(p corev1.Pod) Pod {
	pod := Pod{Name: p.Name, Node: p.Spec.NodeName, Ready: release.PodServes(p)}
	if !pod.Ready {
		pod.Message = c.why(p)
	}
	return pod
}

// why returns why a pod is not ready: from its status, else from its latest warning event.
func (c *collector) why(p corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return ending
	}
	if why := cmp.Or(nodes.PodComplaint(p), c.warnings[p.Name]); why != "" {
		return oneLine(why)
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

// ending is why a pod that is being deleted is not ready.
const ending = "terminating"

// oneLine joins lines, for tables.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func orUnknown(why string) string { return cmp.Or(why, "no reason reported") }
