package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// soaking is a run of TestSoak.
type soaking struct {
	w       *world
	seed    uint64
	atMost  time.Duration
	began   time.Time
	account *soak.Account

	certManager bool     // issues the certificates
	without     []string // kinds of faults that the layout excludes

	proxy    bool // the current mode
	watchers map[string]*companion
	sniffer  *companion
	pusher   *pusher
	tags     *soak.Tags
	noise    []byte            // the marker in images
	controls map[string]string // addresses of pods whose port is open, and their nodes
	steps    map[string][]outcome

	mu       sync.Mutex
	timeline []string
	noted    int // failures recorded since the last step
	seen     []soak.Seen
	secret   time.Time // since when no marker may be seen between nodes; zero: markers are allowed
}

// An outcome is the result of one step.
type outcome struct {
	repaired, recovered time.Duration // duration of the fault, and of the recovery
	pulls, pushes       int           // failed
	longest             time.Duration // the slowest successful pull
	attempted, pushing  int
}

// TestSoak injects faults on a cluster of two or three nodes, in an order that a seed determines,
// while every node pulls and images are pushed. make soak runs it alone, because it measures
// recovery times. docs/dev/soak.md describes what it checks.
//
// Claim (everything works without faults): In proxy mode, images and credentials cross the network encrypted.
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
	s := &soaking{seed: seed, atMost: atMost, began: time.Now(), proxy: true, account: soak.NewAccount(),
		tags: soak.NewTags(), watchers: map[string]*companion{}, steps: map[string][]outcome{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("FAILED with seed %d; to repeat the sequence: make soak SOAK_SEED=%d SOAK_TIME=%s SOAK_LAYOUT=%s\n"+
				"History:\n%s", seed, seed, os.Getenv("SOAK_TIME"), os.Getenv("SOAK_LAYOUT"), s.history())
			if s.pusher != nil && s.pusher.last != "" {
				t.Log("interrupted: " + s.pusher.last)
			}
		}
	})
	t.Logf("seed %d, faults for %s, layout %q", seed, os.Getenv("SOAK_TIME"), os.Getenv("SOAK_LAYOUT"))

	// The registry also stores the zarf-registry images of both releases, 90 MB each. An image of some 600 KB is pushed
	// every 1.3 s or later.
	size := 512<<20 + int64(atMost.Minutes()*float64(32<<20))
	// Jobs run on n2 while n1 is off.
	l := layout{args: []string{"--volumes-size", strconv.FormatInt(size, 10),
		"--load", "n2=" + filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar")},
		network: &network{Family: "IPv4", KubeProxy: "iptables"}}
	name, kind := "soak", os.Getenv("SOAK_LAYOUT")
	if kind != "" {
		name += "-" + kind // beside the soak test of another layout
	}
	if kind == "ipv6" {
		l.network.Family = "IPv6"
	}
	s.w = newWorld(t, name, l)
	s.layOut(t, kind)
	must(t, "install in proxy mode", func(t *testing.T) { s.w.helmChart(t, "install", proxyMode) })
	s.begin(t)
	must(t, "everything works without faults", func(t *testing.T) {
		s.recover(t, time.Now())
		s.inspect(t)
		s.allPorts(t)
		s.control(t)
	})

	var first []string
	if short {
		first = soak.Short
	} else if list := os.Getenv("SOAK_FIRST"); list != "" {
		first = strings.Split(list, ",")
	}
	plan := soak.NewPlan(seed, s.w.nodes, first...)
	plan.Without = s.without
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
		if step.Kind.Name == soak.UpgradeWithout {
			step.Node = s.spare(t)
		}
		if len(burst) == 0 {
			begun = time.Now()
		}
		burst = append(burst, step)
		ok := t.Run(fmt.Sprintf("%d: %s", number, step), func(t *testing.T) {
			s.note("%d: %s", number, step)
			s.account.Begin(step, time.Now())
			s.inject(t, step)
			if step.NoWait {
				return
			}
			repaired := time.Now()
			s.account.Repaired(repaired)
			took := s.recover(t, repaired, burst...)
			s.judge(t, burst, outcome{repaired: repaired.Sub(begun), recovered: took})
			s.inspect(t)
		})
		if !ok {
			break
		}
		if !step.NoWait {
			burst = nil
		}
	}
	if !t.Failed() {
		must(t, "at the end, everything works and nothing is lost", func(t *testing.T) {
			s.recover(t, time.Now())
			s.control(t)
			s.runsWhatWasPushed(t)
			s.allPorts(t)
			s.finish(t)
		})
	}
	s.summary(t)
}

// layOut sets the values for a layout of SOAK_LAYOUT.
func (s *soaking) layOut(t *testing.T, name string) {
	t.Helper()
	// Evicted from a lost node after 10 s. Kubernetes' default is 5 min.
	s.w.sets = []string{`--set-json=registry.tolerations=[{"key":"node.kubernetes.io/unreachable","operator":"Exists",` +
		`"effect":"NoExecute","tolerationSeconds":10}]`}
	switch name {
	case "":
	case "replicas":
		s.w.sets = append(s.w.sets, "--set=registry.replicas=2", "--set=registry.persistence.accessModes={ReadWriteMany}")
	case "s3":
		s.without = []string{soak.FillVolume} // nothing is on the volume
		s.w.sets = append(s.w.sets, "--set=registry.replicas=2", s.w.installOnS3(t))
	case "cert-manager":
		s.certManager = true
		s.w.sets = append(s.w.sets, s.w.companyIssuer(t)...)
	case "ipv6":
		s.without = []string{soak.Switch} // node ports do not answer on the loopback address
	default:
		t.Fatalf("invalid SOAK_LAYOUT %q: want replicas, s3, cert-manager or ipv6", name)
	}
}

// note appends a line to the history, which a failure prints.
func (s *soaking) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeline = append(s.timeline, fmt.Sprintf("%7.1f s  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

// add records an attempt. The history has the first failures of each step.
func (s *soaking) add(a soak.Attempt) {
	s.checkTag(&a)
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

// checkTag makes a pull by tag fail if it found another digest than it may.
func (s *soaking) checkTag(a *soak.Attempt) {
	if a.Digest == "" {
		return
	}
	tag := a.Image[strings.LastIndex(a.Image, ":")+1:]
	if err := s.tags.Check(tag, a.Digest, a.Begin, a.End()); err != nil {
		a.Err, a.Corrupt = err.Error(), true
	}
}

func (s *soaking) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.timeline, "\n")
}

// recover waits until everything works again after some steps, and returns how long that took.
func (s *soaking) recover(t *testing.T, repaired time.Time, steps ...soak.Step) time.Duration {
	t.Helper()
	within := 30 * time.Second // without a fault: one pull by a slow reader, and status
	if len(steps) > 0 {
		within = 0
	}
	for _, step := range steps {
		within = max(within, step.Kind.Recovery)
	}
	busy := slower(t)
	within = time.Duration(float64(within) * busy)
	eventually(t, "everything to work again", func() error {
		for _, node := range s.w.nodes {
			if !s.account.Works(node, repaired) {
				return fmt.Errorf("node %s has not pulled since the repair", node)
			}
		}
		if !s.account.Works("", repaired) {
			return errors.New("nothing was pushed since the repair")
		}
		return s.healthy(t)
	})
	took := time.Since(repaired) // eventually's last attempt may end late
	if took > within {
		t.Errorf("everything worked again after %.1f s, later than %s", took.Seconds(), within)
	}
	if busy > 1 {
		s.note("   limits were %.1f times as long, because the machine is busy", busy)
	}
	s.account.Recovered(time.Now())
	return took
}

// slower returns by how much other programs slow the machine down. Limits were measured while up to four threads shared
// a core.
func slower(t *testing.T) float64 {
	t.Helper()
	load, _, _ := strings.Cut(string(require.Value(os.ReadFile("/proc/loadavg"))(t)), " ")
	return max(1, require.Value(strconv.ParseFloat(load, 64))(t)/float64(4*runtime.NumCPU()))
}

// healthy returns nil if zarf-registry status reports a healthy cluster with all nodes.
func (s *soaking) healthy(t *testing.T) error {
	var report status.Report
	out, errOut, err := try(s.w.longCommand(t, time.Minute, s.w.hook, "status", "--output", "json"))
	if e := json.Unmarshal([]byte(out), &report); e != nil {
		return fmt.Errorf("zarf-registry status: %v: %s%s", err, out, errOut)
	}
	if !report.Healthy || len(report.Nodes) != len(s.w.nodes) {
		return fmt.Errorf("zarf-registry status lists %d nodes and recommends: %s", len(report.Nodes),
			strings.Join(report.Next, "; "))
	}
	for _, n := range report.Nodes {
		if !n.Ready || !n.Endpoint {
			return fmt.Errorf("node %s: %s", n.Name, mustJSON(n))
		}
	}
	return nil
}

// judge fails if an attempt failed without an excuse, and records the outcome of the steps.
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
	line := fmt.Sprintf("lasted %.1f s, recovered %.1f s later; failed: %d of %d pulls, %d of %d pushes; slowest pull "+
		"%.1f s",
		o.repaired.Seconds(), o.recovered.Seconds(), o.pulls, o.attempted, o.pushes, o.pushing, o.longest.Seconds())
	s.note("   %s", line)
	t.Log(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = 0
}

// excused fails if an attempt failed without an excuse.
func (s *soaking) excused(t *testing.T) {
	t.Helper()
	bad := s.account.Unexcused()
	for _, a := range bad[:min(len(bad), 10)] {
		t.Errorf("no fault excuses this failure: %s", a)
	}
	if len(bad) > 10 {
		t.Errorf("and %d more", len(bad)-10)
	}
}

// inspect checks what must hold whenever everything works: each node runs what was pushed, no
// unexpected port is open, and no marker was captured in plain text.
func (s *soaking) inspect(t *testing.T) {
	t.Helper()
	s.runsWhatWasPushed(t)
	s.ports(t)
	s.checkUnseen(t)
}

// summary logs the outcomes by kind of fault.
func (s *soaking) summary(t *testing.T) {
	var b strings.Builder
	faults := 0
	fmt.Fprintf(&b, "| fault | times | lasted, s | recovered after, s | pulls failed | pushes failed | slowest pull, s "+
		"|\n|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.steps)) {
		var sum, worst outcome
		faults += len(s.steps[name]) * (strings.Count(name, ", then ") + 1)
		for _, o := range s.steps[name] {
			worst.repaired, worst.recovered, worst.longest = max(worst.repaired, o.repaired), max(worst.recovered, o.recovered),
				max(worst.longest, o.longest)
			sum.pulls, sum.attempted, sum.pushes, sum.pushing = sum.pulls+o.pulls, sum.attempted+o.attempted,
				sum.pushes+o.pushes, sum.pushing+o.pushing
		}
		fmt.Fprintf(&b, "| %s | %d | %.1f | %.1f | %d of %d | %d of %d | %.1f |\n", name, len(s.steps[name]),
			worst.repaired.Seconds(), worst.recovered.Seconds(),
			sum.pulls, sum.attempted, sum.pushes, sum.pushing, worst.longest.Seconds())
	}
	t.Logf("seed %d; the longest of each kind:\n%s", s.seed, b.String())
	total := s.account.Total()
	var pulls soak.Count
	for _, node := range slices.Sorted(maps.Keys(total)) {
		c, what := total[node], "pulls on "+node
		if node == "" {
			what = "pushes"
		} else {
			pulls.Attempts, pulls.Failed = pulls.Attempts+c.Attempts, pulls.Failed+c.Failed
		}
		t.Logf("figure: %s: %d, %d failed, %.1f MB, slowest %.1f s", what, c.Attempts, c.Failed, float64(c.Bytes)/1e6,
			c.Longest.Seconds())
	}
	t.Logf("figure: row of docs/dev/soak.md: |%s|%d|%d|%d|%d|%d|%d|", cmp.Or(os.Getenv("SOAK_LAYOUT"), "default"), s.seed,
		faults, pulls.Attempts, pulls.Failed, total[""].Attempts, total[""].Failed)
}
