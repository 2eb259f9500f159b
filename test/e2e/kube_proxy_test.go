package e2e

import (
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestKubeProxyVersions switches modes with kube-proxy 1.34, which selects EndpointSlices by the label
// service.kubernetes.io/service-proxy-name too: it may see them later than the Service.
func TestKubeProxyVersions(t *testing.T) {
	onlyInLongRuns(t)
	program := strings.TrimSpace(run(t, built(t, "E2E_TESTCLUSTER"), "tool", "kube-proxy-1.34"))
	w := ownCluster(t, "e2e-kube-proxy", layout{open: true, args: []string{"--kube-proxy-program", program}})
	must(t, "install in nodeport mode", func(t *testing.T) {
		if out, err := w.onNode(t, w.nodes[0], program, "--version"); err != nil || !strings.Contains(out, "v1.34.") {
			t.Fatalf("%v: %s", err, out)
		}
		w.helmChart(t, "install", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pushFresh(t)
		w.portIsOurs(t)
	})
	for _, hostNetwork := range []string{"false", "true"} {
		set := "--set=proxy.hostNetwork=" + hostNetwork
		w.underLoop(t, "to proxy mode, proxy.hostNetwork="+hostNetwork, func(t *testing.T) {
			w.helmChart(t, "upgrade", proxyMode, set)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		must(t, "no other Service gets the port", w.portIsOurs)
		w.underLoop(t, "to nodeport mode, proxy.hostNetwork="+hostNetwork, func(t *testing.T) {
			w.helmChart(t, "upgrade", nodePortMode, set)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
	}
}
