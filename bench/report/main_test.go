package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func TestPage(t *testing.T) {
	defer func(saved []target) { targets = saved }(targets)
	targets = []target{
		{what: "speed", want: "> 5", met: atLeast(5), benchmark: "proxy", table: "one stream", subject: "ours",
			measure: "throughput"},
		{what: "cost", want: "< 2", met: atMost(2), benchmark: "proxy", table: "one stream", subject: "ours", measure: "CPU",
			bound: "the kernel"},
		{what: "unknown", want: "1", met: atMost(1), benchmark: "scale", table: "x", subject: "ours", measure: "y"},
	}
	bench := t.TempDir()
	r := results.New("Both on loopback.", results.Subject{Name: "ours", Version: "1"},
		results.Subject{Name: "theirs", About: "as it comes"}, results.Subject{Name: "nobody"})
	for _, run := range []float64{10, 30, 20} {
		r.Add("one stream", "ours", "throughput", "MB/s", run)
	}
	r.Add("one stream", "ours", "CPU", "s", 2.5)
	r.Add("one stream", "theirs", "throughput", "MB/s", 4)
	r.Machine = results.Machine{Cores: 3}
	if err := os.Mkdir(filepath.Join(bench, "proxy"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(filepath.Join(bench, "proxy")); err != nil {
		t.Fatal(err)
	}
	if err := run(bench); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(bench, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| speed | > 5 | 20.0 (10.0–30.0) MB/s | yes |  |\n",
		"| cost | < 2 | 2.50 s | no | the kernel |\n",
		"| unknown | 1 | not measured | – |  |\n",
		"Both on loopback.", "3 cores", "| theirs |  | as it comes |\n",
		"### one stream\n\n| | throughput, MB/s | CPU, s |\n|---|--:|--:|\n| ours | 20.0 (10.0–30.0) | 2.50 |\n" +
			"| theirs | 4.00 | – |\n",
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

func TestTargetsRelativeToAnotherSubject(t *testing.T) {
	r := results.New("", results.Subject{Name: "ours"}, results.Subject{Name: "theirs"})
	r.Add("t", "theirs", "m", "s", 10)
	for _, tt := range []struct {
		met  func(float64, *results.Report) bool
		ours float64
		want bool
	}{
		{atMostTimesOf(1.05, "t", "theirs", "m"), 10.5, true},
		{atMostTimesOf(1.05, "t", "theirs", "m"), 10.6, false},
		{atMostTimesOf(1.05, "t", "nobody", "m"), 1, false},
		{atLeastTimesOf(0.95, "t", "theirs", "m"), 9.5, true},
		{atLeastTimesOf(0.95, "t", "theirs", "m"), 9.4, false},
		{atLeastTimesOf(0.95, "t", "nobody", "m"), 1, false},
	} {
		if got := tt.met(tt.ours, r); got != tt.want {
			t.Errorf("%v compared with 10: met is %v, want %v", tt.ours, got, tt.want)
		}
	}
}
