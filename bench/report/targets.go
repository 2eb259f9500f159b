package main

import (
	"fmt"
	"slices"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// target is a goal for one measure.
type target struct {
	what string
	// want describes the target, and met decides about the median.
	want string
	met  func(median float64, r *results.Report) bool
	// Where it was measured.
	benchmark, table, subject, measure string
	// bound says why a target is missed and where the profile is; otherwise "".
	bound string
}

func atMost(limit float64) func(float64, *results.Report) bool {
	return func(median float64, _ *results.Report) bool { return median <= limit }
}

func atLeast(limit float64) func(float64, *results.Report) bool {
	return func(median float64, _ *results.Report) bool { return median >= limit }
}

// timesOf is met where the median is at most limit times that of another subject in the
// same column; atLeastTimesOf where it is at least that.
func timesOf(limit float64, table, subject, measure string) func(float64, *results.Report) bool {
	return func(median float64, r *results.Report) bool {
		other, _, _ := r.Find(table, subject, measure).Spread()
		return other > 0 && median <= limit*other
	}
}

func atLeastTimesOf(limit float64, table, subject, measure string) func(float64, *results.Report) bool {
	return func(median float64, r *results.Report) bool {
		other, _, _ := r.Find(table, subject, measure).Spread()
		return other > 0 && median >= limit*other
	}
}

// targets are those of the design, in its order.
var targets = slices.Concat(proxyTargets(), registryTargets(), bootstrapTargets(), scaleTargets())

// result returns the measured value, and whether it meets the target.
func (t target) result(reports map[string]*results.Report) (ours, met string) {
	r := reports[t.benchmark]
	if r == nil {
		return "not measured", "–"
	}
	m := r.Find(t.table, t.subject, t.measure)
	if m == nil {
		return "not measured", "–"
	}
	met = "no"
	if median, _, _ := m.Spread(); t.met(median, r) {
		met = "yes"
	}
	return fmt.Sprintf("%s %s", spread(m), m.Unit), met
}
