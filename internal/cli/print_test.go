package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"helm.sh/helm/v3/pkg/chart"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	files "github.com/zarf-dev/zarf-registry/test/golden"
)

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

var proxyOptions = settings.Settings{
	Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
	Mode: state.ModeProxy, ModeSource: state.SourceValue, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
}

func TestPreflightIsPrintedWithCauseAndRemedy(t *testing.T) {
	golden := files.Open(t, "plan")
	f := &chartFlags{globalFlags: &globalFlags{namespace: "zarf"}, release: "zarf-registry", output: "table"}
	c := &chart.Chart{Metadata: &chart.Metadata{Version: "0.1.0"}}
	plan := &install.Plan{Settings: proxyOptions, Manifest: "kind: A\n", Findings: []preflight.Finding{
		{Check: "port", Severity: preflight.Blocker, Object: "Service default/web", Cause: "it has the port",
			Remedy: "kubectl delete service web"},
		{Check: "cri-o", Severity: preflight.Warning, Cause: "a <strange> runtime", Remedy: "one line\nand another"},
	}}
	var out bytes.Buffer
	err := f.printPlan(&out, c, plan)
	if _, ok := errors.AsType[*silent](err); !ok {
		t.Errorf("a blocker gives the error %v", err)
	}
	golden.Check(t, "text", out.String())

	out.Reset()
	plan.Findings = plan.Findings[1:]
	if err := f.printPlan(&out, c, plan); err != nil {
		t.Errorf("a warning gives the error %v", err)
	}

	out.Reset()
	f.output = "json"
	plan.Findings = nil
	if err := f.printPlan(&out, c, plan); err != nil {
		t.Fatal(err)
	}
	same(t, "JSON", out.String(), `{
  "mode": "proxy",
  "address": "127.0.0.1:31999",
  "findings": [],
  "upgrade": false,
  "chart": "0.1.0",
  "manifest": "kind: A\n"
}
`)
}

func TestTheResultSaysHowToPushAndPull(t *testing.T) {
	nodePort := proxyOptions
	nodePort.Mode, nodePort.Namespace, nodePort.Name = state.ModeNodePort, "other", "full"
	anonymous := nodePort
	anonymous.AnonymousPull = true
	external := proxyOptions
	external.Mode, external.Address = state.ModeExternal, "registry.example.com/team"
	golden := files.Open(t, "result")
	for name, options := range map[string]settings.Settings{
		"proxy": proxyOptions, "nodeport": nodePort, "nodeport without a credential": anonymous, "external": external,
	} {
		t.Run(name, func(t *testing.T) {
			f := &chartFlags{globalFlags: &globalFlags{namespace: options.Namespace}, release: "zarf-registry",
				output: "table"}
			result := &install.Result{Settings: options, Revision: 1, ChartVersion: "0.1.0", AppVersion: "0.1.0"}
			var out bytes.Buffer
			if err := f.printResult(&out, result); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, name, out.String())

			out.Reset()
			f.output = "json"
			if err := f.printResult(&out, result); err != nil {
				t.Fatal(err)
			}
			var printed map[string]any
			if err := json.Unmarshal(out.Bytes(), &printed); err != nil || printed["address"] != options.Address ||
				printed["revision"] != 1.0 {
				t.Errorf("JSON: %v (%v)", printed, err)
			}
			if _, needs := printed["pullSecret"]; needs != (name == "nodeport") {
				t.Errorf("JSON: %v", printed)
			}
		})
	}
}

func TestFlagsOfTheModeReplaceWhatAnEarlierReleaseSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte("registryProxy: true\nport: 32000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                       `map[]`,
		"--registry-proxy":       `map[registryProxy:true registryURL:]`,
		"--registry-proxy=false": `map[registryProxy:false registryURL:]`,
		"--registry-url=a.b/c":   `map[registryProxy:<nil> registryURL:a.b/c]`,
		"--registry-url=":        `map[registryURL:]`,
		// Both is for the chart to refuse.
		"--set=registryURL=a.b --registry-proxy":                    `map[registryProxy:true registryURL:a.b]`,
		"--values=" + file + " --registry-url=a.b":                  `map[port:32000 registryProxy:true registryURL:a.b]`,
		"--registry-url=a.b/c --registry-proxy":                     `map[registryProxy:true registryURL:a.b/c]`,
		"--values=" + file + " --set=port=1 --registry-proxy=false": `map[port:1 registryProxy:false registryURL:]`,
		"--set=a.b=1 --set-string=c=1,d=x":                          `map[a:map[b:1] c:1 d:x]`,
		"--set-file=e=" + file:                                      "map[e:registryProxy: true\nport: 32000\n]",
	} {
		f := &chartFlags{}
		cmd := &cobra.Command{}
		f.register(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		values, err := f.merged(cmd.Flags())
		if got := fmt.Sprint(values); err != nil || got != want {
			t.Errorf("%q gives %s (%v), want %s", args, got, err, want)
		}
	}
}

// jobSettings are settings that a Job accepts, with changes.
func jobSettings(changes ...func(*settings.Settings)) settings.Settings {
	s := settings.Settings{
		Namespace: "a", Release: "b", Name: "c", Mode: state.ModeProxy, ModeSource: state.SourceState,
		Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4, IPFamilySource: state.SourceDefault,
		Injector: settings.Injector{Enabled: true, PayloadID: "1", PauseRules: nodeimages.Rules{Digest: "^$", Name: "^$", Own: "^$"}},
		PKI: settings.PKI{Source: state.SourceValue, PKI: state.PKI{
			Mode: state.PKIInternal, LeafLifetime: state.Duration(2160 * time.Hour),
			CALifetime: state.Duration(8760 * time.Hour), ClusterDomain: "example.org",
		}},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

// jobArguments are the arguments of a Job with settings.
func jobArguments(t *testing.T, step string, s settings.Settings, more ...string) []string {
	t.Helper()
	document, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{step, "--settings=" + string(document), "--timeout=4m", "--log-format=json"}, more...)
}

func TestArgumentsOfAJobAreParsedAsTheJobWould(t *testing.T) {
	want := jobSettings(func(s *settings.Settings) {
		s.NodeConfig = settings.NodeConfig{Directories: []string{"/etc/containerd/certs.d", "/etc/containers"},
			DirectoriesInUse: []string{"/etc/containers"},
			RegistriesSecret: "corp", RegistriesKey: "registries.yaml", CA: true, DaemonSets: []string{"a", "b"}}
		s.Push.Secret = "mine"
	})
	got, err := parseJob(jobArguments(t, "prepare", want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if cleanup, err := parseJob(jobArguments(t, "cleanup", want)); err != nil || !cmp.Equal(want, cleanup) {
		t.Errorf("cleanup: %+v, %v", cleanup, err)
	}
	_, err = parseJob(jobArguments(t, "prepare", jobSettings(func(s *settings.Settings) { s.Mode = "boat" })))
	if !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), `invalid mode "boat"`) {
		t.Errorf("invalid settings: error is %v, want a refusal", err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":         {nil, "no Job"},
		"another command": {[]string{"finish"}, "no Job"},
		"an unknown flag": {[]string{"prepare", "--colour=red"}, "use the chart of the same version"},
		"no settings":     {[]string{"prepare"}, "invalid --settings: decoding settings: EOF"},
		"an unknown setting": {[]string{"prepare", `--settings={"colour":"red"}`},
			`invalid --settings: decoding settings: json: unknown field "colour"`},
		"an unexpected argument": {jobArguments(t, "prepare", want, "more"), `unknown command "more"`},
	} {
		if _, err := parseJob(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestCleanupTakesSettingsOrTheNamesOfTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string // of the error; "" is none
	}{
		"settings":               {jobArguments(t, "cleanup", jobSettings())[1:], ""},
		"the defaults":           {nil, ""},
		"names":                  {[]string{"--namespace=a", "--release=b", "--name=c", "--pod-security-label"}, ""},
		"an impossible name":     {[]string{"--namespace=A"}, `invalid namespace "A"`},
		"invalid settings":       {[]string{"--settings={}"}, "invalid --settings: "},
		"settings and a name":    {[]string{"--settings={}", "--name=c"}, "--settings cannot be combined with --name"},
		"settings and the label": {[]string{"--settings={}", "--pod-security-label"}, "with --pod-security-label"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newHookFlags(&globalFlags{})
			cmd := f.cleanup()
			f.attach(cmd)
			err := cmd.ParseFlags(c.args)
			if err == nil {
				err = f.validate(cmd.Flags())
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestProgressIsLinesToRead(t *testing.T) {
	var out bytes.Buffer
	flags := &globalFlags{log: logging.Options{Format: "auto"}}
	log := flags.progress(&out)
	step := log.With("phase", "prepare", "step", "1/8 look at the nodes")
	step.Info("step done", "result", "found 2 nodes", "reason", "because", "duration", "12ms")
	step.Error("step failed", "reason", "because", "duration", "1s", "error", "said at the end")
	log.Info("phase done", "phase", "prepare", "duration", "2s")
	log.Info("waiting", "for", "the registry", "missing", "1 pod")
	log.Warn("a node does not report the pause image", "node", "n1", "images", []string{"a", "b"})
	log.Warn("preflight", "check", "cri-o", "object", "node n1", "cause", "it is new", "remedy", "do this")
	log.Debug("not told")
	files.Open(t, "progress").Check(t, "text", out.String())
	out.Reset()
	flags.log.Format = "json"
	flags.progress(&out).Info("step done", "result", "x")
	if !json.Valid(out.Bytes()) {
		t.Errorf("--log-format=json writes %q", out.String())
	}
}

func TestStatusIsPrintedAsATable(t *testing.T) {
	golden := files.Open(t, "status")
	proxy := state.Settings{Mode: state.ModeProxy, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
		DecidedBy: state.SourceValue}
	nodePort := proxy
	nodePort.Mode = state.ModeNodePort
	r := &status.Report{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry", Healthy: true,
		State: &status.State{Phase: state.PhaseReady, Desired: proxy, Current: &proxy,
			PKI: &state.PKI{Mode: state.PKIInternal}, UpdatedBy: "0.1.0",
			UpdatedAt: time.Date(2026, 11, 21, 14, 3, 11, 0, time.UTC)},
		Helm:     &status.Revision{Revision: 3, Status: "deployed"},
		Registry: &status.Registry{Ready: true, Pods: []status.Pod{{Name: "r", Node: "n1", Ready: true}}},
		Healer:   &status.Healer{Ready: 2, Desired: 2},
		Nodes:    []status.Node{{Name: "n1", Ready: true, Via: "proxy", Endpoint: true, Verified: true}},
		Certificates: []status.Certificate{
			{Secret: "zarf-registry-ca", Valid: true, DaysLeft: 1800, Left: 1800*24*time.Hour + time.Minute},
			{Secret: "zarf-registry-server-tls", Valid: true, Left: 9*time.Minute + 20*time.Second},
			{Secret: "zarf-registry-node-tls", Message: "it has expired", DaysLeft: -2, Left: -26 * time.Hour},
		},
		Payloads: []status.Payload{{Name: "zarf-registry-payload-0.1.0-registry-amd64", Present: 9, Desired: 9,
			Complete: true}},
	}
	golden.Check(t, "healthy", printed(t, printStatus, r))

	r.NodeConfig = []status.NodeConfig{
		{Node: "n1", Written: 1, Unchanged: 2, WrittenAt: time.Date(2026, 11, 21, 14, 3, 11, 0, time.UTC),
			Effect: status.EffectMirrors},
		{Node: "n2", Restored: 1, Removed: 2, Effect: status.EffectRestart, Restart: "sudo systemctl restart k3s",
			Message: "unless restarted since x", Warnings: []string{"a", "b"}},
		{Node: "n3", Effect: status.EffectFailed, Error: "no", Warnings: []string{"a"}},
		{Node: "n4", Effect: status.EffectUnknown, Message: "no report"},
	}
	golden.Check(t, "with node configuration", printed(t, printStatus, r))
	r.NodeConfig = nil

	use := &reloadstatus.CacheReport{Size: 10_000_000_000, Used: 1_500_000_000, Hits: 900, Misses: 100}
	r.Caches = &status.Caches{Ready: 3, Desired: 4, Message: "ErrImagePull", Pods: []status.Cache{
		{Pod: status.Pod{Name: "c-1", Node: "n1", Ready: true}, Use: use},
		{Pod: status.Pod{Name: "c-2", Node: "n2", Ready: true}, Use: &reloadstatus.CacheReport{Size: 1_000_000_000, Stale: 2}},
		{Pod: status.Pod{Name: "c-3", Node: "n3", Ready: true}},
		{Pod: status.Pod{Name: "c-4", Message: "ErrImagePull"}},
	}}
	golden.Check(t, "with caches", printed(t, printStatus, r))
	r.Caches = nil

	r.Healthy, r.Helm = false, nil
	r.State.Phase, r.State.Current, r.State.Desired.HostNetwork = state.PhasePrepared, &nodePort, true
	r.Registry = &status.Registry{Message: "no pod exists"}
	r.Healer = &status.Healer{Ready: 1, Desired: 2, Message: "ErrImagePull", Waiting: []string{"a", "b"}}
	r.Payloads[0].Complete, r.Payloads[0].Message = false, "ConfigMap x is missing"
	r.Certificates, r.Nodes = nil, nil
	r.Next = []string{"Do this.", "Do that."}
	golden.Check(t, "unhealthy", printed(t, printStatus, r))
}

func TestCertificatesArePrintedForPeople(t *testing.T) {
	golden := files.Open(t, "certificates")
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	fingerprint := func(digit string) string { return strings.Repeat(digit, 64) }
	leaf := func(secret, role string) *status.SecretCertificate {
		return &status.SecretCertificate{
			Certificate: status.Certificate{Secret: secret, Subject: "CN=zarf-registry,O=" + role,
				NotAfter: now.Add(365 * 24 * time.Hour), DaysLeft: 365, Left: 365 * 24 * time.Hour, Valid: true},
			CommonName: "zarf-registry", Roles: []string{role}, Serial: "1f", SHA256: fingerprint("a"), Issuer: "CN=authority",
			NotBefore:  now.Add(-time.Hour),
			TrustedCAs: []string{fingerprint("c")},
		}
	}
	server, node := leaf("zarf-registry-server-tls", "zarf-registry:server"),
		leaf("zarf-registry-node-tls", "zarf-registry:node")
	server.DNSNames, server.RenewAt = []string{"zarf-registry", "zarf-registry.zarf.svc"}, now.Add(182*24*time.Hour)
	report := func(generation uint64) *reloadstatus.Report {
		return &reloadstatus.Report{Certificates: reloadstatus.Certificates{Generation: generation, LoadedAt: now,
			Leaf: reloadstatus.Certificate{SHA256: fingerprint("a")}}}
	}
	r := &status.CertificateReport{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry", Healthy: true,
		PKI: &state.PKI{Mode: state.PKIInternal, LeafLifetime: state.Duration(8760 * time.Hour),
			CALifetime: state.Duration(43800 * time.Hour)},
		Secrets: []*status.SecretCertificate{server},
		Pods: []status.PodCertificates{{Pod: "zarf-registry-0", Node: "n1", Component: "registry", Loaded: report(12),
			Current: true, TrustCurrent: true}},
	}
	golden.Check(t, "healthy", printed(t, printCertificates, r))

	node.Valid, node.Message, node.Left, node.NotAfter = false, "it expired at 2026-11-21T11:30:00Z", -30*time.Minute,
		now.Add(-30*time.Minute)
	node.IPAddresses, node.Source = []string{"127.0.0.1"}, &status.Source{Secret: "mine", SHA256: fingerprint("e"),
		Message: "it holds another certificate"}
	missing := &status.SecretCertificate{Certificate: status.Certificate{Secret: "zarf-registry-push-tls",
		Message: "not found"}, Source: &status.Source{Secret: "my-push", Message: "not found"}}
	server.Source = &status.Source{Secret: "my-server", SHA256: fingerprint("a"), Copied: true}
	server.RenewAt, server.Roles = time.Time{}, nil
	r.Healthy, r.Secrets = false, []*status.SecretCertificate{server, node, missing}
	r.PKI = &state.PKI{Mode: state.PKIExistingSecret, Existing: &state.ExistingSecrets{Push: "my-push"}}
	r.Rotation = &state.Rotation{Phase: state.RotationReissue, Reason: "the authority was asked for", Since: now,
		Waiting: "pod a:\nits leaf"}
	r.Pods = append(r.Pods,
		status.PodCertificates{Pod: "proxy-a", Node: "n2",
			Loaded: &reloadstatus.Report{Certificates: reloadstatus.Certificates{Generation: 1, LoadedAt: now,
				Leaf: reloadstatus.Certificate{SHA256: fingerprint("b")}, ReloadErrors: 3}}, Message: "tls.key: broken"},
		status.PodCertificates{Pod: "proxy-b", Message: "not running yet"})
	r.Next = []string{"Do this."}
	golden.Check(t, "unhealthy", printed(t, printCertificates, r))

	external := &status.CertificateReport{Namespace: "zarf", Healthy: true, External: "registry.example.com/team"}
	golden.Check(t, "external", printed(t, printCertificates, external))
}

func TestIssuersAreNamed(t *testing.T) {
	lines := pkiLines(&state.PKI{
		Mode: state.PKICertManager, Issuer: &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"},
		LeafLifetime: state.Duration(time.Hour), CALifetime: state.Duration(90 * time.Minute),
	}, nil)
	same(t, "lines", fmt.Sprint(lines),
		"[[mode certManager, issuer ClusterIssuer corp of cert-manager.io] [lifetimes certificates 1h0m, CA 1h30m] "+
			"[rotation none in progress]]")
	same(t, "unknown", fmt.Sprint(pkiLines(nil, nil)), "[[mode not recorded yet] [rotation none in progress]]")
}

func TestTheAuthoritiesArePrintedAsTheyAreTrusted(t *testing.T) {
	now := time.Now()
	var both []byte
	for _, name := range []string{"previous", "new"} {
		a, err := pki.NewCA(name, now, 0)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, a.KeyPair().Certificate...)
	}
	f := &hookFlags{settings: settings.Settings{Namespace: "zarf", Release: "zarf-registry", Name: "full"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "full-node-tls"},
		Data: map[string][]byte{"ca.crt": both, "tls.key": []byte("secret")}}
	var out bytes.Buffer
	if err := f.printCA(t.Context(), &out, fake.NewClientset(secret)); err != nil {
		t.Fatal(err)
	}
	same(t, "bundle", out.String(), string(both))

	secret.Data["ca.crt"] = []byte("rubbish")
	for want, client := range map[string]*fake.Clientset{
		"Secret zarf/full-node-tls not found: either zarf-registry is not installed": fake.NewClientset(),
		"run zarf-registry certs renew --name full to repair it":                     fake.NewClientset(secret),
	} {
		out.Reset()
		if err := f.printCA(t.Context(), &out, client); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q; output %q", err, want, &out)
		}
	}
}

// printed is a report as text, without the spaces that a table ends its lines with.
func printed[R any](t *testing.T, write func(io.Writer, R) error, report R) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out, report); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n")
}
