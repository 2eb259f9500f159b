package install_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/kube"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	helmtime "helm.sh/helm/v3/pkg/time"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	restfake "k8s.io/client-go/rest/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	ourrelease "github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// jobs is a chart as far as this package looks at it. The port of the Jobs tells
// renderings apart: it is 31000 and the revision.
const jobs = `
{{- range list "prepare" "finish" }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $.Release.Name }}-{{ . }}
  annotations:
    helm.sh/hook: {{ ternary "pre-install,pre-upgrade" "post-install,post-upgrade" (eq . "prepare") }}
spec:
  template:
    spec:
      containers:
        - name: init-hook
          args: [{{ . }}, "--name={{ $.Release.Name }}", "--mode={{ $.Values.mode }}", "--port={{ add 31000 $.Release.Revision }}"]
---
{{- end }}
`

func testChart(name string) *chart.Chart {
	return &chart.Chart{
		Metadata: &chart.Metadata{APIVersion: "v2", Name: name, Version: "1.2.3", AppVersion: "4.5.6"},
		Values:   map[string]any{"mode": "nodeport", "fresh": "default"},
		Templates: []*chart.File{
			{Name: "templates/jobs.yaml", Data: []byte(jobs)},
			{Name: "templates/config.yaml", Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")},
		},
	}
}

func parse(args []string) (settings.Settings, error) {
	o := settings.Settings{Namespace: "zarf", Release: "zarf-registry", IPFamily: state.IPv4}
	for _, arg := range args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--name":
			o.Name = value
		case "--mode":
			o.Mode = state.Mode(value)
		case "--port":
			o.Port, _ = strconv.Atoi(value)
		case "--node-directories":
			o.NodeConfig.Directories = strings.Split(value, ",")
		default:
			return o, fmt.Errorf("unknown flag: %s", name)
		}
	}
	return o, nil
}

// bench is an installer with a fake cluster, a Helm that keeps releases in memory,
// and a hook that notes what it is asked to do.
type bench struct {
	*testing.T
	*install.Installer
	client *fake.Clientset
	events []string

	findings                     []preflight.Finding
	preflightErr                 error
	prepare, finish              error
	during                       map[string]func() // called in that phase
	planned, prepared, finishing recordedHook
}

type recordedHook struct {
	*bench
	settings.Settings
	nodeConfig map[string][]byte
}

func (h recordedHook) note(phase string) {
	h.events = append(h.events, phase)
	if do := h.during[phase]; do != nil {
		do()
	}
}

func (h recordedHook) Preflight(context.Context) ([]preflight.Finding, error) {
	h.note("preflight")
	return h.findings, h.preflightErr
}

func (h recordedHook) Prepare(context.Context) error {
	h.prepared = h
	h.note("prepare")
	return h.prepare
}

func (h recordedHook) Finish(context.Context) error {
	h.finishing = h
	h.note("finish")
	return h.finish
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	b := &bench{T: t, client: fake.NewClientset(objects...), during: map[string]func(){}}
	quiet := slog.New(slog.DiscardHandler)
	memory := driver.NewMemory()
	memory.SetNamespace("zarf")
	b.Installer = &install.Installer{
		Options: install.Options{
			Namespace: "zarf", Release: "zarf-registry", Chart: testChart("zarf-registry"),
			Values: map[string]any{}, CreateNamespace: true, Timeout: time.Minute,
		},
		Helm: &action.Configuration{
			Releases:     storage.Init(memory),
			KubeClient:   &kubefake.PrintingKubeClient{Out: io.Discard},
			Capabilities: chartutil.DefaultCapabilities,
			Log:          func(string, ...any) {},
		},
		Client: b.client,
		Parse:  parse,
		NewHook: func(_ context.Context, s settings.Settings, nodeConfig map[string][]byte) (install.Hook, error) {
			b.planned = recordedHook{b, s, nodeConfig}
			return b.planned, nil
		},
		Log: quiet, Progress: ourrelease.Logged{Log: quiet},
		Now: time.Now,
	}
	return b
}

// template adds a template to the chart.
func (b *bench) template(name, content string) {
	b.Options.Chart.Templates = append(b.Options.Chart.Templates,
		&chart.File{Name: "templates/" + name, Data: []byte(content)})
}

func namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "zarf", UID: "made-before"}}
}

func (b *bench) mustRun() *install.Result {
	b.Helper()
	return require.Value(b.Installer.Run(b.Context()))(b.T)
}

// history is each revision's status, oldest first.
func (b *bench) history() []string {
	b.Helper()
	list, err := b.Helm.Releases.History("zarf-registry")
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		b.Fatal(err)
	}
	slices.SortFunc(list, func(a, c *release.Release) int { return a.Version - c.Version })
	var statuses []string
	for i, rel := range list {
		if rel.Version != i+1 {
			b.Errorf("revision %d is the %d. of the history", rel.Version, i+1)
		}
		statuses = append(statuses, rel.Info.Status.String())
	}
	return statuses
}

func (b *bench) last() *release.Release {
	b.Helper()
	return require.Value(b.Helm.Releases.Last("zarf-registry"))(b.T)
}

func (b *bench) wantHistory(want ...string) {
	b.Helper()
	if got := b.history(); !slices.Equal(got, want) {
		b.Errorf("history is %q, want %q", got, want)
	}
}

func (b *bench) wantNamespace(want bool) {
	b.Helper()
	_, err := b.client.CoreV1().Namespaces().Get(b.Context(), "zarf", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		b.Fatal(err)
	}
	if got := err == nil; got != want {
		b.Errorf("the namespace is there: %t, want %t", got, want)
	}
}

func TestAFirstRunInstallsAReleaseThatHelmContinues(t *testing.T) {
	b := newBench(t)
	b.during["prepare"] = func() {
		b.wantNamespace(true)
		b.wantHistory()
	}
	b.during["finish"] = func() { b.wantHistory("deployed") }
	result := b.mustRun()
	if want := []string{"preflight", "prepare", "finish"}; !slices.Equal(b.events, want) {
		t.Errorf("the phases were %q, want %q", b.events, want)
	}
	if result.Upgraded || result.Revision != 1 || result.ChartVersion != "1.2.3" || result.AppVersion != "4.5.6" ||
		result.Settings.Mode != state.ModeNodePort {
		t.Errorf("result is %+v", result)
	}
	b.wantHistory("deployed")
	if hooks := len(b.last().Hooks); hooks != 2 {
		t.Errorf("%d hooks are stored for helm, want 2", hooks)
	}
	if !strings.Contains(b.last().Manifest, "kind: ConfigMap") || strings.Contains(b.last().Manifest, "kind: Job") {
		t.Errorf("the release's manifest is\n%s", b.last().Manifest)
	}

	// helm upgrade goes on from it.
	upgrade := action.NewUpgrade(b.Helm)
	upgrade.Namespace, upgrade.DisableHooks = "zarf", true
	if _, err := upgrade.Run("zarf-registry", testChart("zarf-registry"), map[string]any{}); err != nil {
		t.Error(err)
	}
	b.wantHistory("superseded", "deployed")
}

func TestFinishGetsTheArgumentsOfWhatWasApplied(t *testing.T) {
	b := newBench(t, namespace())
	b.mustRun()
	b.mustRun()
	// The first rendering of an upgrade is a dry run, whose revision is always 1.
	if b.prepared.Port != 31001 || b.finishing.Port != 31002 {
		t.Errorf("prepare got the port %d and finish %d, want those of revisions 1 and 2", b.prepared.Port, b.finishing.Port)
	}
}

func TestValuesOfTheLastReleaseStay(t *testing.T) {
	for name, c := range map[string]struct {
		values map[string]any
		reset  bool
		want   map[string]any // stored with the release
		mode   state.Mode
	}{
		"nothing new": {
			values: map[string]any{},
			want:   map[string]any{"mode": "proxy", "deep": map[string]any{"a": "1", "b": "2"}},
			mode:   state.ModeProxy,
		},
		"new ones go on top": {
			values: map[string]any{"deep": map[string]any{"b": "3"}, "more": true},
			want:   map[string]any{"mode": "proxy", "deep": map[string]any{"a": "1", "b": "3"}, "more": true},
			mode:   state.ModeProxy,
		},
		"null takes one back": {
			values: map[string]any{"mode": nil},
			want:   map[string]any{"deep": map[string]any{"a": "1", "b": "2"}},
			mode:   state.ModeNodePort,
		},
		"reset forgets them": {
			values: map[string]any{"more": true}, reset: true,
			want: map[string]any{"more": true},
			mode: state.ModeNodePort,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			b.Options.Values = map[string]any{"mode": "proxy", "deep": map[string]any{"a": "1", "b": "2"}}
			b.mustRun()
			b.Options.Chart.Values["fresh"] = "a new default"
			b.Options.Values, b.Options.ResetValues = c.values, c.reset
			given := fmt.Sprint(c.values)
			result := b.mustRun()
			if got := fmt.Sprint(b.last().Config); got != fmt.Sprint(c.want) {
				t.Errorf("the release has the values %s, want %v", got, c.want)
			}
			if result.Settings.Mode != c.mode || b.prepared.Mode != c.mode {
				t.Errorf("prepare got %s, finish %s mode, want %s", b.prepared.Mode, result.Settings.Mode, c.mode)
			}
			if fmt.Sprint(c.values) != given {
				t.Errorf("the caller's values became %v", c.values)
			}
		})
	}
}

func TestABlockerLeavesNothingBehind(t *testing.T) {
	blocker := preflight.Finding{Check: "port", Severity: preflight.Blocker, Object: "Service default/web",
		Cause: "it has the port", Remedy: "kubectl delete service web"}
	for name, c := range map[string]struct {
		objects   []runtime.Object
		namespace bool // afterwards
	}{
		"in a namespace that this run made": {nil, false},
		"in one that was there":             {[]runtime.Object{namespace()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			b.findings = []preflight.Finding{blocker, {Severity: preflight.Warning, Cause: "a mere warning"}}
			_, err := b.Installer.Run(t.Context())
			blocked, ok := errors.AsType[*install.BlockedError](err)
			if !ok || len(blocked.Findings) != 2 {
				t.Fatalf("error is %v", err)
			}
			if text := err.Error(); !strings.Contains(text, "kubectl delete service web") ||
				strings.Contains(text, "mere warning") {
				t.Errorf("error is %q", text)
			}
			if !slices.Equal(b.events, []string{"preflight"}) {
				t.Errorf("the phases were %q", b.events)
			}
			b.wantHistory()
			b.wantNamespace(c.namespace)
		})
	}
}

func TestWhatTheUserBringsNeedsItsNamespaceFirst(t *testing.T) {
	existing := &state.ExistingSecrets{Server: "my-server", Node: "my-node", CA: "my-server"}
	for name, c := range map[string]struct {
		options settings.Settings
		want    string // "" is no blocker
	}{
		"existing Secrets": {settings.Settings{PKI: settings.PKI{PKI: state.PKI{Mode: state.PKIExistingSecret,
			Existing: existing}}},
			"certificates: namespace zarf: it does not exist, so it cannot contain Secret my-server, Secret my-node, which " +
				"the values refer to; kubectl create namespace zarf, create them in it"},
		"a push credential": {settings.Settings{Push: settings.Push{Secret: "my-password"}},
			"it cannot contain Secret my-password"},
		"an Issuer": {settings.Settings{PKI: settings.PKI{PKI: state.PKI{Issuer: &state.Issuer{Name: "corp",
			Kind: "Issuer", Group: "cert-manager.io"}}}}, "it cannot contain Issuer corp"},
		"a ClusterIssuer": {settings.Settings{PKI: settings.PKI{PKI: state.PKI{Issuer: &state.Issuer{Name: "corp",
			Kind: "ClusterIssuer", Group: "cert-manager.io"}}}}, ""},
		"nothing": {settings.Settings{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for there, objects := range map[bool][]runtime.Object{false: nil, true: {namespace()}} {
				b := newBench(t, objects...)
				b.Parse = func([]string) (settings.Settings, error) {
					o := c.options
					o.Namespace, o.Release, o.Name, o.Mode, o.Port = "zarf", "zarf-registry", "zarf-registry", state.ModeProxy, 31999
					return o, nil
				}
				blocked := c.want != "" && !there
				plan, err := b.Plan(t.Context())
				if err != nil || len(install.Blockers(plan.Findings)) > 0 != blocked {
					t.Errorf("with the namespace (%t): plan is %+v, error %v", there, plan, err)
				}
				b.wantNamespace(there)
				_, err = b.Installer.Run(t.Context())
				if !blocked {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				if _, ok := errors.AsType[*install.BlockedError](err); !ok || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error is %v, want one with %q", err, c.want)
				}
				b.wantNamespace(false)
				b.wantHistory()
				if !slices.Equal(b.events, []string{"preflight"}) { // the plan's
					t.Errorf("the phases were %q", b.events)
				}
			}
		})
	}
}

func TestTheNamespaceMayBeCreatedMeanwhile(t *testing.T) {
	b := newBench(t)
	b.client.PrependReactor("create", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
		return false, nil, b.client.Tracker().Add(namespace())
	})
	b.findings = []preflight.Finding{{Check: "port", Severity: preflight.Blocker}}
	if _, err := b.Installer.Run(t.Context()); err == nil || strings.Contains(err.Error(), "creating namespace") {
		t.Errorf("error is %v, want the blocker", err)
	}
	b.wantNamespace(true) // it belongs to the other run
	b.findings = nil
	b.mustRun()
}

func TestPlanChangesNothing(t *testing.T) {
	b := newBench(t)
	b.findings = []preflight.Finding{{Check: "port", Severity: preflight.Blocker}}
	b.template("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: a}\n")
	plan, err := b.Plan(t.Context())
	require.NoError(t, err)
	if plan.Upgrade || plan.Settings.Mode != state.ModeNodePort || !strings.Contains(plan.Manifest, "kind: ConfigMap") ||
		strings.Contains(plan.Manifest, "kind: Secret") {
		t.Errorf("plan is %+v", plan)
	}
	if len(plan.Findings) != 1 {
		t.Errorf("findings are %+v", plan.Findings)
	}
	for _, a := range b.client.Actions() {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("it asked for %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	b.wantHistory()

	// A release that hangs is no obstacle for looking.
	b = newBench(t, namespace())
	b.mustRun()
	b.set(release.StatusPendingUpgrade)
	plan, err = b.Plan(t.Context())
	if err != nil || !plan.Upgrade || len(plan.Findings) != 0 {
		t.Errorf("plan is %+v, error %v", plan, err)
	}
	b.wantHistory("pending-upgrade")
}

// set gives the newest revision a status.
func (b *bench) set(status release.Status) {
	b.Helper()
	rel := b.last()
	rel.SetStatus(status, "as the test wants it")
	require.NoError(b.T, b.Helm.Releases.Update(rel))
}

func TestWhatAKilledRunLeftIsRecovered(t *testing.T) {
	for _, status := range []release.Status{release.StatusPendingInstall, release.StatusPendingUpgrade,
		release.StatusPendingRollback} {
		t.Run(status.String(), func(t *testing.T) {
			b := newBench(t, namespace())
			b.mustRun()
			b.set(status)
			b.Now = func() time.Time { return time.Now().Add(b.Options.Timeout) }
			result := b.mustRun()
			if !result.Upgraded || result.Revision != 2 {
				t.Errorf("result is %+v", result)
			}
			history := b.history()
			// Helm calls the one that it goes on from superseded, whatever it was.
			if len(history) != 2 || history[1] != "deployed" || strings.HasPrefix(history[0], "pending") {
				t.Errorf("history is %q", history)
			}
			first, err := b.Helm.Releases.Get("zarf-registry", 1)
			if err != nil || !strings.Contains(first.Info.Description, status.String()) {
				t.Errorf("revision 1 says %q (%v)", first.Info.Description, err)
			}
		})
	}
	t.Run("the clock of the workstation does not matter", func(t *testing.T) {
		b := newBench(t, namespace())
		b.mustRun()
		b.set(release.StatusPendingUpgrade)
		b.Now = func() time.Time { return time.Now().Add(b.Options.Timeout) }
		created := metav1.Now()
		require.NoError(t, b.client.Tracker().Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf",
			Name: "sh.helm.release.v1.zarf-registry.v1", CreationTimestamp: created}}))
		age := b.Options.Timeout - time.Second
		b.client.PrependReactor("create", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
			create := action.(kubetesting.CreateActionImpl)
			probe := create.GetObject().DeepCopyObject().(*corev1.Secret)
			probe.CreationTimestamp = metav1.NewTime(created.Add(age))
			return slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}), probe, nil
		})
		if _, err := b.Installer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another helm or zarf-registry install") {
			t.Errorf("%v", err)
		}
		age = b.Options.Timeout
		b.mustRun()
	})
	t.Run("the values of the deployed revision count, not those of the one that hangs", func(t *testing.T) {
		b := newBench(t, namespace())
		b.Options.Values = map[string]any{"mode": "proxy"}
		b.mustRun()
		hanging := *b.last()
		hanging.Version, hanging.Config = 2, map[string]any{"mode": "external"}
		hanging.Info = &release.Info{Status: release.StatusPendingUpgrade}
		require.NoError(t, b.Helm.Releases.Create(&hanging))
		b.Options.Values = map[string]any{}
		result := b.mustRun()
		if result.Revision != 3 || result.Settings.Mode != state.ModeProxy {
			t.Errorf("result is %+v", result)
		}
		b.wantHistory("superseded", "failed", "deployed")
	})
}

func TestALiveOperationOfHelmIsLeftAlone(t *testing.T) {
	live := func(b *bench) {
		other := *b.last()
		other.Version++
		other.Info = &release.Info{Status: release.StatusPendingUpgrade, LastDeployed: helmtime.Now()}
		require.NoError(t, b.Helm.Releases.Create(&other))
	}
	for name, begin := range map[string]func(*bench){
		"that began before":                      live,
		"that begins after the release was read": func(b *bench) { b.during["preflight"] = func() { live(b) } },
		"that begins and ends after the release was read": func(b *bench) {
			b.during["preflight"] = func() {
				live(b)
				b.set(release.StatusDeployed)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			b.mustRun()
			begin(b)
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-prepare"}}
			require.Value(b.client.BatchV1().Jobs("zarf").Create(t.Context(), job, metav1.CreateOptions{}))(t)
			b.events = nil
			_, err := b.Installer.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), "run this again") {
				t.Errorf("error is %v", err)
			}
			if b.last().Info.Status == release.StatusPendingUpgrade &&
				!strings.Contains(err.Error(), "kubectl --namespace zarf delete secret sh.helm.release.v1.zarf-registry.v2") {
				t.Errorf("the error does not say how to go on at once: %v", err)
			}
			if s := b.last().Info.Status; s == release.StatusFailed || b.last().Version != 2 {
				t.Errorf("revision %d is %s", b.last().Version, s)
			}
			if slices.Contains(b.events, "prepare") {
				t.Error("prepare ran")
			}
			if _, err := b.client.BatchV1().Jobs("zarf").Get(t.Context(), job.Name, metav1.GetOptions{}); err != nil {
				t.Errorf("the Job of the other operation: %v", err)
			}
		})
	}
}

func TestAnUninstalledReleaseIsInstalledAnew(t *testing.T) {
	b := newBench(t, namespace())
	b.Options.Values = map[string]any{"mode": "proxy"}
	b.mustRun()
	b.set(release.StatusUninstalled)
	b.Options.Values = map[string]any{}
	result := b.mustRun()
	if result.Upgraded || result.Revision != 2 || result.Settings.Mode != state.ModeNodePort {
		t.Errorf("result is %+v", result)
	}
}

func TestAFailedFinishIsTheReleasesFailureAndCanBeRunAgain(t *testing.T) {
	b := newBench(t, namespace())
	b.finish = errors.New("finish: verify pulls: node n2 could not pull")
	if _, err := b.Installer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "node n2 could not pull") {
		t.Fatalf("error is %v", err)
	}
	b.wantHistory("failed")
	if d := b.last().Info.Description; !strings.Contains(d, "node n2 could not pull") {
		t.Errorf("the release says %q", d)
	}
	b.finish = nil
	b.mustRun()
	b.wantHistory("superseded", "deployed")

	// As with helm, the one before an upgrade that failed stays the deployed one.
	b.finish = errors.New("no luck")
	if _, err := b.Installer.Run(t.Context()); err == nil {
		t.Fatal("no error")
	}
	b.wantHistory("superseded", "deployed", "failed")
	b.finish = nil
	b.mustRun()
	b.wantHistory("superseded", "superseded", "failed", "deployed")
}

func TestWhatCannotBeContinuedIsRefusedWithTheNextStep(t *testing.T) {
	ending := namespace()
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes"}
	for name, c := range map[string]struct {
		objects []runtime.Object
		arrange func(*bench)
		want    string
	}{
		"a release that is being deleted": {[]runtime.Object{namespace()}, func(b *bench) {
			b.mustRun()
			b.set(release.StatusUninstalling)
		}, "zarf-registry uninstall --release zarf-registry --namespace zarf"},
		"a release of another chart": {[]runtime.Object{namespace()}, func(b *bench) {
			b.mustRun()
			b.last().Chart.Metadata.Name = "nginx"
			b.Options.Chart = testChart("zarf-registry")
		}, "belongs to the chart nginx"},
		"another chart": {[]runtime.Object{namespace()}, func(b *bench) {
			b.Options.Chart = testChart("nginx")
		}, "use helm for others"},
		"a namespace that is being deleted": {[]runtime.Object{ending}, nil, "kubectl wait --for=delete namespace/zarf"},
		"no namespace":                      {nil, func(b *bench) { b.Options.CreateNamespace = false }, "kubectl create namespace zarf"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			if c.arrange != nil {
				c.arrange(b)
			}
			b.events = nil
			_, err := b.Installer.Run(t.Context())
			if !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want a refusal with %q", err, c.want)
			}
			if len(b.events) > 0 {
				t.Errorf("the phases were %q", b.events)
			}
		})
	}
}

func TestAChartThatIsNotThisReleasesIsAnError(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"no Jobs":          {"kind: Job", "kind: Pod", "renders no Job that runs zarf-registry prepare"},
		"an unknown flag":  {"--mode=", "--colour=", "unknown flag: --colour"},
		"a template error": {`{{ . }}`, `{{ fail "zarf-registry: registryURL: no" }}`, "zarf-registry: registryURL: no"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			file := b.Options.Chart.Templates[0]
			file.Data = []byte(strings.Replace(string(file.Data), c.old, c.new, 1))
			if _, err := b.Installer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			b.wantHistory()
			if len(b.events) > 0 {
				t.Errorf("the phases were %q", b.events)
			}
		})
	}
}

// withNodes has the chart configure nodes, by a Secret as it is given.
func (b *bench) withNodes(secret string) {
	file := b.Options.Chart.Templates[0]
	file.Data = []byte(strings.ReplaceAll(string(file.Data), `"--mode=`, `"--node-directories=/etc/containers", "--mode=`))
	b.template("node-config.yaml", secret)
}

func TestTheNodeConfigurationReachesPrepareFromTheRenderedSecret(t *testing.T) {
	b := newBench(t, namespace())
	b.withNodes(`
apiVersion: v1
kind: Secret
metadata: {name: "{{ .Release.Name }}-node-config"}
data: {config.json: {{ print "revision " .Release.Revision | b64enc }}}
stringData: {registries.yaml: "mirrors: {}"}
`)
	// What is rendered ahead says that it is the first revision.
	for revision := 1; revision <= 2; revision++ {
		b.mustRun()
		for want, o := range map[string]recordedHook{"revision 1": b.prepared,
			fmt.Sprint("revision ", revision): b.finishing} {
			if got := string(o.nodeConfig["config.json"]); got != want ||
				string(o.nodeConfig["registries.yaml"]) != "mirrors: {}" {
				t.Errorf("the hook has %q, want %s", o.nodeConfig, want)
			}
		}
	}
	_, err := b.Plan(t.Context())
	if err != nil || string(b.planned.nodeConfig["config.json"]) != "revision 1" {
		t.Errorf("the plan has %q (%v)", b.planned.nodeConfig, err)
	}
}

func TestAChartWithoutTheSecretOfNodesIsAnErrorThatQuotesNone(t *testing.T) {
	for name, secret := range map[string]string{
		"no Secret": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: zarf-registry-node-config}\n",
		"another's": "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\n",
		"one of rubbish": "apiVersion: v1\nkind: Secret\nmetadata: {name: zarf-registry-node-config}\ndata: {config.json: " +
			"\"%hunter2\"}\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			b.withNodes(secret)
			_, err := b.Installer.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), "the chart renders no valid Secret zarf-registry-node-config") ||
				strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error is %v", err)
			}
			if len(b.events) > 0 {
				t.Errorf("the phases were %q", b.events)
			}
		})
	}
}

func TestObjectsMayHaveAnotherNamespaceThanTheRelease(t *testing.T) {
	there := func(b *bench) (names []string) {
		list := require.Value(b.client.CoreV1().Namespaces().List(b.Context(), metav1.ListOptions{}))(b.T)
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		slices.Sort(names)
		return names
	}
	elsewhere := func(args []string) (settings.Settings, error) {
		o, err := parse(args)
		o.Namespace = "images"
		return o, err
	}
	both := []string{"images", "zarf"}
	t.Run("both are made", func(t *testing.T) {
		b := newBench(t)
		b.Parse = elsewhere
		b.mustRun()
		if got := there(b); !slices.Equal(got, both) || b.last().Namespace != "zarf" || b.prepared.Namespace != "images" {
			t.Errorf("namespaces %q, release in %s, prepare in %s", got, b.last().Namespace, b.prepared.Namespace)
		}
		b.mustRun()
		b.wantHistory("superseded", "deployed")
	})
	t.Run("a blocker leaves neither behind", func(t *testing.T) {
		b := newBench(t, namespace())
		b.Parse, b.findings = elsewhere, []preflight.Finding{{Check: "port", Severity: preflight.Blocker}}
		if _, err := b.Installer.Run(t.Context()); err == nil {
			t.Error("it is not blocked")
		}
		if got := there(b); !slices.Equal(got, []string{"zarf"}) {
			t.Errorf("namespaces %q", got)
		}
		for _, a := range b.client.Actions() {
			if d, ok := a.(kubetesting.DeleteAction); ok && d.GetDeleteOptions().Preconditions == nil {
				t.Errorf("%s %s is deleted without its UID as a precondition", d.GetResource().Resource, d.GetName())
			}
		}
	})
	t.Run("what the user brings belongs there", func(t *testing.T) {
		b := newBench(t, namespace())
		b.Parse = func(args []string) (settings.Settings, error) {
			o, err := elsewhere(args)
			o.Push.Secret = "mine"
			return o, err
		}
		plan, err := b.Plan(t.Context())
		if err != nil || len(plan.Findings) != 1 || plan.Findings[0].Object != "namespace images" {
			t.Errorf("%+v, error %v", plan, err)
		}
	})
	t.Run("it is not made where nothing is to be made", func(t *testing.T) {
		b := newBench(t, namespace())
		b.Parse, b.Options.CreateNamespace = elsewhere, false
		if _, err := b.Installer.Run(t.Context()); err == nil || !strings.Contains(err.Error(),
			"namespace images does not exist: kubectl create namespace images") {
			t.Error(err)
		}
	})
	t.Run("previous Jobs are removed there before prepare", func(t *testing.T) {
		b := newBench(t, namespace(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "images",
			Name: "zarf-registry-prepare"}},
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "images", Name: "someone-elses"}})
		b.Parse = elsewhere
		b.during["prepare"] = func() {
			list, err := b.client.BatchV1().Jobs("images").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || list.Items[0].Name != "someone-elses" {
				t.Errorf("the Jobs are %v, error %v", list.Items, err)
			}
		}
		b.mustRun()
	})
}

func TestAnInterruptedRunSaysThatItCanBeRunAgain(t *testing.T) {
	const again = "run the same command again"
	t.Run("by a signal", func(t *testing.T) {
		for _, phase := range []string{"preflight", "prepare", "finish"} {
			b := newBench(t)
			ctx, cancel := context.WithCancel(t.Context())
			b.during[phase] = func() {
				cancel()
				b.preflightErr, b.prepare, b.finish = ctx.Err(), ctx.Err(), ctx.Err()
			}
			_, err := b.Installer.Run(ctx)
			if err == nil || !strings.HasPrefix(err.Error(), "interrupted: "+again) {
				t.Errorf("in %s: error is %v", phase, err)
			}
			b.wantNamespace(phase != "preflight")
			b.during, b.preflightErr, b.prepare, b.finish = map[string]func(){}, nil, nil, nil
			b.mustRun()
			if history := b.history(); history[len(history)-1] != "deployed" {
				t.Errorf("after %s: history is %q", phase, history)
			}
		}
	})
	t.Run("by the time", func(t *testing.T) {
		b := newBench(t, namespace())
		b.Options.Timeout = time.Millisecond
		b.during["prepare"] = func() {
			time.Sleep(10 * time.Millisecond)
			b.prepare = context.DeadlineExceeded
		}
		_, err := b.Installer.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), again) || strings.Count(err.Error(),
			"not done within 1ms (--timeout)") != 1 {
			t.Errorf("error is %v", err)
		}
	})
}

func TestTheCarriedChartIsTheOneInTheTree(t *testing.T) {
	carried := require.Value(install.LoadChart(""))(t)
	tree := require.Value(install.LoadChart("../../charts/zarf-registry"))(t)
	if carried.Name() != names.Chart || len(carried.Templates) == 0 || carried.Schema == nil {
		t.Errorf("it is %s with %d templates", carried.Name(), len(carried.Templates))
	}
	files := func(c *chart.Chart) map[string]string {
		found := map[string]string{}
		for _, f := range c.Raw {
			found[f.Name] = string(f.Data)
		}
		return found
	}
	if !maps.Equal(files(carried), files(tree)) {
		t.Error("it differs from the one in the tree")
	}
	for name := range files(carried) {
		if strings.HasPrefix(name, "ci/") || strings.HasSuffix(name, ".go") {
			t.Errorf("it has the file %s", name)
		}
	}
	if _, err := install.LoadChart("/nonexistent"); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("error is %v", err)
	}
}

// helm uninstall waits for the Job cleanup. If its image is in the registry that an installation was to deploy, and
// that never started, no node can have it.
func TestAFailedFirstInstallationCanBeUninstalled(t *testing.T) {
	const image = "127.0.0.1:31999/zarf-registry/init-hook:dev"
	holding := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Images: []corev1.ContainerImage{{Names: []string{image}}}}}
	registry := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry", Namespace: "zarf"},
		Status: appsv1.DeploymentStatus{AvailableReplicas: 1}}
	for name, c := range map[string]struct {
		objects []runtime.Object
		image   string
		before  bool // an installation that works
		removed bool
	}{
		"no node has the image":       {image: image, removed: true},
		"a node has the image":        {image: image, objects: []runtime.Object{holding}},
		"the registry serves it":      {image: image, objects: []runtime.Object{registry}},
		"the image is elsewhere":      {image: "ghcr.io/zarf-dev/zarf-registry/init-hook:dev"},
		"the installation has worked": {image: image, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(c.objects, namespace())...)
			b.template("cleanup.yaml", `{apiVersion: batch/v1, kind: Job,
  metadata: {name: c, annotations: {helm.sh/hook: pre-delete}},
  spec: {template: {spec: {containers: [{name: c, image: "`+c.image+`", args: [cleanup]}]}}}}`)
			b.Parse = func(args []string) (settings.Settings, error) {
				s, err := parse(args)
				s.Address = "127.0.0.1:31999"
				return s, err
			}
			if c.before {
				b.mustRun()
			}
			b.finish = errors.New("the registry has no volume")
			_, err := b.Installer.Run(t.Context())
			if err == nil {
				t.Fatal("it succeeded")
			}
			const advice = "to uninstall it instead: zarf-registry uninstall --namespace zarf --release zarf-registry"
			if got := strings.Contains(err.Error(), advice); got != c.removed {
				t.Errorf("the error is %v; with advice: %t, want %t", err, got, c.removed)
			}
			has := slices.ContainsFunc(b.last().Hooks, func(h *release.Hook) bool { return h.Name == "c" })
			if has == c.removed {
				t.Errorf("the release has the Job: %t", has)
			}
		})
	}
}

// rejecting builds the objects of a manifest with a client that asks answer for the API server's response, nil for the
// object.
type rejecting struct {
	*kubefake.PrintingKubeClient
	answer func(*http.Request) *metav1.Status
}

func (r rejecting) Build(manifest io.Reader, _ bool) (kube.ResourceList, error) {
	content, err := io.ReadAll(manifest)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(content, &object.Object); err != nil {
		return nil, err
	}
	client := &restfake.RESTClient{NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		Client: restfake.CreateHTTPClient(func(request *http.Request) (*http.Response, error) {
			var body any = object
			code := http.StatusOK
			if status := r.answer(request); status != nil {
				body, code = status, http.StatusUnprocessableEntity
			}
			content, err := json.Marshal(body)
			return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(content)),
				Header: http.Header{"Content-Type": {"application/json"}}}, err
		})}
	kind := object.GroupVersionKind()
	return kube.ResourceList{{Client: client, Namespace: "zarf", Name: object.GetName(), Object: object,
		Mapping: &meta.RESTMapping{Resource: kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s"),
			GroupVersionKind: kind, Scope: meta.RESTScopeNamespace}}}, nil
}

// The API server judges the rendered objects before anything changes.
func TestObjectsThatTheAPIServerRejectsAreBlockers(t *testing.T) {
	status := func(reason metav1.StatusReason, message string) *metav1.Status {
		return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: reason, Message: message, Code: http.StatusUnprocessableEntity}
	}
	const taken = "spec.ports[0].nodePort: Invalid value: 30000: provided port is already allocated"
	for name, c := range map[string]struct {
		answer  *metav1.Status
		exists  bool
		ignored bool
		want    preflight.Severity // empty: no finding
	}{
		"rejected":            {answer: status(metav1.StatusReasonInvalid, taken), want: preflight.Blocker},
		"rejected, ignored":   {answer: status(metav1.StatusReasonInvalid, taken), ignored: true, want: preflight.Warning},
		"its own port":        {answer: status(metav1.StatusReasonInvalid, taken), exists: true},
		"it is created":       {answer: status(metav1.StatusReasonAlreadyExists, "exists")},
		"no namespace yet":    {answer: status(metav1.StatusReasonNotFound, "namespaces \"zarf\" not found")},
		"a webhook refuses":   {answer: status(metav1.StatusReasonBadRequest, "webhook does not support dry run")},
		"an API server rests": {answer: status(metav1.StatusReasonInternalError, "etcd")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			b.template("expose/service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: exposed}\n")
			b.Helm.KubeClient = rejecting{&kubefake.PrintingKubeClient{Out: io.Discard},
				func(request *http.Request) *metav1.Status {
					if request.Method == http.MethodGet && c.exists {
						return nil
					}
					if request.Method == http.MethodGet {
						return status(metav1.StatusReasonNotFound, "not found")
					}
					if request.Method != http.MethodPost || request.URL.Query().Get("dryRun") != metav1.DryRunAll {
						t.Errorf("request %s %s is no dry run", request.Method, request.URL)
					}
					if !strings.HasSuffix(request.URL.Path, "/services") {
						return status(metav1.StatusReasonAlreadyExists, "exists")
					}
					return c.answer
				}}
			b.Parse = func(args []string) (settings.Settings, error) {
				s, err := parse(args)
				if c.ignored {
					s.Preflight.Ignore = []string{"admission"}
				}
				return s, err
			}
			plan, err := b.Plan(t.Context())
			require.NoError(t, err)
			want := []preflight.Finding{{Check: "admission", Severity: c.want, Object: "Service zarf/exposed",
				Cause: "the API server rejects it: " + taken, Remedy: "correct the values under expose that this is about"}}
			if c.want == "" {
				want = nil
			}
			if !slices.Equal(plan.Findings, want) {
				t.Errorf("findings are %v, want %v", plan.Findings, want)
			}
			_, err = b.Installer.Run(t.Context())
			if c.want == preflight.Blocker && (err == nil || !strings.Contains(err.Error(), taken) ||
				slices.Contains(b.events, "prepare")) {
				t.Errorf("the run: %v, after %q", err, b.events)
			}
		})
	}
}

// The next run refuses a namespace that is being deleted, and the user runs the corrected command at once.
func TestABlockedRunWaitsUntilItsNamespaceIsGone(t *testing.T) {
	b := newBench(t)
	b.findings = []preflight.Finding{{Check: "storage", Severity: preflight.Blocker}}
	deleted, terminating := false, 2 // reads that still find it
	b.client.PrependReactor("*", "namespaces", func(a kubetesting.Action) (bool, runtime.Object, error) {
		switch {
		case a.GetVerb() == "delete":
			deleted = true
		case a.GetVerb() == "get" && deleted && terminating > 0:
			terminating--
			return true, namespace(), nil
		}
		return false, nil, nil
	})
	if _, err := b.Installer.Run(t.Context()); err == nil || !deleted || terminating > 0 {
		t.Errorf("the run ended with %v while its namespace was left", err)
	}
}
