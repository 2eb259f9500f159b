package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
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
	text := fmt.Sprintf("%d, %d failed, %d of them broken, slowest %.2f s, longest gap %.2f s", c.Attempts, c.Failures,
		c.Broken, c.Longest.Seconds(), c.Gap.Seconds())
	if c.First != "" {
		text += ", first failure " + c.First
	}
	return text
}

// include adds the count of a node.
func (c *count) include(node string, other count) {
	c.Attempts, c.Failures, c.Broken = c.Attempts+other.Attempts, c.Failures+other.Failures, c.Broken+other.Broken
	c.Longest, c.Gap = max(c.Longest, other.Longest), max(c.Gap, other.Gap)
	if other.First != "" {
		c.First = cmp.Or(c.First, "on "+node+" at "+other.First)
	}
}

// report is the result of one of the test program's pull loops.
type report struct{ Pulls, Connects, Slow count }

// tolerated tells which failures of pulls, connects and slow pulls a loop accepts.
type tolerated int

const (
	nothingFails tolerated = 0
	refusals     tolerated = 1 // connections may be refused
	losses       tolerated = 2 // a response that has begun may not end
)

// pullLoop pulls an image on every node over HTTP, several times a second and also slowly, until the
// returned function is called, which fails the test if anything failed.
func (w *world) pullLoop(t *testing.T, image string) (stop func()) {
	t.Helper()
	return w.loop(t, nothingFails, w.pullCredential(t), func(stopFile string) []string {
		return []string{"pull", "http://" + w.address, image, image, stopFile, "100ms"}
	})
}

// freshImages are the images that freshLoop pulls. There are enough for a minute without pulling
// one twice. A pull takes 60 ms of CPU time; connects, which take a hundredth, find short refusals.
const (
	freshImages = "e2e/fresh:tag"
	fresh       = 60
	freshPause  = "500ms"
	slowImage   = "e2e/slow:1"
)

// freshLoop makes the container runtime of every node pull images that it does not have, with a
// pause in between, while a slow client pulls another one. The returned function fails the test on
// failures that are not accepted. pushFresh pushes the images.
func (w *world) freshLoop(t *testing.T, accept tolerated) (stop func()) {
	t.Helper()
	return w.loop(t, accept, w.pullCredential(t), func(stopFile string) []string {
		return []string{"crictl", w.address + "/" + freshImages, strconv.Itoa(fresh), slowImage, stopFile, freshPause}
	})
}

// pullCredential returns the environment of loops with the credential for pulls through the node port, if there
// is one.
func (w *world) pullCredential(t *testing.T) []string {
	t.Helper()
	secret := w.pullSecret(t)
	if secret == nil {
		return nil
	}
	return []string{"CRICTL_CREDS=" + string(secret.Data["username"]) + ":" + string(secret.Data["password"])}
}

// underLoop runs a step as must does, while freshLoop pulls.
func (w *world) underLoop(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	during(t, name, func(t *testing.T) (stop func()) { return w.freshLoop(t, nothingFails) }, f)
}

// during runs a step as must does, while a loop pulls.
func during(t *testing.T, name string, loop func(t *testing.T) (stop func()), f func(t *testing.T)) {
	t.Helper()
	must(t, name, func(t *testing.T) {
		stop := loop(t)
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

// loop runs the test program on every node until the returned function is called, which reports the
// attempts on all nodes together and fails the test on failures that are not accepted. It returns when
// every node has pulled once.
func (w *world) loop(t *testing.T, accept tolerated, env []string, args func(stopFile string) []string) (stop func()) {
	t.Helper()
	reports := w.loopReports(t, env, args)
	return func() {
		t.Helper()
		var pulls, connects, slow count
		for node, r := range reports() {
			pulls.include(node, r.Pulls)
			connects.include(node, r.Connects)
			slow.include(node, r.Slow)
		}
		for _, total := range []struct {
			what string
			count
		}{{"pulls", pulls}, {"connects", connects}, {"slow pulls", slow}} {
			if total.Attempts == 0 {
				continue
			}
			t.Logf("figure: %s: %s", total.what, total.count)
			if accept&losses == 0 && total.Broken > 0 || accept&refusals == 0 && total.Failures > total.Broken {
				t.Errorf("%s: %s", total.what, total.count)
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
	nodes := slices.Clone(w.nodes)
	outs := make([]string, len(nodes))
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
	t.Cleanup(func() {
		end()
		if t.Failed() {
			keepRecords(t, nodes, outs)
		}
	})
	eventually(t, "every node to pull", func() error {
		begun, err := filepath.Glob(stopFile + ".begun-*")
		if err != nil || len(begun)+len(ended) < len(w.nodes) {
			return fmt.Errorf("%d nodes have pulled (%v)", len(begun), err)
		}
		return nil
	})
	return func() map[string]report {
		t.Helper()
		require.NoError(t, end())
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

// keepRecords keeps what the loops of a failed step printed, which lists each failure.
func keepRecords(t *testing.T, nodes, outs []string) {
	dir := failures(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Log(err)
	}
	for i, out := range outs {
		file, err := os.CreateTemp(dir, "loop-"+nodes[i]+"-*.json")
		if err == nil {
			_, err = file.WriteString(out)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Logf("keeping the record of a loop: %v", err)
		}
	}
}
