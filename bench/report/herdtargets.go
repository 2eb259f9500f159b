package main

// herdTargets are the targets of bench/herd.
func herdTargets() []target {
	const caches, all = "5 caches", "all cases"
	targets := []target{
		{what: "50 nodes pull at once through 5 caches: copies from the registry", limit: 5.5, subject: caches,
			measure: "copies from the registry"},
		{what: "50 nodes pull at once through 5 caches: last done", limit: 1.3, unit: "× what the links allow",
			subject: caches, measure: "last done, × what the links allow"},
		{what: "50 nodes pull at once, also with a failing cache: failed pulls", subject: all, measure: "failed pulls"},
		{what: "50 nodes pull at once, also with a failing cache: wrong blobs", subject: all, measure: "wrong blobs"},
	}
	for n := range targets {
		targets[n].benchmark, targets[n].table = "herd", "All nodes pull the image at the same moment"
	}
	return targets
}
