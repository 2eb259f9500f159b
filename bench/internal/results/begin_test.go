package results

import (
	"context"
	"errors"
	"flag"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestBusyShare(t *testing.T) {
	const before = "cpu  100 0 50 800 40 0 5 5 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	for name, tt := range map[string]struct {
		after string
		want  float64 // -1: an error
	}{
		"idle":                  {"cpu  100 0 50 1000 40 0 5 5 7 7\n", 0},
		"a quarter":             {"cpu  120 5 60 950 50 5 5 5 7 7\n", 0.25},
		"stolen":                {"cpu  100 0 50 850 40 0 5 55 7 7\n", 0.5},
		"time stands still":     {before, -1},
		"no number":             {"cpu  x 0 50 850 40 0 5 55 7 7\n", -1},
		"too few":               {"cpu  100 0 50 850\n", -1},
		"another kernel's file": {"processor 1\n", -1},
	} {
		got, err := BusyShare(before, tt.after)
		if tt.want < 0 && err == nil || tt.want >= 0 && (err != nil || math.Abs(got-tt.want) > 1e-9) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tt.want)
		}
	}
}

// readings returns a function that reads CPU times with the given shares of busy time between them.
func readings(busy ...int) func() (string, error) {
	stat := [2]int{}
	n := 0
	return func() (string, error) {
		if n%2 == 1 { // the end of a measurement
			share := busy[min(n/2, len(busy)-1)]
			stat[0], stat[1] = stat[0]+share, stat[1]+100-share
		}
		n++
		return "cpu  " + strconv.Itoa(stat[0]) + " 0 0 " + strconv.Itoa(stat[1]) + " 0 0 0 0 0 0\n", nil
	}
}

func TestQuietWaitsForTheEndOfALoad(t *testing.T) {
	if busy, err := quiet(t.Context(), readings(90, 11, 9), time.Nanosecond, time.Hour); err != nil || math.Abs(busy-0.09) > 1e-9 {
		t.Errorf("%v, %v, want 0.09", busy, err)
	}
	if _, err := quiet(t.Context(), readings(90), time.Nanosecond, 0); err == nil ||
		!strings.Contains(err.Error(), "90 %") {
		t.Errorf("a load that stays: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := quiet(ctx, readings(90), time.Hour, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestBeginMarksForcedReports(t *testing.T) {
	var o Options
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	o.Register(flags)
	require.NoError(t, flags.Parse([]string{"-force", "-seed", "3"}))
	r, err := o.Begin(t.Context())
	require.NoError(t, err)
	if !r.Forced || r.Seed != 3 || o.Runs != 5 {
		t.Errorf("%+v, %+v", o, r)
	}
	o.Seed = 0
	if r, err = o.Begin(t.Context()); err != nil || r.Seed == 0 {
		t.Errorf("without a seed: %+v, %v", r, err)
	}
	o.Runs = 0
	if _, err := o.Begin(t.Context()); err == nil {
		t.Error("no error without runs")
	}
}

func TestOrderIsAPermutationOfItsRun(t *testing.T) {
	r, seen := Report{Seed: 1}, map[int]bool{}
	for run := range 20 {
		order := r.Order(run, 3)
		if !slices.Equal(order, r.Order(run, 3)) {
			t.Error("the same seed and run give different orders")
		}
		seen[order[0]*10+order[1]] = true
		slices.Sort(order)
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("%v is not a permutation", order)
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d of 6 orders in 20 runs", len(seen))
	}
}
