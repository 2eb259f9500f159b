package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
)

// soaking is a run of TestSoak.
type soaking struct {
	w       *world
	seed    uint64
	atMost  time.Duration
	began   time.Time
	account *soak.Account

	proxy    bool // the mode that the cluster is in
	watchers map[string]*companion
	sniffer  *companion
	pusher   *pusher
	noise    []byte // the marker in images
	steps    map[string][]outcome

	mu       sync.Mutex
	timeline []string
	noted    int // failures that the history names since the last step
	seen     []soak.Seen
	secret   time.Time // since when nothing may be seen between nodes; zero: it may
}

// An outcome is what one step led to.
type outcome struct {
	mended, whole      time.Duration // how long it lasted, and then until everything worked
	pulls, pushes      int           // that failed
	longest            time.Duration // the slowest pull that succeeded
	attempted, pushing int
}

// TestSoak inflicts faults on a cluster of two or three nodes, in an order that a seed
// decides, while every node pulls and images are pushed. It is run by make soak, alone,
// because it measures how long things take to recover. docs/soak.md says what it checks.
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK_TIME") == "" {
		t.Skip("SKIPPED, NOTHING CHECKED: make soak runs it")
	}
	if os.Getenv("KUBECONFIG") != "" {
		t.Skip("SKIPPED, NOTHING CHECKED: this scenario needs a test cluster of its own; unset KUBECONFIG")
	}
	var err error
	atMost, short := 90*time.Second, os.Getenv("SOAK_TIME") == "short"
	if !short {
		if atMost, err = time.ParseDuration(os.Getenv("SOAK_TIME")); err != nil {
			t.Fatalf("SOAK_TIME: %v", err)
		}
	}
	seed := rand.Uint64N(1_000_000)
	if short {
		seed = soak.ShortSeed
	} else if text := os.Getenv("SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED: %v", err)
		}
	}
	s := &soaking{seed: seed, atMost: atMost, began: time.Now(), proxy: true, account: soak.NewAccount(), watchers: map[string]*companion{}, steps: map[string][]outcome{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("FAILED with seed %d; the same sequence again: make soak SOAK_SEED=%d SOAK_TIME=%s\nWhat was done:\n%s", seed, seed, os.Getenv("SOAK_TIME"), s.history())
		}
	})
	t.Logf("seed %d, faults for %s", seed, os.Getenv("SOAK_TIME"))

	// Images of some 400 KB, one a second or two, stay until the end, and so much again is
	// left free.
	size := 256<<20 + int64(atMost.Minutes()*float64(16<<20))
	// No fault is to last as long as a node may be silent.
	s.w = newWorld(t, "soak", layout{args: []string{"--node-grace", "50s", "--volumes-size", strconv.FormatInt(size, 10)}})
	must(t, "install in proxy mode, and begin to push and to pull", func(t *testing.T) { s.w.helmChart(t, "install", proxyMode) })
	s.begin(t)
	must(t, "undisturbed, everything works", func(t *testing.T) {
		s.recover(t, time.Now())
		s.inspect(t)
		s.allPorts(t)
		s.control(t)
	})

	var first []string
	if short {
		first = soak.Short
	}
	plan := soak.NewPlan(seed, s.w.nodes, first...)
	end := time.Now().Add(atMost)
	more := func(number int) bool {
		if short {
			return number <= len(first)
		}
		return time.Now().Before(end)
	}
	var burst []soak.Step
	begun := time.Now()
	for number := 1; !t.Failed() && more(number) || len(burst) > 0; number++ {
		step := plan.Next()
		if len(burst) == 0 {
			begun = time.Now()
		}
		burst = append(burst, step)
		ok := t.Run(fmt.Sprintf("%d: %s", number, step), func(t *testing.T) {
			s.note("%d: %s", number, step)
			s.account.Begin(step, time.Now())
			s.inflict(t, step)
			if step.Hurry {
				return
			}
			mended := time.Now()
			s.account.Mended(mended)
			took := s.recover(t, mended)
			s.judge(t, burst, outcome{mended: mended.Sub(begun), whole: took})
			s.inspect(t)
		})
		if !ok {
			break
		}
		if !step.Hurry {
			burst = nil
		}
	}
	if !t.Failed() {
		must(t, "in the end, everything works and nothing is lost", func(t *testing.T) {
			s.recover(t, time.Now())
			s.control(t)
			s.allPorts(t)
			s.finish(t)
		})
	}
	s.summary(t)
}

// note writes a line of the history, which a failure prints.
func (s *soaking) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeline = append(s.timeline, fmt.Sprintf("%7.1f s  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

// add counts an attempt. The history names the first that fail in each step.
func (s *soaking) add(a soak.Attempt) {
	s.account.Add(a)
	if a.Err == "" {
		return
	}
	s.mu.Lock()
	s.noted++
	first := s.noted <= 5
	s.mu.Unlock()
	if first {
		s.note("   %s", a)
	}
}

func (s *soaking) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.timeline, "\n")
}

// recover waits until everything works again, and returns how long that took.
func (s *soaking) recover(t *testing.T, mended time.Time) time.Duration {
	t.Helper()
	eventually(t, soak.Whole, "everything to work again", func() error {
		for _, node := range s.w.nodes {
			if !s.account.Works(node, mended) {
				return fmt.Errorf("node %s has not pulled since", node)
			}
		}
		if !s.account.Works("", mended) {
			return errors.New("nothing was pushed since")
		}
		return s.healthy(t)
	})
	took := time.Since(mended)
	s.account.Settled(time.Now())
	return took
}

// healthy is nil when init-hook status is content with every node.
func (s *soaking) healthy(t *testing.T) error {
	var report status.Report
	out, errOut, err := try(s.w.longCommand(t, time.Minute, s.w.hook, "status", "--output", "json"))
	if e := json.Unmarshal([]byte(out), &report); e != nil {
		return fmt.Errorf("init-hook status: %v: %s%s", err, out, errOut)
	}
	if !report.Healthy || len(report.Nodes) != len(s.w.nodes) {
		return fmt.Errorf("init-hook status names %d nodes and says: %s", len(report.Nodes), strings.Join(report.Next, "; "))
	}
	for _, n := range report.Nodes {
		if !n.Ready || !n.Open {
			return fmt.Errorf("node %s: %s", n.Name, mustJSON(n))
		}
	}
	return nil
}

// judge fails for what failed without an excuse, and keeps what else came of the steps.
func (s *soaking) judge(t *testing.T, steps []soak.Step, o outcome) {
	t.Helper()
	s.excused(t)
	var names []string
	for _, step := range steps {
		names = append(names, step.Kind.Name)
	}
	for node, count := range s.account.Report() {
		if node == "" {
			o.pushing, o.pushes = count.Attempts, count.Failed
			continue
		}
		o.attempted += count.Attempts
		o.pulls += count.Failed
		o.longest = max(o.longest, count.Longest)
	}
	name := strings.Join(names, ", then ")
	s.steps[name] = append(s.steps[name], o)
	line := fmt.Sprintf("it lasted %.1f s, and %.1f s later everything worked; failed: %d of %d pulls, %d of %d pushes; slowest pull %.1f s",
		o.mended.Seconds(), o.whole.Seconds(), o.pulls, o.attempted, o.pushes, o.pushing, o.longest.Seconds())
	s.note("   %s", line)
	t.Log(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = 0
}

// excused fails for attempts that failed without an excuse.
func (s *soaking) excused(t *testing.T) {
	t.Helper()
	bad := s.account.Unexcused()
	for _, a := range bad[:min(len(bad), 10)] {
		t.Errorf("nothing that was done excuses this: %s", a)
	}
	if len(bad) > 10 {
		t.Errorf("and %d more", len(bad)-10)
	}
}

// inspect looks at what must hold whenever everything works: what runs on each node is
// what was pushed, nothing is open that should not be, and nothing was seen in plain.
func (s *soaking) inspect(t *testing.T) {
	t.Helper()
	s.runsWhatWasPushed(t)
	s.ports(t)
	s.unseen(t)
}

// summary prints what each kind of fault came to.
func (s *soaking) summary(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "| fault | times | lasted, s | whole again after, s | pulls failed | pushes failed | slowest pull, s |\n|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.steps)) {
		var sum, worst outcome
		for _, o := range s.steps[name] {
			worst.mended, worst.whole, worst.longest = max(worst.mended, o.mended), max(worst.whole, o.whole), max(worst.longest, o.longest)
			sum.pulls, sum.attempted, sum.pushes, sum.pushing = sum.pulls+o.pulls, sum.attempted+o.attempted, sum.pushes+o.pushes, sum.pushing+o.pushing
		}
		fmt.Fprintf(&b, "| %s | %d | %.1f | %.1f | %d of %d | %d of %d | %.1f |\n", name, len(s.steps[name]), worst.mended.Seconds(), worst.whole.Seconds(),
			sum.pulls, sum.attempted, sum.pushes, sum.pushing, worst.longest.Seconds())
	}
	t.Logf("seed %d; the longest of each kind:\n%s", s.seed, b.String())
	total := s.account.Total()
	for _, node := range slices.Sorted(maps.Keys(total)) {
		c, what := total[node], "pulls on "+node
		if node == "" {
			what = "pushes"
		}
		t.Logf("figure: %s: %d, %d failed, %.1f MB, slowest %.1f s", what, c.Attempts, c.Failed, float64(c.Bytes)/1e6, c.Longest.Seconds())
	}
}
