package hook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

const pauseImage = "registry.k8s.io/pause:3.10.1"

// programs makes a payload of several chunks out of noise, the same each time.
type programs struct{}

func (programs) Payload(program, architecture string) (*injector.Payload, error) {
	noise := make([]byte, 1_100_000)
	x := uint32(len(program)*7 + len(architecture))
	for i := range noise {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	layer, err := injector.BuildLayer(program, noise)
	if err != nil {
		return nil, err
	}
	return injector.Encode(injector.Program{Name: program, Architecture: architecture}, layer, []byte("loader"))
}

var payloads = func() map[injector.Program]*injector.Payload {
	made := map[injector.Program]*injector.Payload{}
	for _, program := range []string{"registry", "registry-node"} {
		p, err := programs{}.Payload(program, "amd64")
		if err != nil {
			panic(err)
		}
		made[p.Program] = p
	}
	return made
}()

type cachedPrograms struct{}

func (cachedPrograms) Payload(program, architecture string) (*injector.Payload, error) {
	p, ok := payloads[injector.Program{Name: program, Architecture: architecture}]
	if !ok {
		return nil, fmt.Errorf("no payload of %s for %s", program, architecture)
	}
	return p, nil
}

type registry struct {
	pushed []hook.Access
	err    error
}

func (r *registry) PushProgramImages(_ context.Context, a hook.Access) ([]string, error) {
	r.pushed = append(r.pushed, a)
	return []string{"zarf-registry/registry:dev"}, r.err
}
func (*registry) HookImage() *state.HookImage { return nil }
func (*registry) ProbeImage(mode state.Mode) string {
	return "zarf-registry/probe-" + string(mode) + ":dev"
}
func (*registry) PlainOpen(context.Context, *corev1.Pod) (bool, error) { return false, nil }

// bench is a hook with a fake cluster. The fake keeps objects as the API server
// would; what kubelets and controllers do is done by reactions.
type bench struct {
	*testing.T
	client   *fake.Clientset
	hook     *hook.Hook
	registry *registry
	log      *bytes.Buffer
	now      time.Time
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	if len(objects) == 0 {
		objects = []runtime.Object{node("n1"), node("n2")}
	}
	b := &bench{T: t, client: fake.NewClientset(objects...), registry: &registry{}, log: &bytes.Buffer{}, now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	var log sync.Mutex
	core, apps := b.client.CoreV1(), b.client.AppsV1()
	b.hook = &hook.Hook{
		Options: hook.Options{
			Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
			Mode: state.ModeProxy, ModeSource: state.SourceValue,
			Port: 31999, IPFamily: state.IPv4, IPFamilySource: state.SourceCluster,
			Injector: true, PayloadID: "0.1.0", Architectures: []string{"amd64", "arm64"},
			PauseImages: []string{pauseImage}, PauseImageSource: state.SourceCluster,
			ClusterDomain: "cluster.local", Timeout: time.Minute, PushImages: true, Prove: true,
		},
		Cluster: hook.Cluster{
			Nodes: core.Nodes(), Secrets: core.Secrets("zarf"), ConfigMaps: core.ConfigMaps("zarf"), Pods: core.Pods("zarf"),
			Events: core.Events("zarf"), Deployments: apps.Deployments("zarf"), DaemonSets: apps.DaemonSets("zarf"), Jobs: b.client.BatchV1().Jobs("zarf"),
			Namespaces: core.Namespaces(), Services: core.Services("zarf"), ClusterServices: core.Services(""),
		},
		Programs: cachedPrograms{},
		Registry: b.registry,
		Log:      slog.New(slog.NewJSONHandler(writer(func(p []byte) { log.Lock(); b.log.Write(p); log.Unlock() }), nil)),
		Now:      func() time.Time { return b.now },
	}
	// generateName and uid are the API server's work.
	made := 0
	var mu sync.Mutex
	b.client.PrependReactor("create", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		object, err := metaOf(a.(kubetesting.CreateAction).GetObject())
		if err != nil {
			return true, nil, err
		}
		mu.Lock()
		made++
		if object.GetName() == "" {
			object.SetName(fmt.Sprintf("%s%d", object.GetGenerateName(), made))
		}
		object.SetUID(types.UID(fmt.Sprint("uid-", made)))
		mu.Unlock()
		return false, nil, nil
	})
	return b
}

func metaOf(o runtime.Object) (metav1.Object, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", o)
	}
	return m, nil
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64"},
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

// writes are the verbs and names of everything that changed the cluster.
func (b *bench) writes() []string {
	var out []string
	for _, a := range b.client.Actions() {
		name := ""
		switch a := a.(type) {
		case kubetesting.CreateAction: // updates have the same methods
			if m, err := metaOf(a.GetObject()); err == nil {
				name = m.GetName()
			}
		case kubetesting.DeleteAction:
			name = a.GetName()
		default:
			continue
		}
		out = append(out, a.GetVerb()+" "+a.GetResource().Resource+" "+name)
	}
	return out
}

func (b *bench) secret(name string) *corev1.Secret {
	b.Helper()
	s, err := b.client.CoreV1().Secrets("zarf").Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (b *bench) state() state.State {
	b.Helper()
	s, err := state.Decode(b.secret("zarf-registry-state").Data[state.Key])
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (b *bench) mustPrepare() {
	b.Helper()
	if err := b.hook.Prepare(b.Context()); err != nil {
		b.Fatalf("prepare: %v\n%s", err, b.log)
	}
}

// checkPrepared holds after every Prepare that succeeded, whatever came before.
func (b *bench) checkPrepared() {
	b.Helper()
	authority, err := pki.ParseAuthority(pki.KeyPair{Certificate: b.secret("zarf-registry-ca").Data["tls.crt"], Key: b.secret("zarf-registry-ca").Data["tls.key"]})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"server", "node", "push"} {
		s := b.secret("zarf-registry-" + name + "-tls")
		cert, err := pki.ParseCertificate(s.Data["tls.crt"])
		if err != nil {
			b.Fatal(err)
		}
		if err := cert.CheckSignatureFrom(authority.Certificate()); err != nil {
			b.Errorf("%s: %v", s.Name, err)
		}
		if !bytes.Equal(s.Data["ca.crt"], b.secret("zarf-registry-ca").Data["tls.crt"]) {
			b.Errorf("%s: ca.crt is not the authority", s.Name)
		}
		if want := "zarf-registry:" + name; cert.Subject.Organization[0] != want {
			b.Errorf("%s: organization is %q, want %q", s.Name, cert.Subject.Organization, want)
		}
	}
	c := b.secret("zarf-registry-credentials").Data
	user, hash, _ := strings.Cut(strings.TrimSpace(string(c["htpasswd"])), ":")
	if user != string(c["username"]) || bcrypt.CompareHashAndPassword([]byte(hash), c["password"]) != nil {
		b.Error("htpasswd does not accept the credential")
	}
	for program, p := range payloads {
		for _, o := range p.Objects() {
			name := injector.ConfigMapName("zarf-registry", "0.1.0", program, o.Index)
			cm, err := b.client.CoreV1().ConfigMaps("zarf").Get(b.Context(), name, metav1.GetOptions{})
			if err != nil {
				b.Errorf("%v", err)
				continue
			}
			if cm.Immutable != nil && *cm.Immutable {
				b.Errorf("%s is immutable: kubelets would never see it repaired", name)
			}
			for key, want := range o.Data {
				if !bytes.Equal(cm.BinaryData[key], want) {
					b.Errorf("%s: %s differs", name, key)
				}
			}
		}
	}
	if s := b.state(); s.Desired.Mode != state.ModeProxy || s.Desired.Address != "127.0.0.1:31999" {
		b.Errorf("state is %+v", s)
	}
}

func TestPrepareMakesAllThatTheChartNeeds(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	b.checkPrepared()
	if s := b.state(); s.Phase != state.PhasePrepared || s.Current != nil {
		t.Errorf("state claims more than was proven: %+v", s)
	}
	for _, secret := range []string{string(b.secret("zarf-registry-credentials").Data["password"]), "PRIVATE KEY"} {
		if strings.Contains(b.log.String(), secret) {
			t.Error("a secret was logged")
		}
	}
}

func TestPrepareTwiceWritesOnce(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	b.client.ClearActions()
	b.mustPrepare()
	// The state is written each time: who prepared last, and when.
	if got, want := b.writes(), []string{"update secrets zarf-registry-state"}; !slices.Equal(got, want) {
		t.Errorf("the second run wrote %q, want %q", got, want)
	}
}

func TestPrepareKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	whole := newBench(t)
	whole.mustPrepare()
	total := len(whole.writes())
	if total < 10 {
		t.Fatalf("a whole run made only %d writes", total)
	}
	for n := range total {
		b := newBench(t)
		var mu sync.Mutex
		left := n
		b.client.PrependReactor("*", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() == "get" || a.GetVerb() == "list" {
				return false, nil, nil
			}
			mu.Lock()
			defer mu.Unlock()
			left--
			if left < 0 {
				return true, nil, errors.New("killed")
			}
			return false, nil, nil
		})
		if err := b.hook.Prepare(t.Context()); err == nil {
			t.Fatalf("write %d failed but prepare did not", n)
		}
		b.client.ReactionChain = b.client.ReactionChain[1:]
		b.mustPrepare()
		b.checkPrepared()
	}
}

func TestChunkZeroIsWrittenLast(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	last := map[string]string{}
	for _, w := range b.writes() {
		if name, ok := strings.CutPrefix(w, "create configmaps "); ok {
			last[name[:len(name)-2]] = name[len(name)-2:]
		}
	}
	if len(last) != 2 {
		t.Fatalf("found the payloads %v, want two", last)
	}
	for payload, index := range last {
		if index != "00" {
			t.Errorf("%s: the last chunk written is %s", payload, index)
		}
	}
}

func TestAWrongChunkIsReplacedAndWaitingPodsRestarted(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	name := "zarf-registry-payload-0.1.0-registry-node-amd64-01"
	cms := b.client.CoreV1().ConfigMaps("zarf")
	cm, err := cms.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.BinaryData["chunk-01"] = []byte("altered")
	if _, err := cms.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cms.Delete(t.Context(), "zarf-registry-payload-0.1.0-registry-amd64-01", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(name string, exit int32, ready bool) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "zarf", Labels: labels("proxy")},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Ready: ready, LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: exit}}}}},
		}
	}
	for _, p := range []*corev1.Pod{pod("waiting", 104, false), pod("running", 104, true), pod("crashing", 1, false)} {
		if _, err := b.client.CoreV1().Pods("zarf").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.client.ClearActions()
	b.mustPrepare()
	b.checkPrepared()
	want := []string{
		"create configmaps zarf-registry-payload-0.1.0-registry-amd64-01",
		"delete configmaps " + name,
		"create configmaps " + name,
		"delete pods waiting",
		"update secrets zarf-registry-state",
	}
	if got := b.writes(); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

func TestABusyAPIServerIsAskedAgain(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	answers := []error{
		apierrors.NewTooManyRequests("slow down", 0),
		apierrors.NewInternalError(errors.New("etcdserver: too many requests")),
		apierrors.NewServerTimeout(corev1.Resource("configmaps"), "create", 0),
	}
	b.client.PrependReactor("create", "configmaps", func(kubetesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			return false, nil, nil
		}
		err := answers[0]
		answers = answers[1:]
		return true, nil, err
	})
	b.mustPrepare()
	b.checkPrepared()
	if len(answers) != 0 {
		t.Errorf("%d answers were never given", len(answers))
	}
}

func TestPrepareRefusesBeforeAnythingIsChanged(t *testing.T) {
	saved := func(s string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-state", Namespace: "zarf", Labels: labels("state")}, Data: map[string][]byte{"state.json": []byte(s)}}
	}
	nodeport := `{"version":1,"phase":"prepared","desired":{"mode":"nodeport","address":"127.0.0.1:31999","port":31999,"ipFamily":"IPv4","hostNetwork":false,"mtls":"internal","decidedBy":"value"},"updatedBy":"","updatedAt":"2026-11-20T12:00:00Z"}`
	for name, c := range map[string]struct {
		objects []runtime.Object
		change  func(*hook.Options)
		want    string
	}{
		"no nodes":            {[]runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "zarf"}}}, nil, "has no nodes"},
		"a newer state":       {[]runtime.Object{node("n1"), saved(`{"version":2}`)}, nil, "Secret zarf/zarf-registry-state, key state.json: decoding state: it has version 2"},
		"an unreadable state": {[]runtime.Object{node("n1"), saved(`rubbish`)}, nil, "decoding state"},
		"a state of others":   {[]runtime.Object{node("n1"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-state", Namespace: "zarf"}}}, nil, "was not made by init-hook"},
		"a silent undoing":    {[]runtime.Object{node("n1"), saved(nodeport)}, func(o *hook.Options) { o.ModeSource = state.SourceDefault }, "rendered without seeing it"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			if c.change != nil {
				c.change(&b.hook.Options)
			}
			err := b.hook.Prepare(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if _, refused := errors.AsType[*hook.Refused](err); !refused {
				t.Error("it would be tried again")
			}
			if got := b.writes(); len(got) != 0 {
				t.Errorf("it wrote %q", got)
			}
		})
	}
}

func TestCertificatesAreKeptUntilHalfOfTheirLifeIsOver(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	before, ca := b.secret("zarf-registry-server-tls").Data["tls.crt"], b.secret("zarf-registry-ca").Data["tls.crt"]
	b.now = b.now.Add(pki.DefaultLeafLifetime / 3)
	b.mustPrepare()
	if !bytes.Equal(before, b.secret("zarf-registry-server-tls").Data["tls.crt"]) {
		t.Error("a certificate with two thirds of its life left was replaced")
	}
	b.now = b.now.Add(pki.DefaultLeafLifetime / 3)
	b.mustPrepare()
	b.checkPrepared()
	if bytes.Equal(before, b.secret("zarf-registry-server-tls").Data["tls.crt"]) {
		t.Error("a certificate with a third of its life left was kept")
	}
	if !bytes.Equal(ca, b.secret("zarf-registry-ca").Data["tls.crt"]) {
		t.Error("the authority was replaced, which breaks every connection")
	}
}

func labels(component string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "zarf-registry",
		"app.kubernetes.io/managed-by": "init-hook", "app.kubernetes.io/component": component,
	}
}

// rollOut is what Helm and the controllers do between Prepare and Finish.
func (b *bench) rollOut(nodes ...string) {
	b.Helper()
	one := int32(1)
	add := func(o runtime.Object) {
		if err := b.client.Tracker().Add(o); err != nil {
			b.Fatal(err)
		}
	}
	add(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry", Namespace: "zarf"}, Spec: appsv1.DeploymentSpec{Replicas: &one},
		Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}})
	add(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-proxy-amd64", Namespace: "zarf", Labels: labels("proxy")},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: int32(len(nodes)), UpdatedNumberScheduled: int32(len(nodes))}})
	for _, n := range nodes {
		add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "proxy-" + n, Namespace: "zarf", Labels: labels("proxy")}, Spec: corev1.PodSpec{NodeName: n},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}})
	}
}

// kubelets runs every proving pod, except on the nodes that fail.
func (b *bench) kubelets(failing map[string]string) {
	b.client.PrependReactor("create", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
		pod := a.(kubetesting.CreateAction).GetObject().(*corev1.Pod)
		if message := failing[pod.Spec.NodeName]; message != "" {
			pod.Status.Phase = corev1.PodPending
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message}}}}
		} else {
			pod.Status.Phase = corev1.PodSucceeded
		}
		return false, nil, nil
	})
}

func TestFinishProvesEveryReadyNodeAndSaysSo(t *testing.T) {
	b := newBench(t, node("n1"), node("n2"), node("gone", notReady))
	b.mustPrepare()
	b.rollOut("n1", "n2", "gone")
	removed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "proxy-removed", Namespace: "zarf", Labels: labels("proxy")}, Spec: corev1.PodSpec{NodeName: "removed"}}
	if err := b.client.Tracker().Add(removed); err != nil {
		t.Fatal(err)
	}
	b.kubelets(nil)
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-payload-0.0.9-registry-amd64-00", Namespace: "zarf", Labels: labels("payload")}}
	if err := b.client.Tracker().Add(old); err != nil {
		t.Fatal(err)
	}
	b.client.ClearActions()
	if err := b.hook.Finish(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, b.log)
	}
	s := b.state()
	if s.Phase != state.PhaseReady || s.Current == nil || *s.Current != s.Desired || !slices.Equal(s.Nodes, []string{"n1", "n2"}) {
		t.Errorf("state is %+v", s)
	}
	var images []string
	for _, a := range b.client.Actions() {
		if c, ok := a.(kubetesting.CreateAction); ok && a.GetResource().Resource == "pods" {
			pod := c.GetObject().(*corev1.Pod)
			images = append(images, pod.Spec.NodeName+" "+pod.Spec.Containers[0].Image+" "+string(pod.Spec.Containers[0].ImagePullPolicy))
		}
	}
	if want := []string{"n1 127.0.0.1:31999/zarf-registry/probe:dev Always", "n2 127.0.0.1:31999/zarf-registry/probe:dev Always"}; !slices.Equal(images, want) {
		t.Errorf("proving pods are %q, want %q", images, want)
	}
	if pods, _ := b.client.CoreV1().Pods("zarf").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=probe"}); len(pods.Items) != 0 {
		t.Errorf("%d proving pods remain", len(pods.Items))
	}
	if a := b.registry.pushed; len(a) != 1 || a[0].ServerName != "zarf-registry.zarf.svc" || a[0].Username == "" || len(a[0].Key) == 0 {
		t.Errorf("pushed with %d accesses", len(a))
	}
	if _, err := b.client.CoreV1().ConfigMaps("zarf").Get(t.Context(), old.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the former payload is still there (%v)", err)
	}
	b.checkPrepared()
}

func TestANodeThatCannotPullIsNamedAndNothingIsRecorded(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	b.rollOut("n1", "n2")
	b.kubelets(map[string]string{"n2": "dial tcp 127.0.0.1:31999: connect: connection refused"})
	b.hook.Options.Timeout = 2 * time.Second
	err := b.hook.Finish(t.Context())
	for _, want := range []string{"node n2 could not pull 127.0.0.1:31999/zarf-registry/probe:dev", "connection refused", "proxy.hostNetwork=true"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "node n1") {
		t.Errorf("a node that pulled is blamed: %v", err)
	}
	if s := b.state(); s.Phase != state.PhasePrepared || s.Current != nil {
		t.Errorf("state claims more than was proven: %+v", s)
	}
	if pods, _ := b.client.CoreV1().Pods("zarf").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=probe"}); len(pods.Items) != 0 {
		t.Errorf("%d proving pods remain", len(pods.Items))
	}
}

func TestWaitingInVainSaysWhatThePodsComplainAbout(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	b.rollOut("n1")
	d, err := b.client.AppsV1().Deployments("zarf").Get(t.Context(), "zarf-registry", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Status.AvailableReplicas = 0
	if _, err := b.client.AppsV1().Deployments("zarf").Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Tracker().Add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-1", Namespace: "zarf", Labels: labels("registry")},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "registry", LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 102, Message: "zarf-registry loader: chunk 03: missing"}}}}},
	}); err != nil {
		t.Fatal(err)
	}
	b.hook.Options.Timeout = time.Second
	err = b.hook.Finish(t.Context())
	for _, want := range []string{"Deployment zarf/zarf-registry: 0 of 1 pods are available", "pod zarf/zarf-registry-1 on node n1", "chunk 03: missing", "not done within 1s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestCleanupLeavesNothingOfOursAndAllOfOthers(t *testing.T) {
	b := newBench(t)
	b.mustPrepare()
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "somebody-elses", Namespace: "zarf"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other-payload", Namespace: "zarf", Labels: map[string]string{"app.kubernetes.io/name": "zarf-registry", "app.kubernetes.io/instance": "another-release", "app.kubernetes.io/component": "payload"}}}
	failed := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-finish", Namespace: "zarf"}}
	for _, o := range []runtime.Object{foreign, other, failed} {
		if err := b.client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds nothing and is content
		if err := b.hook.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	secrets, _ := b.client.CoreV1().Secrets("zarf").List(t.Context(), metav1.ListOptions{})
	cms, _ := b.client.CoreV1().ConfigMaps("zarf").List(t.Context(), metav1.ListOptions{})
	if jobs, _ := b.client.BatchV1().Jobs("zarf").List(t.Context(), metav1.ListOptions{}); len(jobs.Items) != 0 {
		t.Errorf("%d Jobs remain", len(jobs.Items))
	}
	if len(secrets.Items) != 1 || secrets.Items[0].Name != foreign.Name {
		t.Errorf("%d Secrets remain", len(secrets.Items))
	}
	if len(cms.Items) != 1 || cms.Items[0].Name != other.Name {
		t.Errorf("%d ConfigMaps remain", len(cms.Items))
	}
}
