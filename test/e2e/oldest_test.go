package e2e

import (
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
)

// TestOldestKubernetes installs, pulls and switches modes on the oldest supported version of Kubernetes.
func TestOldestKubernetes(t *testing.T) {
	w := ownCluster(t, "e2e-oldest", layout{open: true, args: strings.Fields(scenarios.Oldest)})
	must(t, "helm install refuses to rewrite references where Kubernetes cannot", func(t *testing.T) {
		w.helmChartFails(t, []string{"rewrite.enabled: this cluster serves no MutatingAdmissionPolicy"}, "install",
			nodePortMode, "--set=rewrite.enabled=true")
		w.nothingLeft(t)
	})
	must(t, "helm install in nodeport mode", func(t *testing.T) {
		w.helmChart(t, "install", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pushFresh(t)
		w.pullEverywhere(t, w.pushHello(t))
	})
	w.underLoop(t, "helm upgrade to proxy mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "in proxy mode no other Service gets the port", func(t *testing.T) {
		w.portIsOurs(t)
		w.isHealthy(t)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
	})
	w.underLoop(t, "helm upgrade to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
}
