package main

import (
	"context"
	"slices"
	"time"
)

const (
	// tableSmall is the heading. The targets in bench/report refer to it and to the columns.
	tableSmall = "Latency of a small image"
	// latencyRuns is the number of measurements in a run of the benchmark, in random order.
	latencyRuns = 3
	// slowPulls is the number of pulls from a registry that needs hundreds of milliseconds for each, too few for a p99.
	slowPulls = 10
	// pausedNodes pull once each after pause, in which proxies close their connections to the registry.
	pausedNodes = 20
	pause       = 11 * time.Second
)

// latency measures one node that pulls the small image again and again.
func (s *stage) latency(ctx context.Context) error {
	add := func(what string, all []float64, percent int) {
		s.report.Add(tableSmall, s.name, what, "ms", 1e3*all[len(all)*percent/100])
	}
	for _, c := range []struct {
		p50, p99 string
		keep     bool
	}{{"new connections, p50", "p99", false}, {"open connections, p50", "their p99", true}} {
		count := s.benchmark.pulls
		if s.htpasswd {
			count = slowPulls
		}
		took, err := s.pulls(ctx, s.nodes[:1], count, c.keep)
		if err != nil {
			return err
		}
		add(c.p50, took, 50)
		if !s.htpasswd {
			add(c.p99, took, 99)
		}
	}
	const paused = "after a pause, p50"
	if s.nodePort || s.report.Find(tableSmall, s.name, paused) != nil {
		return nil // there is no connection to lose in a pause, or that was measured
	}
	time.Sleep(pause)
	took, err := s.pulls(ctx, s.nodes, 1, false)
	if err != nil {
		return err
	}
	add(paused, took, 50)
	return nil
}

// pulls returns the sorted durations of so many pulls by each node, in seconds, one at a time, with connections of its
// own or those of the previous one.
func (s *stage) pulls(ctx context.Context, nodes []member, count int, keep bool) (all []float64, err error) {
	for _, m := range nodes {
		client := m.client()
		defer client.CloseIdleConnections()
		for range count {
			began := time.Now()
			if err := pull(ctx, client, s.server(), s.small); err != nil {
				return nil, err
			}
			all = append(all, time.Since(began).Seconds())
			if !keep {
				client.CloseIdleConnections()
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
