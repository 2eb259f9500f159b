package hook_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodeport"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	pauseImage  = "registry.k8s.io/pause:3.10.1"
	registryURL = "registry.example.com/team"
	// The chart's names for these objects.
	serviceName = "zarf-registry-nodeport"
	proxyName   = "zarf-registry-proxy-amd64"
	registryPod = "zarf-registry-1"
	cachePod    = "zarf-registry-cache-1"
)

// The chart's decision about pause images.
var (
	knownPause = settings.PauseImage{Source: state.SourceState,
		PauseImage: state.PauseImage{Reference: pauseImage, Reason: state.PauseDigest}}
	pauseRules = nodeimages.Rules{References: []string{pauseImage}, Digest: "^$", Name: "^registry[.]k8s[.]io/pause:[0-9.]+$",
		Own: "^$"}
)

// largePayloads consist of several chunks of pseudo-random data, which the fake cluster stores slowly.
// smallPayloads consist of one.
var largePayloads, smallPayloads = makePayloads(1_100_000), makePayloads(1000)

func makePayloads(size int) map[injector.Program]*injector.Payload {
	made := map[injector.Program]*injector.Payload{}
	for _, program := range []string{"registry", "registry-node"} {
		noise := make([]byte, size)
		x := uint32(len(program))
		for i := range noise {
			x = x*1664525 + 1013904223
			noise[i] = byte(x >> 24)
		}
		layer, err := injector.BuildLayer(program, noise)
		if err != nil {
			panic(err)
		}
		p, err := injector.Encode(injector.Program{Name: program, Architecture: "amd64"}, layer, []byte("loader"))
		if err != nil {
			panic(err)
		}
		made[p.Program] = p
	}
	return made
}

type programs struct{ large bool }

func (s programs) all() map[injector.Program]*injector.Payload {
	if s.large {
		return largePayloads
	}
	return smallPayloads
}

func (s programs) Payload(program, architecture string) (*injector.Payload, error) {
	p, ok := s.all()[injector.Program{Name: program, Architecture: architecture}]
	if !ok {
		return nil, fmt.Errorf("no payload of %s for %s", program, architecture)
	}
	return p, nil
}

// registry is a hook.Registry whose plain listener follows the Secret once its pod is annotated or
// starts.
type registry struct {
	pushed []release.PushAccess
	err    error
	image  *state.HookImage
	// open is the state of the plain listener. If deaf, it never changes; if unreachable, its state is
	// unknown.
	open, deaf  bool
	unreachable error
	// loaded returns what a pod has loaded.
	loaded func(*corev1.Pod) (*loaded.State, error)
	// refused is the error of a push whose credential the registry has not loaded.
	refused func() error
}

func (r *registry) PushProgramImages(_ context.Context, a release.PushAccess) ([]string, error) {
	r.pushed = append(r.pushed, a)
	return []string{"zarf-registry/registry:dev"}, cmp.Or(r.err, r.refused())
}
func (r *registry) HookImage() (own *state.HookImage, missing string) { return r.image, "of a test" }

func (*registry) ProbeImage(mode state.Mode) (string, error) {
	return "zarf-registry/probe-" + string(mode) + ":dev", nil
}
func (r *registry) PlainOpen(context.Context, *corev1.Pod) (bool, error) {
	return r.open && r.unreachable == nil, r.unreachable
}

func (r *registry) Loaded(_ context.Context, pod *corev1.Pod) (*loaded.State, error) {
	return r.loaded(pod)
}

// bench is a Hook with a fake cluster. The fake stores objects like the API server; react simulates
// kubelets and controllers.
type bench struct {
	*testing.T
	client *fake.Clientset
	// versions counts the resource versions.
	versions atomic.Int64
	// tracker stores the objects. The client's own also stores managed fields, which no test needs and
	// which take most of the time.
	tracker  kubetesting.ObjectTracker
	hook     rendered
	registry *registry
	log      *bytes.Buffer
	now      time.Time

	// admit decides about dry runs and may change the object.
	admit func(runtime.Object) error
	// failing maps a node to its kubelet's error for every pull.
	failing map[string]string
	// ignoresMirrors is the node whose container runtime reads no hosts.toml.
	ignoresMirrors string
	// probePods are the verification pods that were created.
	probePods []*corev1.Pod

	// left is the number of writes that succeed before the process is killed. If lost, the last one is
	// done but its response is lost. A negative number means no kill.
	left       int
	lost, dead bool
	// shown is true while the EndpointSlices lack the label that hides the NodePort Service.
	shown bool
	// watched is true if each node must be able to pull before and after each write.
	watched bool
	made    int
	// starting maps each proxy that is starting to when it becomes ready.
	starting map[string]time.Time
	// interfere is called before each write, to simulate another writer.
	interfere func(string)
	// after is called after each write.
	after func(string)
	// forbid rejects writes by their description; see describe.
	forbid func(string) error
	// fail rejects requests by their description, also reads and dry runs.
	fail func(string) error
	// wrote holds the descriptions of the writes.
	wrote []string

	kubelets
	certManager
	nodeFiles
}

var errKilled = errors.New("killed")

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	if len(objects) == 0 {
		objects = []runtime.Object{node("n1"), node("n2")}
	}
	b := &bench{T: t, client: fake.NewClientset(), tracker: kubetesting.NewObjectTracker(scheme.Scheme,
		scheme.Codecs.UniversalDecoder()),
		registry: &registry{image: &state.HookImage{Reference: "zarf-registry/init-hook:dev", Architecture: "amd64"}},
		log:      &bytes.Buffer{}, now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), left: -1}
	var locked sync.Mutex
	log := slog.New(slog.NewJSONHandler(writer(func(p []byte) { locked.Lock(); b.log.Write(p); locked.Unlock() }), nil))
	b.hook = rendered{&hook.Hook{
		Settings: settings.Settings{
			Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
			ModeSource: state.SourceValue,
			Port:       31999, IPFamily: state.IPv4, IPFamilySource: state.SourceCluster,
			Architectures: []string{"amd64", "arm64"},
			Injector: settings.Injector{Enabled: true, PayloadID: "0.1.0", PauseImages: map[string]settings.PauseImage{
				"amd64": knownPause, "arm64": knownPause}, PauseRules: pauseRules},
			Finish: settings.Finish{VerifyPulls: true, LocalRegistryHosting: true},
			PKI:    settings.PKI{PKI: internalPKI, Source: state.SourceValue},
		},
		Timeout:  5 * time.Minute,
		Cluster:  clusterOf(b.client),
		Programs: programs{},
		Registry: b.registry,
		Log:      log,
		Progress: release.Logged{Log: log},
		Now:      func() time.Time { return b.now },
	}}
	b.registry.loaded, b.registry.refused = b.report, b.refused
	b.installCertManager()
	for _, o := range objects {
		b.add(o)
	}
	b.mode(state.ModeProxy)
	b.client.PrependReactor("*", "*", b.react)
	return b
}

// clusterOf returns the clients that the hook needs, without cert-manager.
func clusterOf(client *fake.Clientset) hook.Cluster {
	core, apps := client.CoreV1(), client.AppsV1()
	pods := core.Pods("zarf")
	return hook.Cluster{
		Secrets: core.Secrets("zarf"),
		Nodes: nodes.Cluster{Nodes: core.Nodes(), Pods: pods, Events: core.Events("zarf"),
			DaemonSets: apps.DaemonSets("zarf")},
		RefreshPods: pods,
		Payload: payload.Cluster{ConfigMaps: core.ConfigMaps("zarf"),
			ConfigMapNames: metadataClient{core.ConfigMaps("zarf")}, Pods: pods},
		Preflight: preflight.Cluster{Namespaces: core.Namespaces(), AllServices: core.Services(""),
			Services: core.Services("zarf"), Pods: pods, Claims: core.PersistentVolumeClaims("zarf"),
			Volumes: core.PersistentVolumes(), StorageClasses: client.StorageV1().StorageClasses(),
			PriorityClasses: client.SchedulingV1().PriorityClasses()},
		VerifyPods:  pods,
		Deployments: apps.Deployments("zarf"), Jobs: client.BatchV1().Jobs("zarf"),
		NodePort: nodeport.Cluster{Services: services{core.Services("zarf")},
			EndpointSlices: client.DiscoveryV1().EndpointSlices("zarf")},
		HostingConfigMaps: core.ConfigMaps("kube-public"),
	}
}

// services patches nothing once the context has ended, unlike the fake.
type services struct{ nodeport.Services }

func (s services) Patch(ctx context.Context, name string, kind types.PatchType, data []byte,
	opts metav1.PatchOptions, subresources ...string) (*corev1.Service, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.Services.Patch(ctx, name, kind, data, opts, subresources...)
}

// rendered is a Hook whose settings get the address that the chart would render.
type rendered struct{ *hook.Hook }

func (r rendered) render() *hook.Hook {
	s := &r.Settings
	s.Address = s.RegistryURL
	if s.Mode != state.ModeExternal {
		s.Address = map[bool]string{false: "127.0.0.1:", true: "[::1]:"}[s.IPFamily == state.IPv6] + strconv.Itoa(s.Port)
	}
	return r.Hook
}

func (r rendered) Prepare(ctx context.Context) error { return r.render().Prepare(ctx) }
func (r rendered) Finish(ctx context.Context) error  { return r.render().Finish(ctx) }
func (r rendered) Preflight(ctx context.Context) ([]preflight.Finding, error) {
	return r.render().Preflight(ctx)
}

// mode sets what the chart would render for a mode.
func (b *bench) mode(mode state.Mode) {
	o := &b.hook.Settings
	o.Mode, o.RegistryURL, o.Proxy.DaemonSets = mode, "", nil
	switch mode {
	case state.ModeProxy:
		o.Proxy.DaemonSets = []string{proxyName}
	case state.ModeExternal:
		o.RegistryURL = registryURL
	}
}

// react simulates the API server, kubelets and controllers. The fake serializes the calls.
func (b *bench) react(a kubetesting.Action) (bool, runtime.Object, error) {
	if b.dead {
		return true, nil, errKilled
	}
	if b.fail != nil {
		if err := b.fail(describe(a)); err != nil {
			return true, nil, err
		}
	}
	if handled, object, err := b.certManagerAnswers(a); handled {
		return true, object, err
	}
	if applied, ok := a.(kubetesting.PatchActionImpl); ok && applied.GetPatchType() == types.ApplyPatchType {
		if a = b.applied(applied); a.GetVerb() == "get" { // the cluster has that already
			return kubetesting.ObjectReaction(b.tracker)(a)
		}
	}
	if a.GetVerb() == "get" || a.GetVerb() == "list" {
		b.startSuccessors()
		if a.GetResource().Resource == "endpointslices" {
			return true, b.slices(), nil
		}
		b.startProxies()
		handled, object, err := kubetesting.ObjectReaction(b.tracker)(a)
		if list, ok := a.(kubetesting.ListActionImpl); ok && err == nil {
			b.selectFields(object, list.GetListRestrictions().Fields)
		}
		return handled, object, err
	}
	if c, ok := a.(kubetesting.CreateActionImpl); ok && len(c.CreateOptions.DryRun) > 0 {
		object := c.GetObject().DeepCopyObject()
		if pod, ok := object.(*corev1.Pod); ok {
			b.checkPod(pod)
		}
		if b.admit != nil {
			if err := b.admit(object); err != nil {
				return true, nil, err
			}
		}
		return true, object, nil
	}
	b.checkPulls("before " + describe(a))
	b.checkTrust("before " + describe(a))
	b.wrote = append(b.wrote, describe(a))
	if b.interfere != nil {
		b.interfere(describe(a))
	}
	if b.forbid != nil {
		if err := b.forbid(describe(a)); err != nil {
			return true, nil, err
		}
	}
	if b.left == 0 {
		b.dead = true
		if b.lost {
			if _, err := b.apply(a); err != nil {
				return true, nil, err
			}
		}
		return true, nil, errKilled
	}
	b.left--
	object, err := b.apply(a)
	b.checkPulls("after " + describe(a))
	if b.after != nil {
		b.after(describe(a))
	}
	return true, object, err
}

func (b *bench) apply(a kubetesting.Action) (runtime.Object, error) {
	if a.GetResource().Resource == "endpointslices" {
		b.shown = true
		return &b.slices().Items[0], nil
	}
	b.shown = false // the controller copies the Service's labels again
	if c, ok := a.(kubetesting.CreateActionImpl); ok {
		object := metaOf(c.GetObject())
		b.made++
		if object.GetName() == "" {
			object.SetName(fmt.Sprintf("%s%d", object.GetGenerateName(), b.made))
		}
		object.SetUID(types.UID(fmt.Sprint("uid-", b.made)))
		if pod, ok := object.(*corev1.Pod); ok {
			b.checkPod(pod)
			if pod.Labels["app.kubernetes.io/component"] == "probe" {
				b.pull(pod)
			}
		}
	}
	if err := b.lock(a); err != nil {
		return nil, err
	}
	ended := b.endedBy(a)
	_, object, err := kubetesting.ObjectReaction(b.tracker)(a)
	if err != nil {
		return nil, err
	}
	if a.GetVerb() == "patch" {
		b.versioned(object)
		if err := b.tracker.Update(a.GetResource(), object, a.GetNamespace()); err != nil {
			return nil, err
		}
	}
	ended()
	b.certManagerWorks(a)
	switch a := a.(type) {
	case kubetesting.PatchActionImpl:
		if a.GetResource().Resource == "pods" {
			b.readSecret()
			b.annotated(a.GetName())
		}
	case kubetesting.DeleteActionImpl:
		orphans := a.DeleteOptions.PropagationPolicy
		if a.GetResource().Resource == "daemonsets" && (orphans == nil || *orphans != metav1.DeletePropagationOrphan) {
			for _, pod := range b.allPods() {
				if ownerOf(pod) == a.GetName() && pod.DeletionTimestamp == nil &&
					pod.Labels["app.kubernetes.io/component"] == "proxy" {
					b.remove("pods", pod.Name)
				}
			}
		}
	}
	return object, nil
}

// lock simulates the API server's optimistic locking. A write that names a resource version or a UID
// fails if the object has another one.
func (b *bench) lock(a kubetesting.Action) error {
	var name string
	var version *string
	var uid *types.UID
	switch a := a.(type) {
	case kubetesting.CreateActionImpl:
		b.versioned(a.GetObject())
		return nil
	case kubetesting.UpdateActionImpl:
		object := metaOf(a.GetObject())
		name, version = object.GetName(), new(object.GetResourceVersion())
		defer b.versioned(object)
	case kubetesting.PatchActionImpl:
		var patch metav1.PartialObjectMetadata
		name = a.GetName()
		if err := json.Unmarshal(a.GetPatch(), &patch); err == nil && patch.ResourceVersion != "" {
			version = &patch.ResourceVersion
		}
	case kubetesting.DeleteActionImpl:
		name = a.GetName()
		if p := a.DeleteOptions.Preconditions; p != nil {
			uid = p.UID
		}
		// Another owner may have created an object with the name since it was read. Nobody else uses the
		// names of payload, Jobs and probe pods.
		kind := a.GetResource().Resource
		if uid == nil && kind != "jobs" && (kind != "configmaps" || a.GetNamespace() != "zarf") &&
			!strings.HasPrefix(name, "zarf-registry-probe-") {
			b.Errorf("%s has no UID as a precondition", describe(a))
		}
	}
	have, err := b.tracker.Get(a.GetResource(), a.GetNamespace(), name)
	if err != nil {
		return err
	}
	if version != nil && metaOf(have).GetResourceVersion() != *version || uid != nil && metaOf(have).GetUID() != *uid {
		return apierrors.NewConflict(a.GetResource().GroupResource(), name, errors.New("the object has been modified"))
	}
	return nil
}

// versioned gives an object the next resource version.
func (b *bench) versioned(object any) {
	object.(metav1.Object).SetResourceVersion(fmt.Sprint(b.versions.Add(1)))
}

// selectFields removes what a field selector leaves out from a list.
func (b *bench) selectFields(list runtime.Object, selector fields.Selector) {
	if selector.Empty() {
		return
	}
	items, err := apimeta.ExtractList(list)
	if err != nil {
		b.Error(err)
	}
	items = slices.DeleteFunc(items, func(o runtime.Object) bool {
		set := fields.Set{"metadata.name": metaOf(o).GetName()}
		if e, ok := o.(*corev1.Event); ok {
			set["involvedObject.kind"], set["type"] = e.InvolvedObject.Kind, e.Type
			set["involvedObject.name"] = e.InvolvedObject.Name
		}
		for _, r := range selector.Requirements() {
			if !set.Has(r.Field) {
				b.Errorf("the API server does not select %T by %s", o, r.Field)
			}
		}
		return !selector.Matches(set)
	})
	if err := apimeta.SetList(list, items); err != nil {
		b.Error(err)
	}
}

// readSecret makes the registry read its Secret.
func (b *bench) readSecret() {
	if b.registry.deaf {
		return
	}
	b.registry.open = false
	if s := b.get("secrets", "zarf-registry-auth"); s != nil {
		_, b.registry.open = s.(*corev1.Secret).Data["pull-htpasswd"]
	}
}

// checkPod reports a created pod that Zarf's admission webhook would change.
func (b *bench) checkPod(pod *corev1.Pod) {
	if pod.Labels["zarf.dev/agent"] != "ignore" {
		b.Errorf("pod %s has no label zarf.dev/agent=ignore: %v", pod.Name, pod.Labels)
	}
}

// pull simulates what the kubelet does with a verification pod.
func (b *bench) pull(pod *corev1.Pod) {
	b.probePods = append(b.probePods, pod)
	image := pod.Spec.Containers[0].Image
	byNodePort := strings.Contains(image, "/probe-nodeport:")
	service, served := b.served(), b.endpoints()
	message := b.failing[pod.Spec.NodeName]
	if !strings.HasPrefix(image, b.hook.Settings.Address) && pod.Spec.NodeName == b.ignoresMirrors {
		message = "dial tcp: lookup docker.io: no such host"
	}
	switch {
	case message != "":
	case service && byNodePort && served, !service && !byNodePort && b.proxied(pod.Spec.NodeName):
		pod.Status.Phase = corev1.PodSucceeded
		return
	case service && !served, !service && !b.proxied(pod.Spec.NodeName):
		message = "dial tcp 127.0.0.1:31999: connect: connection refused"
	default:
		message = "unexpected status from HEAD request: 403 Forbidden"
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message}}}}
}

// canPull reports whether each node can pull. kube-proxy's rules for a node port take precedence over
// a proxy's host port.
func (b *bench) canPull() bool {
	if b.served() {
		return b.endpoints()
	}
	return b.proxied("n1") && b.proxied("n2")
}

func (b *bench) checkPulls(when string) {
	if b.watched && !b.canPull() {
		b.Errorf("a node cannot pull %s", when)
	}
}

// proxied reports whether a node has a ready proxy.
func (b *bench) proxied(node string) bool {
	b.startProxies()
	return slices.ContainsFunc(b.allPods(), func(p corev1.Pod) bool {
		return p.Spec.NodeName == node && p.Labels["app.kubernetes.io/component"] == "proxy" && release.PodReady(p) &&
			b.get("daemonsets", ownerOf(p)) != nil
	})
}

// startProxies makes those proxies ready that had the time to start.
func (b *bench) startProxies() {
	for name, ready := range b.starting {
		if time.Now().Before(ready) {
			continue
		}
		delete(b.starting, name)
		if pod, ok := b.get("pods", name).(*corev1.Pod); ok {
			pod.Status = running
			b.update("pods", pod)
		}
	}
}

func (b *bench) allPods() []corev1.Pod {
	list := require.Value(b.tracker.List(resource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "zarf"))(b)
	return list.(*corev1.PodList).Items
}

func ownerOf(pod corev1.Pod) string {
	if len(pod.OwnerReferences) == 0 {
		return ""
	}
	return pod.OwnerReferences[0].Name
}

// service returns the NodePort Service, or nil.
func (b *bench) service() *corev1.Service {
	s, _ := b.get("services", serviceName).(*corev1.Service)
	return s
}

// served reports whether kube-proxy makes rules for the NodePort Service.
func (b *bench) served() bool {
	s := b.service()
	return s != nil && s.Labels[plan.LabelProxyName] == ""
}

// endpoints reports whether the NodePort Service leads to the registry's open listener.
func (b *bench) endpoints() bool {
	s := b.service()
	return s != nil && s.Spec.Ports[0].TargetPort.StrVal == "plain" && b.registry.open
}

// slices returns what the controller makes of the NodePort Service, which is there.
func (b *bench) slices() *discoveryv1.EndpointSliceList {
	slice := discoveryv1.EndpointSlice{ObjectMeta: meta(serviceName, "registry")}
	slice.Labels[discoveryv1.LabelServiceName] = serviceName
	if b.get("pods", registryPod) != nil {
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}}
	}
	if value, hidden := b.service().Labels[plan.LabelProxyName]; hidden && !b.shown {
		slice.Labels[plan.LabelProxyName] = value
	}
	if b.service().Spec.Ports[0].TargetPort.StrVal == "plain" {
		slice.Ports = []discoveryv1.EndpointPort{{}}
	}
	return &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{slice}}
}

var groups = map[string]schema.GroupVersion{"daemonsets": appsv1.SchemeGroupVersion,
	"deployments": appsv1.SchemeGroupVersion, "jobs": batchv1.SchemeGroupVersion}

func resource(name string) schema.GroupVersionResource {
	group, ok := groups[name]
	if !ok {
		group = corev1.SchemeGroupVersion
	}
	return group.WithResource(name)
}

// get returns an object from the tracker, or nil if there is none.
func (b *bench) get(kind, name string) runtime.Object {
	o, err := b.tracker.Get(resource(kind), "zarf", name)
	if err != nil && !apierrors.IsNotFound(err) {
		b.Error(err)
	}
	if err != nil {
		return nil
	}
	return o
}

func (b *bench) update(kind string, o runtime.Object) {
	b.Helper()
	b.versioned(o)
	if err := b.tracker.Update(resource(kind), o, metaOf(o).GetNamespace()); err != nil {
		b.Error(err)
	}
}

func (b *bench) remove(kind string, names ...string) {
	for _, name := range names {
		if err := b.tracker.Delete(resource(kind), "zarf", name); err != nil && !apierrors.IsNotFound(err) {
			b.Error(err)
		}
	}
}

// add stores an object in the tracker unless it exists, and reports whether it did.
func (b *bench) add(o runtime.Object) bool {
	m := metaOf(o)
	if m.GetResourceVersion() == "" {
		b.versioned(m)
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-of-version-" + m.GetResourceVersion()))
	}
	err := b.tracker.Add(o)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		b.Helper()
		b.Fatal(err)
	}
	if pod, ok := o.(*corev1.Pod); ok && err == nil {
		b.started(pod)
	}
	return err == nil
}

func (b *bench) proxies() int {
	n := 0
	for _, name := range []string{proxyName, proxyName + "-old"} {
		if b.get("daemonsets", name) != nil {
			n++
		}
	}
	return n
}

func metaOf(o runtime.Object) metav1.Object {
	m, ok := o.(metav1.Object)
	if !ok {
		panic(fmt.Sprintf("%T has no metadata", o))
	}
	return m
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux",
				ContainerRuntimeVersion: "containerd://2.1.4"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Images:     []corev1.ContainerImage{{Names: []string{pauseImage}}},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }

func labels(component string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "zarf-registry",
		"app.kubernetes.io/managed-by": "init-hook", "app.kubernetes.io/component": component,
	}
}

func meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "zarf", Labels: labels(component)}
}

func nodePortService() *corev1.Service {
	m := meta(serviceName, "registry")
	m.Annotations = map[string]string{"helm.sh/resource-policy": "keep", "meta.helm.sh/release-name": "zarf-registry"}
	m.UID, m.ResourceVersion = "uid-of-helm", "7"
	policy := corev1.IPFamilyPolicyPreferDualStack
	return &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, IPFamilyPolicy: &policy,
		Selector: map[string]string{"app.kubernetes.io/component": "registry"},
		Ports: []corev1.ServicePort{{Name: "registry", Port: 5001, TargetPort: intstr.FromString("plain"), NodePort: 31999,
			Protocol: corev1.ProtocolTCP}},
	}}
}

func daemonSet(name string, nodes ...string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: meta(name, "proxy"), Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(
		len(nodes)), UpdatedNumberScheduled: int32(len(nodes))}}
}

func proxyPod(daemonSet, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta("proxy-"+node, "proxy"), Spec: corev1.PodSpec{NodeName: node,
		NodeSelector: map[string]string{corev1.LabelArchStable: "amd64"}}, Status: running}
	p.Annotations = map[string]string{names.AnnotationMetricsPort: "9100"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: daemonSet}}
	return p
}

var running = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: podReady}

var podReady = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}

// helm simulates Helm and the controllers between Prepare and Finish. It keeps the proxies of the
// previous mode.
func (b *bench) helm(nodes ...string) {
	b.Helper()
	if len(nodes) == 0 {
		nodes = []string{"n1", "n2"}
	}
	b.helmNodes(nodes)
	if b.hook.Settings.Mode == state.ModeExternal {
		b.remove("deployments", "zarf-registry")
		b.remove("pods", registryPod)
		b.registry.open = false
		return
	}
	one := int32(1)
	b.add(&appsv1.Deployment{ObjectMeta: meta("zarf-registry", "registry"), Spec: appsv1.DeploymentSpec{Replicas: &one},
		Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}})
	pod := &corev1.Pod{ObjectMeta: meta(registryPod, "registry"), Status: running, Spec: corev1.PodSpec{
		NodeName: nodes[0], Containers: []corev1.Container{{Name: "registry",
			Ports: []corev1.ContainerPort{{Name: "plain", ContainerPort: 5001}}}}}}
	pod.Annotations = map[string]string{names.AnnotationMetricsPort: "5003"}
	if b.add(pod) {
		b.readSecret()
	}
	if !b.hook.Settings.Cache.Enabled {
		b.remove("pods", cachePod)
	} else {
		pod := &corev1.Pod{ObjectMeta: meta(cachePod, "cache"), Status: running, Spec: corev1.PodSpec{NodeName: nodes[0]}}
		pod.Annotations = map[string]string{names.AnnotationMetricsPort: "9102"}
		b.add(pod)
	}
	if b.hook.Settings.Mode == state.ModeNodePort {
		return
	}
	if b.get("daemonsets", proxyName) == nil {
		b.add(daemonSet(proxyName, nodes...))
	}
	for i, n := range nodes {
		pod := proxyPod(proxyName, n)
		if b.get("pods", pod.Name) != nil {
			continue
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
		if b.starting == nil {
			b.starting = map[string]time.Time{}
		}
		b.starting[pod.Name] = time.Now().Add(time.Duration(i+1) * 50 * time.Millisecond)
		b.add(pod)
	}
}

func describe(a kubetesting.Action) string {
	name := ""
	switch a := a.(type) {
	case kubetesting.CreateActionImpl:
		name = metaOf(a.GetObject()).GetName()
	case kubetesting.UpdateActionImpl:
		name = metaOf(a.GetObject()).GetName()
	case kubetesting.DeleteActionImpl:
		name = a.GetName()
	case kubetesting.PatchActionImpl:
		name = a.GetName()
	case kubetesting.GetActionImpl:
		name = a.GetName()
	}
	return a.GetVerb() + " " + a.GetResource().Resource + " " + name
}

// writes returns the verb and name of every write since forget.
func (b *bench) writes() []string { return b.wrote }

func (b *bench) forget() {
	b.client.ClearActions()
	b.wrote = nil
}

func (b *bench) secret(name string) *corev1.Secret {
	b.Helper()
	s := b.get("secrets", name)
	if s == nil {
		b.Fatalf("there is no Secret %s", name)
	}
	return s.(*corev1.Secret)
}

func (b *bench) state() state.State {
	b.Helper()
	return require.Value(state.Decode(b.secret("zarf-registry-state").Data[state.Key]))(b)
}

func (b *bench) mustPrepare() {
	b.Helper()
	require.NoError(b, b.hook.Prepare(b.Context()), "prepare", b.log)
}

func (b *bench) mustFinish() {
	b.Helper()
	require.NoError(b, b.hook.Finish(b.Context()), "finish", b.log)
}

// begin runs a helm upgrade to a mode, or the installation, up to finish.
func (b *bench) begin(mode state.Mode) {
	b.Helper()
	b.mode(mode)
	b.mustPrepare()
	b.helm()
}

// upgrade runs a complete helm upgrade to a mode, or the installation.
func (b *bench) upgrade(mode state.Mode) {
	b.Helper()
	b.begin(mode)
	b.mustFinish()
}

// upgraded returns a bench with an installation in a mode.
func upgraded(t *testing.T, mode state.Mode) *bench {
	t.Helper()
	b := newBench(t)
	b.upgrade(mode)
	return b
}

// switching returns a bench with an installation in a mode, and a helm upgrade to another mode up to finish.
func switching(t *testing.T, from, to state.Mode) *bench {
	t.Helper()
	b := upgraded(t, from)
	b.begin(to)
	return b
}

// mustFail checks an error and whether it is a Refusal.
func (b *bench) mustFail(err error, refused bool, want ...string) {
	b.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			b.Errorf("error is %v, want one with %q", err, w)
		}
	}
	if _, is := errors.AsType[*exitcode.Refusal](err); err != nil && is != refused {
		b.Errorf("refused: %t, want %t: %v", is, refused, err)
	}
}

// mustRefuse checks that an error is a Refusal, and compares its text.
func (b *bench) mustRefuse(want *golden.Cases, name string, err error) {
	b.Helper()
	if !exitcode.IsRefusal(err) {
		b.Errorf("it is no refusal: %v", err)
	}
	want.Check(b, name, fmt.Sprint(err))
}

// mustLog checks that the log has these texts.
func (b *bench) mustLog(want ...string) {
	b.Helper()
	for _, w := range want {
		if !strings.Contains(b.log.String(), w) {
			b.Errorf("the log lacks %q:\n%s", w, b.log)
		}
	}
}

// mustNotWrite checks that nothing was written since forget.
func (b *bench) mustNotWrite() {
	b.Helper()
	if w := b.writes(); len(w) != 0 {
		b.Errorf("it wrote %q", w)
	}
}

// mayNot makes the API server deny writes of objects whose names begin so.
func (b *bench) mayNot(verb, resource, name string) {
	b.forbid = func(write string) error {
		if strings.HasPrefix(write, verb+" "+resource+" "+name) {
			return forbiddenBy(verb, resource)
		}
		return nil
	}
}

// answer makes the API server answer requests of a kind with an error.
func (b *bench) answer(verb, resource string, err error) {
	b.client.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, err
	})
}

// mustFindNothing runs the preflight checks.
func (b *bench) mustFindNothing() {
	b.Helper()
	if findings, err := b.hook.Preflight(b.Context()); err != nil || len(findings) > 0 {
		b.Errorf("found %v (%v)", findings, err)
	}
}

// checkFinished checks what holds after every successful Finish.
func (b *bench) checkFinished() {
	b.Helper()
	mode := b.hook.Settings.Mode
	s := b.state()
	if s.Phase != state.PhaseReady || s.Current == nil || *s.Current != s.Desired || s.Desired.Mode != mode ||
		s.Desired.Address != b.hook.Settings.Address {
		b.Errorf("state is %+v", s)
	}
	if want := []string{"n1", "n2"}; mode != state.ModeExternal && !slices.Equal(s.VerifiedNodes, want) {
		b.Errorf("verified nodes are %q, want %q", s.VerifiedNodes, want)
	}
	if i := s.HookImage; mode != state.ModeExternal && (i == nil || *i != *b.registry.image) {
		b.Errorf("the image of later Jobs is %+v", i)
	}
	b.checkPort()
	if n := b.proxies(); (n > 0) != (mode == state.ModeProxy) {
		b.Errorf("in %s mode, %d proxy DaemonSets", mode, n)
	}
	if b.registry.open != (mode == state.ModeNodePort) {
		b.Errorf("in %s mode, the plain listener is open: %t", mode, b.registry.open)
	}
	if mode == state.ModeNodePort {
		checkPull(b, b.secret("zarf-registry-pull"), true)
	} else if s := b.get("secrets", "zarf-registry-pull"); s != nil {
		checkPull(b, s.(*corev1.Secret), false)
	}
	cms := require.Value(b.client.CoreV1().ConfigMaps("zarf").List(context.Background(), metav1.ListOptions{}))(b)
	programs := map[bool]bool{} // programs of the proxies (true) and of the registry (false)
	for _, cm := range cms.Items {
		programs[strings.Contains(cm.Name, "-registry-node-")] = true
	}
	if programs[true] != (mode == state.ModeProxy || len(b.hook.Settings.NodeConfig.Directories) > 0) ||
		programs[false] != (mode != state.ModeExternal) {
		b.Errorf("in %s mode, payload of the proxies: %t, of the registry: %t", mode, programs[true], programs[false])
	}
	b.checkNoProbePods()
}

// checkPort checks who serves the node port, and that no other Service can get it.
func (b *bench) checkPort() {
	b.Helper()
	mode, s := b.hook.Settings.Mode, b.service()
	none := mode == state.ModeExternal || mode == state.ModeProxy && b.hook.Settings.UnreservedPort
	if none || s == nil {
		if none != (s == nil) {
			b.Errorf("in %s mode, the NodePort Service is %+v", mode, s)
		}
		return
	}
	port := s.Spec.Ports[0]
	if int(port.NodePort) != b.hook.Settings.Port || s.Labels[plan.LabelProxyName] != map[state.Mode]string{
		state.ModeProxy: "zarf-registry"}[mode] || port.TargetPort.StrVal != map[state.Mode]string{
		state.ModeProxy: "reserved", state.ModeNodePort: "plain"}[mode] {
		b.Errorf("in %s mode, the NodePort Service is %+v", mode, s)
	}
	const key, want = "argocd.argoproj.io/sync-options", "Prune=false"
	if s.Annotations[key] != want {
		b.Errorf("annotation %s of the NodePort Service is %q, want %q", key, s.Annotations[key], want)
	}
	if s.Labels["app.kubernetes.io/managed-by"] != "init-hook" || s.Labels["app.kubernetes.io/instance"] != "zarf-registry" {
		b.Errorf("the NodePort Service has the labels %v", s.Labels)
	}
}

func (b *bench) checkNoProbePods() {
	b.Helper()
	pods, err := b.client.CoreV1().Pods("zarf").List(context.Background(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=probe"})
	if err != nil || len(pods.Items) != 0 {
		b.Errorf("%d probe pods remain (%v)", len(pods.Items), err)
	}
}

// after waits that long, and then until the run has done what it does at that time. What a goroutine of a
// test simulates must not happen in between: a write and what follows from it are one to the run.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// simulate runs a test beside others, with a simulated clock.
func simulate(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// checkTook checks how long something took that has just ended.
func checkTook(t *testing.T, begin time.Time, least, most time.Duration) {
	t.Helper()
	if took := time.Since(begin); took < least || took > most {
		t.Errorf("it took %s", took)
	}
}

// subtest runs a subtest whose clock is simulated.
func subtest(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// shortened reports whether -short skips the nth write. The race detector slows these tests down
// tenfold, and a few writes suffice for it.
func shortened(n int) bool { return testing.Short() && n%25 != 0 }

// killedAtEachWrite runs a phase once for each of its writes n. The phase is killed before or after
// the nth write; then receives the bench with the kill disabled.
func killedAtEachWrite(t *testing.T, setUp func() *bench, run func(*bench) error, then func(*bench)) {
	t.Helper()
	whole := setUp()
	whole.forget()
	require.NoError(t, run(whole), whole.log)
	writes := whole.writes()
	total := len(writes)
	if total < 1 {
		t.Fatal("the whole run wrote nothing")
	}
	for n, write := range writes {
		if shortened(n) {
			continue
		}
		for _, lost := range []bool{false, true} {
			b := setUp()
			b.left, b.lost = n, lost
			// Pod deletions and annotations are best effort.
			tried := strings.HasPrefix(write, "delete pods") || strings.HasPrefix(write, "patch pods")
			if err := run(b); err == nil && !tried {
				t.Fatalf("killed at write %d of %d (%s), it succeeded", n+1, total, write)
			}
			if !b.dead {
				t.Fatalf("write %d of %d never happened", n+1, total)
			}
			b.left, b.dead = -1, false
			if b.watched && !b.canPull() {
				t.Errorf("killed at write %d of %d (%s): no node can pull", n+1, total, write)
			}
			then(b)
			if t.Failed() {
				t.Fatalf("killed at write %d of %d (%s), lost %t\n%s", n+1, total, write, lost, b.log)
			}
		}
	}
}

// metadataClient lists ConfigMaps like the metadata client.
type metadataClient struct{ payload.ConfigMaps }

func (n metadataClient) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList,
	error) {
	list, err := n.ConfigMaps.List(ctx, options)
	if err != nil {
		return nil, err
	}
	var only metav1.PartialObjectMetadataList
	for _, c := range list.Items {
		only.Items = append(only.Items, metav1.PartialObjectMetadata{ObjectMeta: c.ObjectMeta})
	}
	return &only, nil
}
