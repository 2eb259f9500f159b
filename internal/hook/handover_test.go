package hook_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestProxiesHandOverToAChangedProgram(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.hook.Programs = programs{large: true}
		caches(b)
		b.slow = map[string]time.Duration{"proxy-n2": 30 * time.Second}
		b.upgrade(state.ModeProxy)
		b.hook.Programs = programs{}
		b.mustPrepare() // no template of the chart changes
		if b.get("configmaps", "zarf-registry-payload-registry-node-amd64-01") != nil {
			t.Error("a chunk of the previous, larger program is left")
		}
		b.forget()
		b.mustFinish()
		b.mustLog("2 proxies run it, 2 of them changed to it")
		for _, pod := range []string{"proxy-n1", "proxy-n2", cachePod} {
			if !strings.Contains(strings.Join(b.writes(), "\n"), "patch pods "+pod) {
				t.Errorf("the kubelet of %s was not asked to show the program: %q", pod, b.writes())
			}
		}
		b.checkFinished()

		b.forget()
		b.mustPrepare()
		b.mustFinish()
		if strings.Contains(strings.Join(b.writes(), "\n"), "patch pods proxy") {
			t.Errorf("an unchanged program was handed over: %q", b.writes())
		}
	})
}

// The loader keeps the previous program if the new one does not become ready.
func TestAProxyThatKeepsThePreviousProgramFailsFinish(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.hook.Programs = programs{large: true}
		b.upgrade(state.ModeProxy)
		b.hook.Programs = programs{}
		b.deaf = map[string]bool{"proxy-n2": true}
		b.mustPrepare() // no template of the chart changes
		err := b.hook.Finish(b.Context())
		b.mustFail(err, false, "waiting for the proxies to run the new program",
			"pod zarf/proxy-n2: it runs the previous program", "the log of each pod")
		if strings.Contains(err.Error(), "proxy-n1") {
			t.Errorf("%v", err)
		}
		b.deaf = nil
		b.mustPrepare()
		b.mustFinish()
		b.checkFinished()
	})
}

func TestProxiesThatCannotBeAskedHoldUpNothing(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		forbidden := errors.New("tunnels are forbidden")
		b.mute = map[string]error{"proxy-n1": forbidden, "proxy-n2": forbidden}
		begin := time.Now()
		b.upgrade(state.ModeProxy)
		checkTook(t, begin, 0, time.Minute)
		b.mustLog("tunnels are forbidden")
	})
}
