package main

// garbageTargets are the targets of bench/garbage.
func garbageTargets() []target {
	const steps, waits, meanwhile = "Catalog, deletion and collection", "Manifests of pushes", "during a collection"
	targets := []target{
		{what: "collection at 1,000,000 blobs in S3", table: steps, subject: "collection", measure: "at 1,000,000 blobs",
			limit: 30, unit: "min"},
		{what: "memory while garbage is collected", table: steps, subject: "collection", measure: "memory", limit: 536,
			unit: "MB, half of the chart's limit"},
		{what: "longest wait of a manifest while garbage is collected", table: waits, subject: meanwhile,
			measure: "longest", limit: 2, unit: "s"},
		{what: "incomplete images after a collection", table: waits, subject: meanwhile, measure: "incomplete images"},
	}
	return of("garbage", targets)
}
