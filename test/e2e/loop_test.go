package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// count is what one of the test program's loops counted.
type count struct {
	Attempts, Failures int
	Broken             int // responses that began and did not end, and timeouts
	First              string
	Longest, Gap       time.Duration
	Bytes              int64
}

func (c count) String() string {
	return fmt.Sprintf("%d, %d failed, slowest %.2f s, longest gap %.2f s", c.Attempts, c.Failures, c.Longest.Seconds(),
		c.Gap.Seconds())
}

// report is the result of one of the test program's pull loops.
type report struct{ Pulls, Connects, Slow count }

// pullLoop pulls an image on every node over HTTP, several times a second, until the returned
// function is called, which fails the test if any pull failed.
func (w *world) pullLoop(t *testing.T, image string) (stop func()) {
	t.Helper()
	return w.loop(t, nil, func(stopFile string) []string {
		return []string{"pull", "http://" + w.address, image, "", stopFile, "100ms"}
	})
}

// freshImages are the images that freshLoop pulls. There are enough for a minute without pulling
// one twice.
const (
	freshImages = "e2e/fresh:tag"
	fresh       = 200
	slowImage   = "e2e/slow:1"
)

// freshLoop makes the container runtime of every node pull images that it does not have, with a
// pause in between, while a slow client pulls another one. pushFresh pushes them.
func (w *world) freshLoop(t *testing.T, pause string) (stop func()) {
	t.Helper()
	var env []string
	if secret := w.pullSecret(t); secret != nil {
		env = []string{"CRICTL_CREDS=" + string(secret.Data["username"]) + ":" + string(secret.Data["password"])}
	}
	return w.loop(t, env, func(stopFile string) []string {
		return []string{"crictl", w.address + "/" + freshImages, strconv.Itoa(fresh), slowImage, stopFile, pause}
	})
}

// underLoop runs a step as must does, while freshLoop pulls.
func (w *world) underLoop(t *testing.T, name, pause string, f func(t *testing.T)) {
	t.Helper()
	must(t, name, func(t *testing.T) {
		stop := w.freshLoop(t, pause)
		begin := time.Now()
		f(t)
		t.Logf("figure: %s took %.1f s", name, time.Since(begin).Seconds())
		time.Sleep(2 * time.Second) // late failures count too
		stop()
	})
}

// pushFresh pushes the images that freshLoop pulls.
func (w *world) pushFresh(t *testing.T) {
	t.Helper()
	begin := time.Now()
	w.push(t, makeTinyArchive(t, "example.com/"+freshImages, fresh))
	t.Logf("figure: %d tiny images pushed in %.1f s", fresh, time.Since(begin).Seconds())
	w.push(t, w.makeArchive(t, "example.com/"+slowImage, 4<<20))
}

// loop runs the test program on every node until the returned function is called, which fails the
// test if any pull failed. It returns when every node has pulled once.
func (w *world) loop(t *testing.T, env []string, args func(stopFile string) []string) (stop func()) {
	t.Helper()
	reports := w.loopReports(t, env, args)
	return func() {
		t.Helper()
		for node, r := range reports() {
			t.Logf("figure: on %s, pulls: %s", node, r.Pulls)
			t.Logf("figure: on %s, connects: %s", node, r.Connects)
			if r.Slow.Attempts > 0 {
				t.Logf("figure: on %s, slow pulls: %s", node, r.Slow)
			}
			if r.Pulls.Failures > 0 {
				t.Errorf("pull loop on %s: %d of %d failed, first: %s", node, r.Pulls.Failures, r.Pulls.Attempts, r.Pulls.First)
			}
			for what, c := range map[string]count{"connects": r.Connects, "slow pulls": r.Slow} {
				if w.strict && c.Failures > 0 {
					t.Errorf("%s on %s: %d of %d failed, first: %s", what, node, c.Failures, c.Attempts, c.First)
				}
			}
		}
	}
}

// loopReports is like loop, but the returned function returns the report of each node.
func (w *world) loopReports(t *testing.T, env []string,
	args func(stopFile string) []string) (stop func() map[string]report) {
	t.Helper()
	w.testClusterOnly(t)
	stopFile := filepath.Join(t.TempDir(), "stop")
	outs := make([]string, len(w.nodes))
	errs := make([]error, len(w.nodes))
	var wait sync.WaitGroup
	ended := make(chan struct{}, len(w.nodes))
	for i, node := range w.nodes {
		cmd := w.command(t, w.testcluster, append([]string{"exec", "--name", w.name, node, "--", w.tool},
			args(stopFile)...)...)
		cmd.Env = append(cmd.Env, env...)
		wait.Go(func() {
			outs[i], _, errs[i] = try(cmd)
			ended <- struct{}{}
		})
	}
	end := sync.OnceValue(func() error {
		err := os.WriteFile(stopFile, nil, 0o600)
		wait.Wait()
		return err
	})
	// End the loops even if the test fails in between.
	t.Cleanup(func() { end() })
	eventually(t, 2*time.Minute, "every node to pull", func() error {
		begun, err := filepath.Glob(stopFile + ".begun-*")
		if err != nil || len(begun)+len(ended) < len(w.nodes) {
			return fmt.Errorf("%d nodes have pulled (%v)", len(begun), err)
		}
		return nil
	})
	return func() map[string]report {
		t.Helper()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		reports := map[string]report{}
		for i, node := range w.nodes {
			var r report
			if err := errors.Join(errs[i], json.Unmarshal([]byte(outs[i]), &r)); err != nil {
				t.Errorf("pull loop on %s: %v: %s", node, err, outs[i])
				continue
			}
			if r.Pulls.Attempts < 5 {
				t.Errorf("pull loop on %s made only %d pulls", node, r.Pulls.Attempts)
			}
			reports[node] = r
		}
		return reports
	}
}
