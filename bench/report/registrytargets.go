package main

import (
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// tolerance is the allowed relative difference to distribution's own server.
const tolerance = 0.05

// registryTargets are the targets of bench/registry.
func registryTargets() (targets []target) {
	const distribution = "distribution"
	add := func(what, want string, met func(float64, string, string, string) func(float64, *results.Report) bool,
		share float64, table, measure string, bound ...string) {
		targets = append(targets, target{what: "registry: " + what, want: want, met: met(share, table, distribution, measure),
			benchmark: "registry", table: table, subject: "ours", measure: measure, bound: strings.Join(bound, "")})
	}
	const more, less = "≥ 95 % of distribution's own server", "≤ 105 % of distribution's own server"
	add("pulls, one at a time", more, atLeastTimesOf, 1-tolerance, "Pulls", "one at a time",
		"unknown: the ranges overlap, and four at a time are faster and use less CPU time; client and registry wait for "+
			"each other on two cores")
	add("pulls, four at a time", more, atLeastTimesOf, 1-tolerance, "Pulls", "four at a time")
	add("CPU of pulls, four at a time", less, atMostTimesOf, 1+tolerance, "Pulls", "four: CPU per GiB")
	add("memory at four pulls", less, atMostTimesOf, 1+tolerance, "Pulls", "four: memory")
	add("pushes, one at a time", more, atLeastTimesOf, 1-tolerance, "Pushes", "one at a time")
	add("pushes, four at a time", more, atLeastTimesOf, 1-tolerance, "Pushes", "four at a time",
		"both cores are busy; CPU per GiB is equal and the ranges overlap")
	add("CPU of pushes, four at a time", less, atMostTimesOf, 1+tolerance, "Pushes", "four: CPU per GiB")
	add("small requests", more, atLeastTimesOf, 1-tolerance, "Small requests", "requests")
	add("CPU of a small request", less, atMostTimesOf, 1+tolerance, "Small requests", "CPU per request")
	return targets
}

const (
	// registryLimit is registry.resources.limits.memory of the chart, hookLimit
	// initHook.resources.limits.memory, and healerLimit healer.resources.limits.memory, in MB.
	registryLimit = (1 << 30) / 1e6
	hookLimit     = (512 << 20) / 1e6
	healerLimit   = (64 << 20) / 1e6
)

// scaleTargets are the targets of bench/scale.
func scaleTargets() []target {
	const same, different, herd, prepare = "Pulls of the same image", "Pulls of different images", "Thundering herd",
		"prepare, by nodes in the cluster"
	return []target{
		{what: "1000 nodes pull the same image: failed pulls", want: "0", met: atMost(0), benchmark: "scale", table: same,
			subject: "1000 nodes", measure: "failed pulls"},
		{what: "1000 nodes pull different images: failed pulls", want: "0", met: atMost(0), benchmark: "scale",
			table: different, subject: "1000 nodes", measure: "failed pulls"},
		{what: "herd of 1000 nodes: failed pulls", want: "0", met: atMost(0), benchmark: "scale", table: herd,
			subject: "1000 nodes, 3 MB", measure: "failed pulls"},
		{what: "herd of 1000 nodes: the registry's memory", want: "≤ half of the chart's limit of 1 GiB",
			met: atMost(registryLimit / 2), benchmark: "scale", table: herd, subject: "1000 nodes, 3 MB", measure: "memory"},
		{what: "herd of 10 nodes and 500 MB: bytes sent for each of the image and node", want: "≤ 1.01", met: atMost(1.01),
			benchmark: "scale", table: herd, subject: "10 nodes, 500 MB", measure: "sent per byte of image and node"},
		{what: "herd of 10 nodes and 500 MB: Jain's index of fairness", want: "≥ 0.95", met: atLeast(0.95),
			benchmark: "scale", table: herd, subject: "10 nodes, 500 MB", measure: "Jain's index"},
		{what: "prepare in a cluster of 5000 nodes: memory", want: "≤ the chart's limit of 512 MiB", met: atMost(hookLimit),
			benchmark: "scale", table: prepare, subject: "cluster of 5000 nodes", measure: "memory"},
		{what: "healer at rest with 5000 nodes and startupTaint: memory", want: "≤ half of the chart's limit of 64 MiB",
			met: atMost(healerLimit / 2), benchmark: "healer", table: "A healer at rest, by nodes in the cluster",
			subject: "healer, 5000 nodes, startupTaint", measure: "memory"},
	}
}
