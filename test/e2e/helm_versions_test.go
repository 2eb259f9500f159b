package e2e

import (
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestHelmVersions installs, switches and rolls back with older versions of Helm than TestHelm.
func TestHelmVersions(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-helm-versions", layout{open: true})
	for i, version := range []string{"3.18", "3.21"} {
		w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", "helm-"+version))
		with := "Helm " + version + ": "
		must(t, with+"install in nodeport mode", func(t *testing.T) {
			w.helmChart(t, "install", nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			if i == 0 { // the volume is retained
				w.pushFresh(t)
			}
		})
		w.underLoop(t, with+"switch to proxy mode", func(t *testing.T) {
			w.helmChart(t, "upgrade", proxyMode)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		w.underLoop(t, with+"a switch to nodeport mode that fails is rolled back", func(t *testing.T) {
			w.helmChartFails(t, []string{"pre-upgrade"}, "upgrade", nodePortMode, "--set=auth.existingSecret=missing-secret")
			w.rollback(t, "2")
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		w.underLoop(t, with+"switch to nodeport mode", func(t *testing.T) {
			w.helmChart(t, "upgrade", nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
		w.underLoop(t, with+"rollback to proxy mode", func(t *testing.T) {
			w.rollback(t, "2")
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		w.underLoop(t, with+"rollback to nodeport mode", func(t *testing.T) {
			w.rollback(t, "1")
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
		must(t, with+"uninstall leaves only the volume", w.uninstall)
	}
}
