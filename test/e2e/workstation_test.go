package e2e

import (
	"bytes"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

// TestWorkstation installs from this machine, on nodes that hold nothing but the
// pause image. Helm goes on from there: its Jobs' image comes from the registry.
func TestWorkstation(t *testing.T) {
	w := ownCluster(t, "e2e-workstation", layout{bare: true})
	must(t, "the nodes hold only pause", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyPause(t, node)
		}
	})
	must(t, "init-hook install --registry-proxy", func(t *testing.T) {
		w.mustInstall(t, "--registry-proxy")
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "both nodes pull", func(t *testing.T) { w.pullEverywhere(t, w.pushHello(t)) })
	must(t, "init-hook status is content", func(t *testing.T) {
		w.isHealthy(t)
		_, text := w.status(t)
		t.Logf("it says:\n%s", text)
	})
	must(t, "the release is an ordinary one", func(t *testing.T) {
		list := output(t, w.command(t, w.helm, "list", "-n", namespace, "-o", "json"))
		if !strings.Contains(list, `"name":"`+release+`"`) || !strings.Contains(list, `"status":"deployed"`) {
			t.Errorf("helm list says %s", list)
		}
	})
	must(t, "helm upgrade with the chart from disk switches to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		w.isHealthy(t)
	})
	must(t, "another pull credential is taken at once, and the former is not", func(t *testing.T) {
		former := w.pullSecret(t).Data["password"]
		output(t, w.command(t, w.hook, "credentials", "rotate", "--pull"))
		if bytes.Equal(former, w.pullSecret(t).Data["password"]) {
			t.Error("the password is the same")
		}
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		if out, err := w.onNode(t, w.nodes[0], "crictl", "pull", "--creds", "zarf-pull:"+string(former), w.address+"/e2e/hello:1"); err == nil {
			t.Errorf("the former password still pulls: %s", out)
		}
	})
	must(t, "init-hook install without a mode keeps it and restarts nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { w.mustInstall(t) })
		if s := w.saved(t); s.Current == nil || s.Current.Mode != state.ModeNodePort {
			t.Errorf("the state is %s", mustJSON(s))
		}
	})
	must(t, "helm uninstall leaves nothing but the volume", w.uninstall)
}
