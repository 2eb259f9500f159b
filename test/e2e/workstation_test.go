package e2e

import (
	"bytes"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/guide"
)

// TestWorkstation installs from this machine, on nodes that hold only the pause image. Later
// upgrades use Helm: the image of its Jobs comes from the registry. Then it follows the guide with a bundle.
func TestWorkstation(t *testing.T) {
	w := ownCluster(t, "e2e-workstation", layout{bare: true, open: true})
	must(t, "the nodes hold only pause", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyPause(t, node)
		}
	})
	must(t, "zarf-registry install --registry-proxy", func(t *testing.T) {
		w.mustInstall(t, "--registry-proxy")
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "both nodes pull", func(t *testing.T) { w.pullEverywhere(t, w.pushHello(t)) })
	must(t, "zarf-registry status reports a healthy cluster", func(t *testing.T) {
		w.isHealthy(t)
		_, text := w.status(t)
		t.Logf("output:\n%s", text)
	})
	must(t, "the release is an ordinary Helm release", func(t *testing.T) {
		list := output(t, w.command(t, w.helm, "list", "-n", namespace, "-o", "json"))
		if !strings.Contains(list, `"name":"`+release+`"`) || !strings.Contains(list, `"status":"deployed"`) {
			t.Errorf("helm list printed %s", list)
		}
	})
	must(t, "helm upgrade with the chart from disk switches to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		w.isHealthy(t)
	})
	must(t, "a new pull credential works at once, and the previous one no longer does", func(t *testing.T) {
		previous := w.pullSecret(t).Data["password"]
		output(t, w.command(t, w.hook, "credentials", "rotate", "pull"))
		if bytes.Equal(previous, w.pullSecret(t).Data["password"]) {
			t.Error("the password did not change")
		}
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		if out, err := w.onNode(t, w.nodes[0], "crictl", "pull", "--creds", "zarf-pull:"+string(previous),
			w.address+"/e2e/hello:1"); err == nil {
			t.Errorf("the previous password still pulls: %s", out)
		}
	})
	must(t, "zarf-registry install without a mode keeps it and restarts nothing", func(t *testing.T) {
		w.restartsNothing(t, func() { w.mustInstall(t) })
		if s := w.saved(t); s.Current == nil || s.Current.Mode != state.ModeNodePort {
			t.Errorf("the state is %s", mustJSON(s))
		}
	})
	must(t, "helm uninstall", w.helmUninstall)
	must(t, "the guide, with nothing but a bundle", func(t *testing.T) {
		w.follows(t, append(append([]string{"dev/release.md"}, guide.Pages...), "reference/helm.md")...)
	})
}
