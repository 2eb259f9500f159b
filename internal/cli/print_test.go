package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	files "github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var proxyOptions = settings.Settings{
	Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
	Mode: state.ModeProxy, ModeSource: state.SourceValue, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
}

func TestPreflightIsPrintedWithCauseAndRemedy(t *testing.T) {
	golden := files.Open(t, "plan")
	f := &chartFlags{Global: &cmdflags.Global{Namespace: "zarf", Release: "zarf-registry"}, output: "table"}
	c := &chart.Chart{Metadata: &chart.Metadata{Version: "0.1.0"}}
	plan := &install.Plan{Settings: proxyOptions, Manifest: "kind: A\n", Findings: []preflight.Finding{
		{Check: "port", Severity: preflight.Blocker, Object: "Service default/web", Cause: "it has the port",
			Remedy: "kubectl delete service web"},
		{Check: "cri-o", Severity: preflight.Warning, Cause: "a <strange> runtime", Remedy: "one line\nand another"},
	}}
	var out bytes.Buffer
	err := f.printPlan(&out, c, plan)
	if silent, ok := errors.AsType[*render.SilentError](err); !ok || silent.Code != exitcode.Refused {
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
	require.NoError(t, f.printPlan(&out, c, plan))
	clitest.JSON(t, render.InstallationPlan, out.String())
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
			f := &chartFlags{Global: &cmdflags.Global{Namespace: options.Namespace, Release: "zarf-registry"}, output: "table"}
			result := &install.Result{Settings: options, Revision: 1, ChartVersion: "0.1.0", AppVersion: "0.1.0"}
			var out bytes.Buffer
			require.NoError(t, f.printResult(&out, result))
			golden.Check(t, name, out.String())

			out.Reset()
			f.output = "json"
			require.NoError(t, f.printResult(&out, result))
			var printed map[string]any
			if err := json.Unmarshal(out.Bytes(), &printed); err != nil || printed["address"] != options.Address ||
				printed["revision"] != 1.0 {
				t.Errorf("JSON: %v (%v)", printed, err)
			}
			if _, needs := printed["pullSecret"]; needs != (name == "nodeport") {
				t.Errorf("JSON: %v", printed)
			}
			if name == "nodeport" {
				clitest.JSON(t, render.Installation, out.String())
			}
		})
	}
}

func TestFlagsOfTheModeReplaceWhatAnEarlierReleaseSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte("registryProxy: true\nport: 32000\n"), 0o600))
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
		require.NoError(t, cmd.ParseFlags(strings.Fields(args)))
		values, err := f.merged(cmd.Flags())
		if got := fmt.Sprint(values); err != nil || got != want {
			t.Errorf("%q gives %s (%v), want %s", args, got, err, want)
		}
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
	golden.Check(t, "healthy", clitest.Text(t, printStatus, r))

	r.NodeConfig = []status.NodeConfig{
		{Node: "n1", Written: 1, Unchanged: 2, WrittenAt: time.Date(2026, 11, 21, 14, 3, 11, 0, time.UTC),
			Effect: status.EffectMirrors},
		{Node: "n2", Restored: 1, Removed: 2, Effect: status.EffectRestart, Restart: "sudo systemctl restart k3s",
			Message: "unless restarted since x", Warnings: []string{"a", "b"}},
		{Node: "n3", Effect: status.EffectFailed, Error: "no", Warnings: []string{"a"}},
		{Node: "n4", Effect: status.EffectUnknown, Message: "no report"},
	}
	golden.Check(t, "with node configuration", clitest.Text(t, printStatus, r))
	clitest.JSON(t, render.Status, clitest.Data(t, render.Status, r))
	r.NodeConfig = nil

	use := &loaded.Cache{Size: 10_000_000_000, Used: 1_500_000_000, Hits: 900, Misses: 100}
	r.Caches = &status.Caches{Ready: 3, Desired: 4, Message: "ErrImagePull", Pods: []status.Cache{
		{Pod: status.Pod{Name: "c-1", Node: "n1", Ready: true}, Use: use},
		{Pod: status.Pod{Name: "c-2", Node: "n2", Ready: true}, Use: &loaded.Cache{Size: 1_000_000_000, Stale: 2}},
		{Pod: status.Pod{Name: "c-3", Node: "n3", Ready: true}},
		{Pod: status.Pod{Name: "c-4", Message: "ErrImagePull"}},
	}}
	golden.Check(t, "with caches", clitest.Text(t, printStatus, r))
	r.Caches = nil

	r.Healthy, r.Helm = false, nil
	r.State.Phase, r.State.Current, r.State.Desired.HostNetwork = state.PhasePrepared, &nodePort, true
	r.Registry = &status.Registry{Message: "no pod exists"}
	r.Healer = &status.Healer{Ready: 1, Desired: 2, Message: "ErrImagePull", Waiting: []string{"a", "b"}}
	r.Payloads[0].Complete, r.Payloads[0].Message = false, "ConfigMap x is missing"
	r.Certificates, r.Nodes = nil, nil
	r.Next = []string{"Do this.", "Do that."}
	golden.Check(t, "unhealthy", clitest.Text(t, printStatus, r))
}

func TestUninstallListsTheObjects(t *testing.T) {
	golden := files.Open(t, "uninstall")
	f := &uninstallFlags{Flags: &hook.Flags{Settings: proxyOptions}}
	rel := &release.Release{Name: "zarf-registry", Namespace: "zarf", Version: 3,
		Chart: &chart.Chart{Metadata: &chart.Metadata{Version: "0.1.0"}}, Manifest: `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: zarf-registry, namespace: zarf, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: zarf-registry-healer}
`}
	golden.Check(t, "release", clitest.Text(t, f.plan, rel))
	golden.Check(t, "no release", clitest.Text(t, f.plan, nil))
}

func TestStatusWaits(t *testing.T) {
	sick, healthy := &status.Report{Next: []string{"Do this."}}, &status.Report{Healthy: true}
	absent := errors.New("not there")
	answers := func(given ...any) func() (*status.Report, error) {
		return func() (*status.Report, error) {
			answer := given[0]
			if len(given) > 1 {
				given = given[1:]
			}
			if err, failed := answer.(error); failed {
				return nil, err
			}
			return answer.(*status.Report), nil
		}
	}
	for name, c := range map[string]struct {
		wait    bool
		limit   time.Duration
		answers func() (*status.Report, error)
		want    *status.Report
		err     error
		log     string
	}{
		"at once":                  {false, time.Hour, answers(sick), sick, nil, ""},
		"an error":                 {false, time.Hour, answers(absent), nil, absent, ""},
		"until it is healthy":      {true, time.Hour, answers(absent, sick, sick, healthy), healthy, nil, "not there|Do this."},
		"until the time is over":   {true, 3 * time.Second, answers(sick), sick, nil, "Do this."},
		"in vain for a report":     {true, 3 * time.Second, answers(absent, absent, context.DeadlineExceeded), nil, absent, "not there"},
		"not if it makes no sense": {true, time.Hour, answers(exitcode.Refuse("no")), nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), c.limit, errors.New("too late"))
				defer cancel()
				var out bytes.Buffer
				got, err := awaitHealth(ctx, c.wait, render.NewProgress(&out, slog.LevelInfo), c.answers)
				if got != c.want || (err == nil) != (got != nil) || !errors.Is(err, c.err) && c.err != nil {
					t.Errorf("report %v, error %v", got, err)
				}
				var waited []string
				for line := range strings.Lines(out.String()) {
					_, missing, _ := strings.Cut(strings.TrimSpace(line), "healthy release: ")
					waited = append(waited, missing)
				}
				if said := strings.Join(waited, "|"); said != c.log {
					t.Errorf("it says %q, want %q", said, c.log)
				}
			})
		})
	}
}
