package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// done is a completed step that init-hook logged.
type done struct {
	phase string // install, prepare or finish
	step  int    // counted from 1; 0 in the phase install, which is not numbered
	name  string
	at    time.Duration // since the start of the run
}

// installRun is one run of zarf-registry install.
type installRun struct {
	err   error
	text  string // stdout and stderr
	steps []done
	took  time.Duration
}

// install runs zarf-registry install. It calls onStep, unless that is nil, for each completed step,
// with the command so that it can be killed.
func (w *world) install(t *testing.T, onStep func(*exec.Cmd, done), args ...string) installRun {
	t.Helper()
	cmd := w.command(t, w.hook, append([]string{"install", "--log-format=json", "--timeout=4m", noRotation}, args...)...)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	begin := time.Now()
	require.NoError(t, cmd.Start())
	var r installRun
	for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
		r.text += scanner.Text() + "\n"
		var line struct{ Msg, Phase, Step string }
		if json.Unmarshal(scanner.Bytes(), &line) != nil || line.Msg != "step done" {
			continue
		}
		d := done{phase: line.Phase, name: line.Step, at: time.Since(begin)}
		if number, _, counted := strings.Cut(line.Step, "/"); counted {
			if d.step, err = strconv.Atoi(number); err != nil {
				t.Fatalf("step %q: %v", line.Step, err)
			}
		}
		r.steps = append(r.steps, d)
		if onStep != nil {
			onStep(cmd, d)
		}
	}
	r.err, r.took = cmd.Wait(), time.Since(begin)
	r.text += stdout.String()
	return r
}

// mustInstall runs zarf-registry install, which must succeed.
func (w *world) mustInstall(t *testing.T, args ...string) installRun {
	t.Helper()
	r := w.install(t, nil, args...)
	if r.err != nil {
		t.Fatalf("zarf-registry install %v: %v\n%s", args, r.err, r.text)
	}
	t.Logf("figure: zarf-registry install %s returned after %.1f s, including the verified pull on every node",
		strings.Join(args, " "), r.took.Seconds())
	return r
}

// apply installs or upgrades the release to exactly these values with init-hook, as helm upgrade --install does. It
// takes half of the time, because no Jobs run: scenarios use Helm where its Jobs are the subject, or their rights.
func (w *world) apply(t *testing.T, args ...string) {
	t.Helper()
	w.mustInstall(t, slices.Concat([]string{"--namespace", w.namespace, "--reset-values"}, w.sets, args)...)
}

// status returns the output of zarf-registry status, as JSON and as text. The exit code must agree with
// it.
func (w *world) status(t *testing.T) (status.Report, string) {
	t.Helper()
	var report status.Report
	out, errOut, err := try(w.command(t, w.hook, "status", "-n", w.namespace, "--output", "json"))
	if e := json.Unmarshal([]byte(out), &report); e != nil {
		t.Fatalf("zarf-registry status: %v, %v: %s%s", err, e, out, errOut)
	}
	text, textErrOut, textErr := try(w.command(t, w.hook, "status", "-n", w.namespace))
	for _, r := range []struct { // the cluster may have changed in between
		healthy     bool
		err         error
		out, errOut string
	}{{report.Healthy, err, out, errOut}, {strings.Contains(text, ": healthy\n"), textErr, text, textErrOut}} {
		if exit, _ := r.err.(*exec.ExitError); (exit != nil && exit.ExitCode() == 4) == r.healthy {
			t.Errorf("healthy is %t, exit code: %v: %s%s", r.healthy, r.err, r.out, r.errOut)
		}
	}
	return report, text
}

// isHealthy fails unless zarf-registry status reports a healthy cluster.
func (w *world) isHealthy(t *testing.T) {
	t.Helper()
	report, text := w.status(t)
	if !report.Healthy || !strings.Contains(text, ": healthy\n") {
		t.Errorf("not healthy: %s", text)
	}
	for _, node := range report.Nodes {
		if !node.Endpoint || !node.Verified {
			t.Errorf("node %s: %s", node.Name, mustJSON(node))
		}
	}
	if len(report.Nodes) != len(w.nodes) {
		t.Errorf("status lists %d nodes of %d", len(report.Nodes), len(w.nodes))
	}
}

func (d done) String() string {
	return fmt.Sprintf("%s %s after %.1f s", d.phase, d.name, d.at.Seconds())
}

// becomesHealthy waits until status reports a healthy release.
func (w *world) becomesHealthy(t *testing.T) {
	t.Helper()
	eventually(t, "a healthy release", func() error {
		if report, text := w.status(t); !report.Healthy {
			return errors.New(text)
		}
		return nil
	})
}
