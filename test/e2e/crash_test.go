package e2e

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// A target is a mode to switch to.
type target struct {
	mode state.Mode
	flag string // of init-hook
	set  string // of helm
}

var (
	toProxy    = target{state.ModeProxy, "--registry-proxy=true", proxyMode}
	toNodePort = target{state.ModeNodePort, "--registry-proxy=false", nodePortMode}
)

// other returns the mode that the cluster is not in.
func (w *world) other(t *testing.T) target {
	t.Helper()
	if s := w.saved(t); s.Current != nil && s.Current.Mode == state.ModeProxy {
		return toNodePort
	}
	return toProxy
}

// TestCrash kills, at every stage of a mode switch, a component that takes part in it. Each time
// the next run must complete the switch, and no pull may fail in between.
func TestCrash(t *testing.T) {
	w := ownCluster(t, "e2e-crash", layout{open: true})
	runs := map[state.Mode]installRun{}
	must(t, "install, and switch modes twice undisturbed", func(t *testing.T) {
		w.mustInstall(t, toNodePort.flag)
		w.pushFresh(t)
		for _, to := range []target{toProxy, toNodePort} {
			runs[to.mode] = w.mustInstall(t, to.flag)
		}
	})
	must(t, "prepare and finish killed", func(t *testing.T) { testKilled(t, w, runs) })
	paused, killed := []string{"prepare", "finish"}, []string{"prepare", "finish"}
	if !long() {
		paused, killed = paused[1:], killed[:1]
		t.Logf("SHORTENED: the API server is paused during %v, and the pod of %v is killed; TestPort kills finish's",
			paused, killed)
	}
	for _, phase := range paused {
		must(t, "the API server paused for 20 s during "+phase, func(t *testing.T) { testAPIPaused(t, w, phase, runs) })
	}
	for _, phase := range killed {
		must(t, "the pod of the Job "+phase+" killed under helm upgrade", func(t *testing.T) { testJobKilled(t, w, phase) })
	}
	must(t, "the registry killed during a switch to proxy mode", func(t *testing.T) { testRegistryKilled(t, w) })
}

// A moment is a time in a run: a delay after a step has completed.
type moment struct {
	after done
	delay time.Duration
}

// moments chooses n moments of a phase from an undisturbed run: most when a step has just
// completed, and every fifth at random, weighted by the duration of the steps.
func moments(t *testing.T, run installRun, phase string, n int) []moment {
	t.Helper()
	// The completed steps that are followed by one of the phase. Applying the chart counts as the end
	// of prepare.
	var befores []done
	var end time.Duration
	for i := 1; i < len(run.steps); i++ {
		if next := run.steps[i]; next.phase == phase || phase == "prepare" && next.name == "apply the chart" {
			befores, end = append(befores, run.steps[i-1]), next.at
		}
	}
	if len(befores) < 5 {
		t.Fatalf("phase %s has only %d steps: %v", phase, len(befores), run.steps)
	}
	var chosen []moment
	for i := range n {
		if i%5 != 2 {
			chosen = append(chosen, moment{after: befores[i*len(befores)/n]})
			continue
		}
		at := befores[0].at + rand.N(end-befores[0].at)
		m := moment{after: befores[0]}
		for _, b := range befores {
			if b.at <= at {
				m = moment{b, at - b.at}
			}
		}
		chosen = append(chosen, m)
	}
	return chosen
}

func (m moment) String() string {
	return fmt.Sprintf("%s %s + %.2f s", m.after.phase, m.after.name, m.delay.Seconds())
}

// at returns a callback that calls f at that moment of a run.
func (m moment) at(f func(*exec.Cmd)) func(*exec.Cmd, done) {
	return func(cmd *exec.Cmd, d done) {
		if d.phase == m.after.phase && d.name == m.after.name {
			// Not blocking: the run's output must be read meanwhile.
			time.AfterFunc(m.delay, func() { f(cmd) })
		}
	}
}

// testKilled sends SIGKILL to zarf-registry install during prepare, and to the run that continues from
// there during finish. The third run must complete the switch.
func testKilled(t *testing.T, w *world, runs map[state.Mode]installRun) {
	stop := w.freshLoop(t, nothingFails)
	defer stop()
	// Of ten moments of each phase, every other one for each direction.
	const points = 10
	rounds := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	if !long() {
		rounds = []int{4}
		t.Logf("SHORTENED: killed at %d of %d moments; make e2e-long tries all of them", len(rounds), points)
	}
	for _, i := range rounds {
		to := w.other(t)
		t.Run(fmt.Sprintf("%d, to %s mode", i+1, to.mode), func(t *testing.T) {
			for _, phase := range []string{"prepare", "finish"} {
				// Swapping neighbors kills the switch to proxy mode when the node port has just been removed.
				m := moments(t, runs[to.mode], phase, points)[i^1]
				r := w.install(t, m.at(func(cmd *exec.Cmd) { cmd.Process.Kill() }), to.flag)
				// A run that was killed while it applied the chart leaves a pending revision. This is what the message of the
				// next run says.
				w.kubectlRun(t, "delete", "secret", "-n", namespace, "-l",
					"owner=helm,status in (pending-install,pending-upgrade,pending-rollback)")
				s := w.saved(t)
				t.Logf("%s: killed after %.1f s, at %s: phase %s, desired is %s", phase, r.took.Seconds(), m, s.Phase,
					s.Desired.Mode)
				if !slices.ContainsFunc(r.steps, func(d done) bool { return d.phase == m.after.phase && d.name == m.after.name }) {
					t.Fatalf("the run ended before that moment: %v: %s", r.err, r.text)
				}
				if r.err == nil && m.delay == 0 {
					t.Error("the run completed before it was killed")
				}
			}
			w.converges(t, to)
		})
	}
}

// converges runs zarf-registry install again, which must complete the switch.
func (w *world) converges(t *testing.T, to target) {
	t.Helper()
	w.mustInstall(t, to.flag)
	w.isIn(t, to.mode, state.SourceValue)
	w.isHealthy(t)
}

// testAPIPaused pauses the API server. The interrupted run may succeed or fail.
func testAPIPaused(t *testing.T, w *world, phase string, runs map[state.Mode]installRun) {
	stop := w.freshLoop(t, nothingFails)
	defer stop()
	to := w.other(t)
	m := moments(t, runs[to.mode], phase, 3)[1]
	frozen := make(chan error, 1)
	r := w.install(t, m.at(func(*exec.Cmd) { frozen <- w.freezeAPI(20 * time.Second) }), to.flag)
	t.Logf("paused at %s; the run ended after %.1f s with %v", m, r.took.Seconds(), r.err)
	require.NoError(t, <-frozen)
	w.converges(t, to)
}

// testJobKilled kills the pod of a hook Job. The Job's next pod must continue, unnoticed by Helm.
func testJobKilled(t *testing.T, w *world, step string) {
	stop := w.freshLoop(t, nothingFails)
	defer stop()
	to := w.other(t)
	upgrade := w.chart(t, "upgrade", to.set)
	ended := make(chan error, 1)
	var out, errOut string
	go func() {
		var err error
		out, errOut, err = try(upgrade)
		ended <- err
	}()
	pod := w.waitForJobPod(t, step)
	time.Sleep(500 * time.Millisecond)
	w.deletePod(t, pod.Name, 0)
	if err := <-ended; err != nil {
		t.Errorf("helm upgrade failed: %v: %s%s", err, out, errOut)
		w.helmChart(t, "upgrade", to.set)
	}
	w.isIn(t, to.mode, state.SourceValue)
	w.isHealthy(t)
}

// testRegistryKilled kills the registry's pod when kube-proxy has left the node port to the proxies. They
// must hold pulls until the next pod is ready. Responses that began through the node port are lost.
func testRegistryKilled(t *testing.T, w *world) {
	if w.other(t) == toNodePort {
		w.mustInstall(t, toNodePort.flag)
	}
	stop := w.freshLoop(t, losses)
	defer stop()
	var addresses []string
	for _, node := range w.nodes {
		addresses = append(addresses, w.nodeAddresses(t, node)...)
	}
	killed := w.onceServed(t, false, func() error {
		for end := time.Now().Add(patience); len(w.scan(t, "cp", "31999", addresses...)) > 0; {
			if time.Now().After(end) {
				return fmt.Errorf("waited %s for kube-proxy to leave the node port", patience)
			}
			time.Sleep(100 * time.Millisecond)
		}
		now := int64(0)
		return w.client.CoreV1().Pods(namespace).DeleteCollection(t.Context(),
			metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release +
				",app.kubernetes.io/component=registry"})
	})
	r := w.install(t, nil, toProxy.flag)
	require.NoError(t, <-killed)
	t.Logf("the run during which the registry was killed ended after %.1f s with %v", r.took.Seconds(), r.err)
	w.converges(t, toProxy)
}
