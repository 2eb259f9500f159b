package e2e

import (
	"slices"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// TestExternal uses an external registry before and after the chart's own.
func TestExternal(t *testing.T) {
	const external = "registry.example.com/team"
	w := ownCluster(t, "e2e-external", layout{open: true})
	remembered := func(t *testing.T, decidedBy state.Source, leaves ...string) {
		t.Helper()
		s := w.saved(t)
		if s.Phase != state.PhaseReady || s.Current == nil || s.Current.Mode != state.ModeExternal ||
			s.Current.Address != external || s.Desired.DecidedBy != decidedBy {
			t.Errorf("the state is %s", mustJSON(s))
		}
		if report, text := w.status(t); !report.Healthy {
			t.Errorf("not healthy: %s", text)
		}
		if made := w.made(t); !slices.Equal(made, leaves) {
			t.Errorf("objects: %v, want %v", made, leaves)
		}
		for _, node := range w.nodes {
			if w.dial(t, node, w.address) == nil {
				t.Errorf("something answers at %s of node %s", w.address, node)
			}
		}
	}

	w.nodePortNeedsProxy(t)
	must(t, "helm install creates only the state", func(t *testing.T) {
		w.helmChart(t, "install", "--set=registryURL=https://"+external+"/")
		remembered(t, state.SourceValue, "secret/"+release+"-state")
	})
	must(t, "registryURL together with registryProxy is refused", func(t *testing.T) {
		w.helmChartFails(t, []string{"registryURL", "registryProxy"}, "upgrade", proxyMode, "--set=registryURL="+external)
		remembered(t, state.SourceValue, "secret/"+release+"-state")
	})
	must(t, "helm upgrade without either keeps the external registry", func(t *testing.T) {
		w.helmChart(t, "upgrade", noMode)
		remembered(t, state.SourceState, "secret/"+release+"-state")
	})
	must(t, "helm upgrade to the chart's own registry", func(t *testing.T) {
		w.helmChart(t, "upgrade", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.pullEverywhere(t, w.pushHello(t))
	})
	w.loopbackOnly(t)
	must(t, "helm upgrade back to the external one leaves the volume and the Secrets", func(t *testing.T) {
		w.helmChart(t, "upgrade", "--set=registryURL="+external)
		remembered(t, state.SourceValue, "secret/"+release+"-auth", "secret/"+release+"-ca",
			"secret/"+release+"-credentials", "secret/"+release+"-node-tls", "secret/"+release+"-push-tls",
			"secret/"+release+"-server-tls", "secret/"+release+"-state", "persistentvolumeclaim/"+release)
	})
	must(t, "helm uninstall leaves only the volume", w.uninstall)
}
