package main

import (
	"slices"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// atMostOthers is met if, compared with each other proxy, our value is at most limit times the other
// one in more than half of the runs. It compares values of the same run, because runs differ more than
// subjects do.
func atMostOthers(limit float64, table, measure string) func(float64, *results.Report) bool {
	return comparedWithOthers(table, measure, func(ours, other float64) bool { return ours <= limit*other })
}

// atLeastOthers is met if, compared with each other proxy, our value is at least limit times the other
// one in more than half of the runs.
func atLeastOthers(limit float64, table, measure string) func(float64, *results.Report) bool {
	return comparedWithOthers(table, measure, func(ours, other float64) bool { return ours >= limit*other })
}

// comparedWithOthers is met if good holds for each other proxy in more than half of the runs.
func comparedWithOthers(table, measure string,
	good func(ours, other float64) bool) func(float64, *results.Report) bool {
	return func(_ float64, r *results.Report) bool {
		ours := r.Find(table, proxyName, measure)
		for _, m := range r.Measures {
			if m.Table != table || m.What != measure || slices.Contains([]string{proxyName, "direct"}, m.Subject) {
				continue
			}
			n := 0
			for run := range m.Runs {
				if good(ours.Runs[run], m.Runs[run]) {
					n++
				}
			}
			if 2*n <= len(m.Runs) {
				return false
			}
		}
		return true
	}
}

func both(a, b func(float64, *results.Report) bool) func(float64, *results.Report) bool {
	return func(median float64, r *results.Report) bool { return a(median, r) && b(median, r) }
}

// proxyName is our proxy's name in the report of bench/proxy.
const proxyName = "registry-node"

func proxyTargets() []target {
	const (
		connect = "A new connection for each request of 1 KiB, 8 clients"
		keep    = "Requests of 1 KiB on 8 connections that stay"
		stream  = "One large body"
		streams = "Four large bodies at once"
		memory  = "Memory"

		requests, p99, each, gib = "requests", "p99", "CPU of the proxy for each", "CPU of the proxy"
	)
	naive := func(table, measure string, limit func(float64, string, string, string) func(float64,
		*results.Report) bool) func(float64, *results.Report) bool {
		return limit(1, table, "naive Go", measure)
	}
	all := []target{
		{what: "new connections", want: "> 4832/s, more than the naive proxy",
			met: both(atLeast(4832), naive(connect, requests, atLeastTimesOf)), table: connect, measure: requests},
		{what: "new connections", want: "more than every other", met: atLeastOthers(1, connect, requests), table: connect,
			measure: requests, bound: boundConnect},
		{what: "new connections: p99", want: "< 6.1 ms, less than the naive proxy",
			met: both(atMost(6.1), naive(connect, p99, atMostTimesOf)), table: connect, measure: p99},
		{what: "new connections: p99", want: "less than every other", met: atMostOthers(1, connect, p99), table: connect,
			measure: p99, bound: boundConnect},
		{what: "proxy CPU of a new connection", want: "< 0.06 ms", met: atMost(0.06), table: connect, measure: each,
			bound: boundConnect},
		{what: "requests on connections that stay", want: "more than the naive proxy",
			met: naive(keep, requests, atLeastTimesOf), table: keep, measure: requests},
		{what: "requests on connections that stay", want: "more than every other", met: atLeastOthers(1, keep, requests),
			table: keep, measure: requests, bound: boundKeep},
		{what: "proxy CPU of a request on a connection that stays", want: "less than the naive proxy",
			met: naive(keep, each, atMostTimesOf), table: keep, measure: each},
		{what: "proxy CPU per GiB, one body", want: "< 0.87 s", met: atMost(0.87), table: stream, measure: gib,
			bound: boundStream},
		{what: "proxy CPU per GiB, one body", want: "less than every other", met: atMostOthers(1, stream, gib), table: stream,
			measure: gib, bound: boundStream},
		{what: "one body", want: "within 5 % of every other", met: atLeastOthers(0.95, stream, "throughput"), table: stream,
			measure: "throughput", bound: boundStream},
		{what: "four large bodies", want: "within 5 % of every other", met: atLeastOthers(0.95, streams, "throughput"),
			table: streams, measure: "throughput", bound: boundStream},
		{what: "proxy memory, 50 idle connections", want: "≤ 11 MB", met: atMost(11), table: memory,
			measure: "50 idle connections", bound: boundMemory},
	}
	for n := range all {
		all[n].benchmark, all[n].subject = "proxy", proxyName
	}
	return all
}

// What limits the proxy where it misses a target. docs/performance.md has the profiles.
const (
	boundConnect = "the server of net/http: a second goroutine and three context allocations per request, in addition " +
		"to the system calls that every proxy needs ([profile](../docs/performance.md#new-connections))"
	boundKeep = "HTTP is parsed and written twice, unlike in TCP proxies " +
		"([profile](../docs/performance.md#requests-on-open-connections))"
	boundStream = "three quarters of the CPU time are copies in the kernel and AES-GCM in Go " +
		"([profile](../docs/performance.md#large-bodies))"
	boundMemory = "7.6 MB are pages of the program's file, of which only `configure` uses 1.1 MB " +
		"([breakdown](../docs/performance.md#memory))"
)
