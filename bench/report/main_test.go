package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// replace replaces the targets for a test.
func replace(t *testing.T, all ...target) {
	saved := targets
	t.Cleanup(func() { targets = saved })
	targets = all
}

// written returns a bench directory with a report of the benchmark proxy.
func written(t *testing.T, r *results.Report) string {
	t.Helper()
	bench := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(bench, "proxy"), 0o755))
	require.NoError(t, r.Save(filepath.Join(bench, "proxy"), nil))
	return bench
}

func TestPage(t *testing.T) {
	one := target{benchmark: "proxy", table: "one stream", subject: "ours"}
	speed, cost, known, unknown := one, one, one, one
	speed.what, speed.measure, speed.atLeast, speed.limit, speed.unit = "speed", "throughput", true, 5, "MB/s"
	cost.what, cost.measure, cost.limit, cost.peers = "cost", "CPU", 2, []string{"theirs"}
	known.what, known.measure, known.cause = "memory", "memory", "the kernel"
	unknown.what, unknown.benchmark = "unknown", "nodes"
	replace(t, speed, cost, known, unknown)

	r := &results.Report{How: "Both on loopback.", Forced: true, Commit: "1234567", Machine: results.Machine{Cores: 3},
		Subjects: []results.Subject{{Name: "ours", Version: "1"}, {Name: "theirs", About: "as it comes"}, {Name: "nobody"}}}
	for _, run := range []float64{10, 30, 20} {
		r.Add("one stream", "ours", "throughput", "MB/s", run)
	}
	r.Add("one stream", "ours", "CPU", "s", 10)
	r.Add("one stream", "theirs", "CPU", "s", 4)
	r.Add("one stream", "ours", "memory", "MB", 7)
	again := new(results.Report)
	again.Add("one stream", "ours", "throughput", "MB/s", 22)
	bench, log := written(t, r), new(strings.Builder)
	if err := run(bench, written(t, again), nil, log); err == nil || !strings.Contains(err.Error(), "2 targets") {
		t.Errorf("error is %v", err)
	}
	if want := "missed: cost: ≤ 2 × theirs (2.50 × theirs)\nmissed: unknown: 0 (not measured)\n"; log.String() != want {
		t.Errorf("printed:\n%swant:\n%s", log, want)
	}
	text := require.Value(os.ReadFile(filepath.Join(bench, "RESULTS.md")))(t)
	for _, want := range []string{
		"| speed | ≥ 5 MB/s | 20.0 (10.0–30.0) MB/s | 22.0 | yes |\n",
		"| cost | ≤ 2 × theirs | 2.50 × theirs | – | **no** |\n",
		"| memory | 0 | 7.00 MB | – | no: the kernel |\n",
		"| unknown | 0 | not measured | – | – |\n",
		"Both on loopback. ", "; commit 1234567; 3 cores", "; **with `-force`", "; ours: 1; theirs: as it comes.\n",
		"| one stream | throughput, MB/s | CPU, s | memory, MB |\n|---|--:|--:|--:|\n" +
			"| ours | 20.0 | 10.0 | 7.00 |\n| theirs | – | 4.00 | – |\n",
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

func TestOnlyMissesWithoutACauseFail(t *testing.T) {
	memory := target{what: "memory", benchmark: "proxy", table: "t", subject: "ours", measure: "m", limit: 5, unit: "MB"}
	for name, tt := range map[string]struct {
		value   float64
		cause   string
		checked []string
		fails   bool
		prints  string
	}{
		"met":                       {value: 5},
		"missed":                    {value: 6, fails: true, prints: "missed: memory: ≤ 5 MB (6.00 MB)"},
		"missed for a cause":        {value: 6, cause: "the kernel"},
		"met despite a cause":       {value: 5, cause: "the kernel", prints: "met, so its cause can go: memory: ≤ 5 MB"},
		"missed by another":         {value: 6, checked: []string{"nodes"}},
		"missed by the named one":   {value: 6, checked: []string{"nodes", "proxy"}, fails: true, prints: "missed"},
		"no value, despite a cause": {cause: "the kernel", fails: true, prints: "missed: memory: ≤ 5 MB (not measured)"},
	} {
		t.Run(name, func(t *testing.T) {
			memory.cause = tt.cause
			replace(t, memory)
			r, log := new(results.Report), new(strings.Builder)
			if tt.value > 0 {
				r.Add("t", "ours", "m", "MB", tt.value)
			}
			if err := run(written(t, r), t.TempDir(), tt.checked, log); (err != nil) != tt.fails {
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
		{true, 2, []string{"slow"}, outcome{"2.00 (1.00–2.00) × slow", "2.00", true, true}},
		{true, 2.1, []string{"slow"}, outcome{"2.00 (1.00–2.00) × slow", "2.00", true, false}},
		{true, 0.8, []string{"slow", "fast"}, outcome{"0.833 (0.800–1.20) × fast", "0.833", true, true}},
		{true, 0.9, []string{"fast", "slow"}, outcome{"0.833 (0.800–1.20) × fast", "0.833", true, false}},
		{false, 0.9, []string{"fast"}, outcome{"0.833 (0.800–1.20) × fast", "0.833", true, true}},
		{false, 0.9, []string{"fast", "slow"}, outcome{"2.00 (1.00–2.00) × slow", "2.00", true, false}},
		{false, 9, []string{"nobody", "fast"}, outcome{value: "nobody: not measured", median: "–"}},
		{false, 9, []string{"fast", "once"}, outcome{value: "once: not measured", median: "–"}},
	} {
		got := target{table: "t", subject: "ours", measure: "m", atLeast: tt.atLeast, limit: tt.limit, peers: tt.peers}.check(r)
		if got != tt.want {
			t.Errorf("%v %v × %v: %+v, want %+v", tt.atLeast, tt.limit, tt.peers, got, tt.want)
		}
	}
}

func TestTargetsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, target := range targets {
		if seen[target.String()] {
			t.Errorf("two targets are called %q", target)
		}
		seen[target.String()] = true
	}
}
