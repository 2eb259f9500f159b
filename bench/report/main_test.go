package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// replace replaces the targets and the list of known misses for a test.
func replace(t *testing.T, all []target, known ...string) {
	savedTargets, savedMissed := targets, missed
	t.Cleanup(func() { targets, missed = savedTargets, savedMissed })
	targets, missed = all, nil
	for _, key := range known {
		missed = append(missed, struct{ reason, target string }{"the kernel", key})
	}
}

// written returns a bench directory with a report of the benchmark proxy.
func written(t *testing.T, r *results.Report) string {
	t.Helper()
	bench := t.TempDir()
	if err := os.Mkdir(filepath.Join(bench, "proxy"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(filepath.Join(bench, "proxy"), nil); err != nil {
		t.Fatal(err)
	}
	return bench
}

func TestPage(t *testing.T) {
	one := target{benchmark: "proxy", table: "one stream", subject: "ours"}
	speed, cost, known, unknown := one, one, one, one
	speed.what, speed.measure, speed.atLeast, speed.limit, speed.unit = "speed", "throughput", true, 5, "MB/s"
	cost.what, cost.measure, cost.limit, cost.peers = "cost", "CPU", 2, []string{"theirs"}
	known.what, known.measure = "memory", "memory"
	unknown.what, unknown.benchmark = "unknown", "scale"
	replace(t, []target{speed, cost, known, unknown}, "memory: 0")

	r := &results.Report{How: "Both on loopback.", Forced: true, Seed: 42, Machine: results.Machine{Cores: 3, Busy: 0.071},
		Subjects: []results.Subject{{Name: "ours", Version: "1"}, {Name: "theirs", About: "as it comes"}, {Name: "nobody"}}}
	for _, run := range []float64{10, 30, 20} {
		r.Add("one stream", "ours", "throughput", "MB/s", run)
	}
	r.Add("one stream", "ours", "CPU", "s", 10)
	r.Add("one stream", "theirs", "CPU", "s", 4)
	r.Add("one stream", "ours", "memory", "MB", 7)
	bench, log := written(t, r), new(strings.Builder)
	if err := run(bench, nil, log); err == nil || !strings.Contains(err.Error(), "2 targets") {
		t.Errorf("error is %v", err)
	}
	if want := "missed: cost: ≤ 2 × theirs (2.50 × theirs)\nmissed: unknown: 0 (not measured)\n"; log.String() != want {
		t.Errorf("printed:\n%swant:\n%s", log, want)
	}
	text, err := os.ReadFile(filepath.Join(bench, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| speed | ≥ 5 MB/s | 20.0 (10.0–30.0) MB/s | yes |  |\n",
		"| cost | ≤ 2 × theirs | 2.50 × theirs | **no** |  |\n",
		"| memory | 0 | 7.00 MB | no | the kernel |\n",
		"| unknown | 0 | not measured | – |  |\n",
		"Both on loopback.", "3 cores", "7 % of CPU time", "-seed 42", "**With `-force`", "| theirs |  | as it comes |\n",
		"### one stream\n\n| | throughput, MB/s | CPU, s | memory, MB |\n|---|--:|--:|--:|\n" +
			"| ours | 20.0 (10.0–30.0) | 10.0 | 7.00 |\n| theirs | – | 4.00 | – |\n",
		"Not measured yet.",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "| nobody | –") {
		t.Error("a row without values is shown")
	}
}

func TestOnlyUnlistedMissesFail(t *testing.T) {
	all := []target{{what: "memory", benchmark: "proxy", table: "t", subject: "ours", measure: "m", limit: 5, unit: "MB"}}
	const key, printed = "memory: ≤ 5 MB", "remove from bench/report/missed.go: memory: ≤ 5 MB"
	for name, tt := range map[string]struct {
		value   float64
		known   []string
		checked []string
		fails   bool
		prints  string
	}{
		"met":                     {value: 5},
		"missed":                  {value: 6, fails: true, prints: "missed: memory: ≤ 5 MB (6.00 MB)"},
		"missed and listed":       {value: 6, known: []string{key}},
		"met and listed":          {value: 5, known: []string{key}, prints: printed},
		"missed by another":       {value: 6, checked: []string{"scale"}},
		"missed by the named one": {value: 6, checked: []string{"scale", "proxy"}, fails: true, prints: "missed"},
		"no value, though listed": {known: []string{key}, fails: true, prints: "missed: memory: ≤ 5 MB (not measured)"},
	} {
		t.Run(name, func(t *testing.T) {
			replace(t, all, tt.known...)
			r, log := new(results.Report), new(strings.Builder)
			if tt.value > 0 {
				r.Add("t", "ours", "m", "MB", tt.value)
			}
			if err := run(written(t, r), tt.checked, log); (err != nil) != tt.fails {
				t.Errorf("error is %v", err)
			}
			if !strings.Contains(log.String(), tt.prints) || tt.prints == "" && log.Len() > 0 {
				t.Errorf("printed %q, want %q", log, tt.prints)
			}
		})
	}
}

// Runs differ more than subjects do, so a run is compared with the same run of the others.
func TestRatiosAreThoseOfTheSameRun(t *testing.T) {
	r := new(results.Report)
	for _, of := range []struct {
		subject string
		runs    []float64
	}{{"ours", []float64{10, 20, 60}}, {"slow", []float64{5, 10, 60}}, {"fast", []float64{12, 25, 50}},
		{"once", []float64{1}}} {
		for _, run := range of.runs {
			r.Add("t", of.subject, "m", "", run)
		}
	}
	for _, tt := range []struct {
		atLeast bool
		limit   float64
		peers   []string
		want    outcome
	}{
		{true, 2, []string{"slow"}, outcome{"2.00 (1.00–2.00) × slow", true, true}},
		{true, 2.1, []string{"slow"}, outcome{"2.00 (1.00–2.00) × slow", true, false}},
		{true, 0.8, []string{"slow", "fast"}, outcome{"0.833 (0.800–1.20) × fast", true, true}},
		{true, 0.9, []string{"fast", "slow"}, outcome{"0.833 (0.800–1.20) × fast", true, false}},
		{false, 0.9, []string{"fast"}, outcome{"0.833 (0.800–1.20) × fast", true, true}},
		{false, 0.9, []string{"fast", "slow"}, outcome{"2.00 (1.00–2.00) × slow", true, false}},
		{false, 9, []string{"nobody", "fast"}, outcome{value: "nobody: not measured"}},
		{false, 9, []string{"fast", "once"}, outcome{value: "once: not measured"}},
	} {
		got := target{table: "t", subject: "ours", measure: "m", atLeast: tt.atLeast, limit: tt.limit, peers: tt.peers}.check(r)
		if got != tt.want {
			t.Errorf("%v %v × %v: %+v, want %+v", tt.atLeast, tt.limit, tt.peers, got, tt.want)
		}
	}
}

func TestListedTargetsExist(t *testing.T) {
	keys := map[string]bool{}
	for _, target := range targets {
		if keys[target.key()] {
			t.Errorf("two targets are called %q", target.key())
		}
		keys[target.key()] = true
	}
	for _, m := range missed {
		if !keys[m.target] || m.reason == "" {
			t.Errorf("no target is called %q, or it has no reason", m.target)
		}
	}
}
