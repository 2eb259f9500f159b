package cli

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/cluster/programs"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// noted is a hook that notes what it is asked to do.
type noted struct{ phases *[]string }

func (n noted) Preflight(context.Context) ([]preflight.Finding, error) {
	n.add("preflight")
	return nil, nil
}
func (n noted) Prepare(context.Context) error { n.add("prepare"); return nil }
func (n noted) Finish(context.Context) error  { n.add("finish"); return nil }
func (n noted) add(phase string)              { *n.phases = append(*n.phases, phase) }

// runCarried installs the carried chart with a hook that does nothing, and returns what
// the hook was asked to do.
func runCarried(t *testing.T, values map[string]any) (settings.Settings, []string) {
	t.Helper()
	carried := require.Value(install.LoadChart(""))(t)
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}
	memory := driver.NewMemory()
	memory.SetNamespace("zarf")
	var phases []string
	i := &install.Installer{
		Options: install.Options{Namespace: "zarf", Release: "zarf-registry", Chart: carried, Values: values,
			CreateNamespace: true, Timeout: time.Minute},
		Helm: &action.Configuration{
			Releases:     storage.Init(memory),
			KubeClient:   &kubefake.PrintingKubeClient{Out: io.Discard},
			Capabilities: capabilities,
			Log:          func(string, ...any) {},
		},
		Client: fake.NewClientset(),
		Parse:  settings.OfJob,
		NewHook: func(context.Context, settings.Settings, map[string][]byte) (install.Hook, error) {
			return noted{&phases}, nil
		},
		Log: slog.New(slog.DiscardHandler), Progress: release.Logged{Log: slog.New(slog.DiscardHandler)},
		Now: time.Now,
	}
	return require.Value(i.Run(t.Context()))(t).Settings, phases
}

// Prepare would refuse the chart otherwise.
func TestTheCarriedChartHasTheDigestsOfTheCarriedPrograms(t *testing.T) {
	carried := require.Value(install.LoadChart(""))(t)
	i := slices.IndexFunc(carried.Files, func(f *chart.File) bool { return f.Name == "files/programs.json" })
	if i < 0 {
		t.Skip("needs files/programs.json of the chart: run make payload")
	}
	var digests map[string]string
	require.NoError(t, json.Unmarshal(carried.Files[i].Data, &digests))
	carriedPrograms := 0
	for _, architecture := range embedded.Architectures {
		if _, err := embedded.Loader(architecture); err != nil {
			t.Logf("SKIPPED for %s: %v", architecture, err) // make demo builds for one architecture
			continue
		}
		for _, program := range []string{"registry", "registry-node"} {
			p := require.Value(programs.Embedded{}.Payload(program, architecture))(t)
			if got := digests[p.Key()]; got != p.Digest() {
				t.Errorf("%s: the chart has %s, the payload %s", p.Program, got, p.Digest())
			}
			carriedPrograms++
		}
	}
	if carriedPrograms != len(digests) {
		t.Errorf("the chart has digests of %d programs, and %d are carried", len(digests), carriedPrograms)
	}
}

// What the carried chart tells its Jobs is what this program's commands take, in
// every mode.
func TestTheCarriedChartAndTheCommandsFitTogether(t *testing.T) {
	for name, c := range map[string]struct {
		values map[string]any
		mode   state.Mode
		source state.Source
		verify bool
	}{
		"proxy": {map[string]any{"registryProxy": true}, state.ModeProxy, state.SourceValue, true},
		"nodeport": {map[string]any{"registryProxy": false, "initHook": map[string]any{"verifyPulls": false}},
			state.ModeNodePort, state.SourceValue, false},
		"default":  {nil, state.ModeNodePort, state.SourceDefault, true},
		"external": {map[string]any{"registryURL": "registry.example.com/team"}, state.ModeExternal, state.SourceValue, true},
	} {
		t.Run(name, func(t *testing.T) {
			o, phases := runCarried(t, c.values)
			if !slices.Equal(phases, []string{"preflight", "prepare", "finish"}) {
				t.Errorf("the phases were %q", phases)
			}
			if o.Mode != c.mode || o.ModeSource != c.source || o.Name != "zarf-registry" || c.mode != state.ModeExternal &&
				o.Finish.VerifyPulls != c.verify {
				t.Errorf("the Jobs are told %+v", o)
			}
		})
	}
}
