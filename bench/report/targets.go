package main

import (
	"fmt"
	"slices"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// target is a goal for one measure of a subject.
type target struct {
	what string
	// want describes the goal; met reports whether a median meets it.
	want string
	met  func(median float64, r *results.Report) bool
	// The measure in the report of a benchmark.
	benchmark, table, subject, measure string
	// bound says what limits the measure, with a link to a profile. It is shown if the target is missed.
	bound string
}

func atMost(limit float64) func(float64, *results.Report) bool {
	return func(median float64, _ *results.Report) bool { return median <= limit }
}

func atLeast(limit float64) func(float64, *results.Report) bool {
	return func(median float64, _ *results.Report) bool { return median >= limit }
}

// atMostTimesOf is met if the median is at most limit times that of another subject.
func atMostTimesOf(limit float64, table, subject, measure string) func(float64, *results.Report) bool {
	return func(median float64, r *results.Report) bool {
		other, _, _ := r.Find(table, subject, measure).Spread()
		return other > 0 && median <= limit*other
	}
}

// atLeastTimesOf is met if the median is at least limit times that of another subject.
func atLeastTimesOf(limit float64, table, subject, measure string) func(float64, *results.Report) bool {
	return func(median float64, r *results.Report) bool {
		other, _, _ := r.Find(table, subject, measure).Spread()
		return other > 0 && median >= limit*other
	}
}

// targets are in the order of the page.
var targets = slices.Concat(proxyTargets(), registryTargets(), bootstrapTargets(), scaleTargets())

// result returns the measured value, and whether it meets the target, as text.
func (t target) result(reports map[string]*results.Report) (value, met string) {
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
