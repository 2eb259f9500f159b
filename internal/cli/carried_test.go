package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/cluster/programs"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
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
func runCarried(t *testing.T, values map[string]any, cluster ...runtime.Object) (*install.Result, []string, error) {
	t.Helper()
	carried, err := install.LoadChart("")
	if err != nil {
		t.Fatal(err)
	}
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
		Client: fake.NewClientset(cluster...),
		Parse:  parseJob,
		NewHook: func(context.Context, settings.Settings, map[string][]byte) (install.Hook, error) {
			return noted{&phases}, nil
		},
		Log: slog.New(slog.DiscardHandler),
		Now: time.Now,
	}
	result, err := i.Run(t.Context())
	return result, phases, err
}

// prepare would refuse the chart otherwise.
func TestTheCarriedChartHasTheDigestsOfTheCarriedPrograms(t *testing.T) {
	carried, err := install.LoadChart("")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(carried.Files, func(f *chart.File) bool { return f.Name == "files/programs.json" })
	if i < 0 {
		t.Skip("needs files/programs.json of the chart: run make payload")
	}
	var digests map[string]string
	if err := json.Unmarshal(carried.Files[i].Data, &digests); err != nil {
		t.Fatal(err)
	}
	for _, architecture := range embedded.Architectures {
		for _, program := range []string{"registry", "registry-node"} {
			p, err := programs.Embedded{}.Payload(program, architecture)
			if err != nil {
				t.Fatal(err)
			}
			if got := digests[p.Key()]; got != p.Digest() {
				t.Errorf("%s: the chart has %s, the payload %s", p.Program, got, p.Digest())
			}
		}
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
			result, phases, err := runCarried(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(phases, []string{"preflight", "prepare", "finish"}) {
				t.Errorf("the phases were %q", phases)
			}
			o := result.Settings
			if o.Mode != c.mode || o.ModeSource != c.source || o.Name != "zarf-registry" || c.mode != state.ModeExternal &&
				o.Finish.VerifyPulls != c.verify {
				t.Errorf("the Jobs are told %+v", o)
			}
		})
	}
}

// What the values say of certificates and credentials comes to the hook, by way of
// the Jobs.
func TestValuesAboutCertificatesReachTheHook(t *testing.T) {
	pki := func(mode state.PKIMode) state.PKI {
		return state.PKI{Mode: mode, LeafLifetime: state.Duration(8760 * time.Hour),
			CALifetime: state.Duration(43800 * time.Hour), ClusterDomain: "cluster.local"}
	}
	shorter, existing, issuer := pki(state.PKIInternal), pki(state.PKIExistingSecret), pki(state.PKICertManager)
	shorter.LeafLifetime, shorter.CALifetime, shorter.ClusterDomain = state.Duration(10*time.Minute),
		state.Duration(time.Hour), "example.org"
	existing.Existing = &state.ExistingSecrets{Server: "a", Node: "b", Push: "c", CA: "d"}
	issuer.Issuer = &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	for name, c := range map[string]struct {
		values map[string]any
		want   state.PKI
		source state.Source
		secret string
	}{
		"nothing": {nil, pki(state.PKIInternal), state.SourceDefault, ""},
		"lifetimes": {map[string]any{
			"clusterDomain": "example.org",
			"pki": map[string]any{"mode": "internal", "lifetime": map[string]any{"certificate": "10m",
				"ca": "1h"}},
		}, shorter, state.SourceValue, ""},
		"existing Secrets": {map[string]any{
			"pki": map[string]any{"mode": "existingSecret", "existingSecret": map[string]any{"server": "a", "node": "b",
				"push": "c", "ca": "d"}},
			"auth": map[string]any{"existingSecret": "mine"},
		}, existing, state.SourceValue, "mine"},
		"an issuer": {map[string]any{
			"pki": map[string]any{"mode": "certManager",
				"certManager": map[string]any{"issuerRef": map[string]any{"name": "corp", "kind": "ClusterIssuer"}}},
		}, issuer, state.SourceValue, ""},
		"an issuer of our own": {map[string]any{"pki": map[string]any{"mode": "certManager"}}, pki(state.PKICertManager),
			state.SourceValue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "zarf"}}
			result, _, err := runCarried(t, c.values, namespace)
			if err != nil {
				t.Fatal(err)
			}
			o := result.Settings
			o.PKI.ServeTLS = false // not about certificates' origin
			if diff := cmp.Diff(c.want, o.PKI.PKI); diff != "" || o.PKI.Source != c.source || o.Push.Secret != c.secret {
				t.Errorf("decided by %s, credential of %q (-want +got):\n%s", o.PKI.Source, o.Push.Secret, diff)
			}
			if name != "existing Secrets" {
				return
			}
			// They cannot be in a namespace that is not there.
			_, phases, err := runCarried(t, c.values)
			if _, blocked := errors.AsType[*install.Blocked](err); !blocked || len(phases) > 0 {
				t.Errorf("without the namespace: the phases were %q, error %v", phases, err)
			}
		})
	}
}
