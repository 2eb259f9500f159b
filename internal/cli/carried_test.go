package cli

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// noted is a hook that notes what it is asked to do.
type noted struct{ phases *[]string }

func (n noted) Preflight(context.Context) ([]hook.Finding, error) {
	n.add("preflight")
	return nil, nil
}
func (n noted) Prepare(context.Context) error { n.add("prepare"); return nil }
func (n noted) Finish(context.Context) error  { n.add("finish"); return nil }
func (n noted) add(phase string)              { *n.phases = append(*n.phases, phase) }

// What the carried chart tells its Jobs is what this program's commands take, in
// every mode.
func TestTheCarriedChartAndTheCommandsFitTogether(t *testing.T) {
	carried, err := install.LoadChart("")
	if err != nil {
		t.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}
	for name, c := range map[string]struct {
		values map[string]any
		mode   state.Mode
		source state.Source
		prove  bool
	}{
		"proxy":    {map[string]any{"registryProxy": true}, state.ModeProxy, state.SourceValue, true},
		"nodeport": {map[string]any{"registryProxy": false, "initHook": map[string]any{"prove": false}}, state.ModeNodePort, state.SourceValue, false},
		"default":  {nil, state.ModeNodePort, state.SourceDefault, true},
		"external": {map[string]any{"registryURL": "registry.example.com/team"}, state.ModeExternal, state.SourceValue, true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := driver.NewMemory()
			memory.SetNamespace("zarf")
			var phases []string
			i := &install.Installer{
				Options: install.Options{Namespace: "zarf", Release: "zarf-registry", Chart: carried, Values: c.values, CreateNamespace: true, Timeout: time.Minute},
				Helm: &action.Configuration{
					Releases:     storage.Init(memory),
					KubeClient:   &kubefake.PrintingKubeClient{Out: io.Discard},
					Capabilities: capabilities,
					Log:          func(string, ...any) {},
				},
				Client:  fake.NewClientset(),
				Parse:   parseJob,
				NewHook: func(context.Context, hook.Options) (install.Hook, error) { return noted{&phases}, nil },
				Log:     slog.New(slog.DiscardHandler),
				Now:     time.Now,
			}
			result, err := i.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(phases, []string{"preflight", "prepare", "finish"}) {
				t.Errorf("the phases were %q", phases)
			}
			o := result.Options
			if o.Mode != c.mode || o.ModeSource != c.source || o.Name != "zarf-registry" || c.mode != state.ModeExternal && o.Prove != c.prove {
				t.Errorf("the Jobs are told %+v", o)
			}
		})
	}
}
