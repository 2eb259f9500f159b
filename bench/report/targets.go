package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// target is a goal for one measure of a subject.
type target struct {
	what                               string
	benchmark, table, subject, measure string
	// atLeast means that the limit is the lowest value, instead of the highest.
	atLeast bool
	limit   float64
	// peers are the subjects of the same table to whose values the limit is relative. Without peers, it is
	// absolute: sizes and counts, which depend little on the machine, and times that users are promised.
	peers []string
	// unit of an absolute limit, or an explanation of it
	unit string
	// cause is why the target is missed. Targets that are missed without a cause fail the benchmark.
	cause string
}

// targets are in the order of the page.
var targets = slices.Concat(clusterTargets(), nodesTargets(), proxyTargets(), registryTargets(), garbageTargets())

// of returns the targets of a benchmark.
func of(benchmark string, all []target) []target {
	for n := range all {
		all[n].benchmark = benchmark
	}
	return all
}

// String identifies the target.
func (t target) String() string { return t.what + ": " + t.wanted() }

// wanted returns the goal as text, such as "≤ 1.05 × distribution".
func (t target) wanted() string {
	sign := "≤ "
	switch {
	case t.atLeast:
		sign = "≥ "
	case t.limit == 0:
		sign = ""
	}
	text := sign + strconv.FormatFloat(t.limit, 'f', -1, 64)
	switch len(t.peers) {
	case 0:
		return strings.TrimSpace(text + " " + t.unit)
	case 1:
		return text + " × " + t.peers[0]
	}
	return text + " × every other"
}

// outcome is the comparison of a target with a report.
type outcome struct {
	value, median string // what was measured
	measured, met bool
}

// check compares the target with a report, which may be nil.
func (t target) check(r *results.Report) outcome {
	if r == nil {
		return outcome{value: "not measured", median: "–"}
	}
	ours := r.Find(t.table, t.subject, t.measure)
	if ours == nil {
		return outcome{value: "not measured", median: "–"}
	}
	if len(t.peers) == 0 {
		median, _, _ := ours.Spread()
		return outcome{strings.TrimSpace(spread(ours) + " " + ours.Unit), number(median), true, t.allows(median)}
	}
	var worst *results.Measure
	for _, peer := range t.peers {
		theirs := r.Find(t.table, peer, t.measure)
		if theirs == nil || len(theirs.Runs) != len(ours.Runs) {
			return outcome{value: peer + ": not measured", median: "–"}
		}
		ratios := &results.Measure{Subject: peer}
		for run := range ours.Runs { // runs differ more than subjects do
			ratios.Runs = append(ratios.Runs, ours.Runs[run]/theirs.Runs[run])
		}
		if worst == nil || t.closer(ratios, worst) {
			worst = ratios
		}
	}
	median, _, _ := worst.Spread()
	return outcome{fmt.Sprintf("%s × %s", spread(worst), worst.Subject), number(median), true, t.allows(median)}
}

func (t target) allows(median float64) bool {
	if t.atLeast {
		return median >= t.limit
	}
	return median <= t.limit
}

// closer reports whether ratios a are further in the direction of a miss than b.
func (t target) closer(a, b *results.Measure) bool {
	medianA, _, _ := a.Spread()
	medianB, _, _ := b.Spread()
	if t.atLeast {
		return cmp.Less(medianA, medianB)
	}
	return cmp.Less(medianB, medianA)
}
