package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// The heading of the table, and columns to which targets in bench/report refer.
const (
	tableSmall     = "Latency of a small image"
	measureFresh   = "new connections, p50"
	measureFresh99 = "p99"
	measureKept    = "open connections, p50"
	measureKept99  = "their p99"
)

const (
	// latencyRuns is the number of measurements in a run of the benchmark, in random order.
	latencyRuns = 3
	// slowPulls is the number of pulls from a registry that needs hundreds of milliseconds for each, too few for a p99.
	slowPulls = 10
	// pausedNodes pull once each after pause, in which proxies close their connections to the registry.
	pausedNodes = 7
	pause       = 11 * time.Second
)

// latency measures one node that pulls the small image again and again.
func (b *benchmark) latency(ctx context.Context, w way) (err error) {
	c := crowd{nodes: 1, rate: 1e9}
	if !w.nodePort {
		c.nodes = pausedNodes
	}
	s := b.newStage(w, c)
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	add := func(what string, all []float64, percent int) {
		b.report.Add(tableSmall, w.Name, what, "ms", 1e3*all[len(all)*percent/100])
	}
	for _, c := range []struct {
		p50, p99 string
		keep     bool
	}{{measureFresh, measureFresh99, false}, {measureKept, measureKept99, true}} {
		count := b.pulls
		if w.htpasswd {
			count = slowPulls
		}
		took, err := s.pulls(ctx, s.nodes[:1], count, c.keep)
		if err != nil {
			return err
		}
		add(c.p50, took, 50)
		if !w.htpasswd {
			add(c.p99, took, 99)
		}
	}
	if w.nodePort {
		return nil // there is no connection to lose in a pause
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return ctx.Err()
	}
	took, err := s.pulls(ctx, s.nodes, 1, false)
	if err == nil {
		add("after a pause, p50", took, 50)
	}
	return err
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
