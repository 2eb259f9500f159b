package main

import "github.com/zarf-dev/zarf-registry/bench/internal/results"

// besideDistribution is how much less, or more, of anything our front may make of
// distribution's own server.
const besideDistribution = 0.05

func registryTargets() (targets []target) {
	const distribution = "distribution"
	add := func(what, want string, met func(float64, string, string, string) func(float64, *results.Report) bool, share float64, table, measure string) {
		targets = append(targets, target{what: "registry: " + what, want: want, met: met(share, table, distribution, measure),
			benchmark: "registry", table: table, subject: "ours", measure: measure})
	}
	const more, less = "≥ 95 % of distribution's own server", "≤ 105 % of distribution's own server"
	add("pulls, one at a time", more, atLeastTimesOf, 1-besideDistribution, "Pulls", "one at a time")
	add("pulls, four at a time", more, atLeastTimesOf, 1-besideDistribution, "Pulls", "four at a time")
	add("CPU of pulls, four at a time", less, timesOf, 1+besideDistribution, "Pulls", "four: CPU per GiB")
	add("memory at four pulls", less, timesOf, 1+besideDistribution, "Pulls", "four: memory")
	add("pushes, one at a time", more, atLeastTimesOf, 1-besideDistribution, "Pushes", "one at a time")
	add("pushes, four at a time", more, atLeastTimesOf, 1-besideDistribution, "Pushes", "four at a time")
	add("small requests", more, atLeastTimesOf, 1-besideDistribution, "Small requests", "requests")
	add("CPU of a small request", less, timesOf, 1+besideDistribution, "Small requests", "CPU per request")
	return targets
}
