package main

// nodesTargets are the targets of bench/nodes.
func nodesTargets() []target {
	const (
		one, ten, fifty, small = "1 GB on 1 node", "1 GB on 10 nodes", "200 MB on 50 nodes", "Latency of a small image"
		proxy, port, caches    = "proxy", "node port", "caches"
		last, fresh            = "last node done", "new connections, p50"
	)
	distribution, nginx := []string{"distribution"}, []string{"nginx"}
	targets := []target{
		{what: "1 GB on a node through the proxy", limit: 1.1, table: one, subject: proxy, measure: last,
			peers: []string{port}},
		{what: "1 GB on 10 nodes through the proxy", limit: 1.1, table: ten, subject: proxy, measure: last,
			peers: []string{port}},
		{what: "50 nodes through 5 caches: copies from the registry", limit: 5.5, table: fifty, subject: caches,
			measure: "copies from the registry"},
		{what: "50 nodes through 5 caches: last done", limit: 1.3, unit: "× what the links allow", table: fifty,
			subject: caches, measure: "× what the links allow"},
		{what: "50 nodes through 5 caches: last done", limit: 1, table: fifty, subject: caches, measure: last, peers: nginx},
		{what: "small image through the proxy, p50", limit: 1, table: small, subject: proxy, measure: fresh,
			peers: distribution},
		{what: "small image through the proxy, p99", limit: 1, table: small, subject: proxy, measure: "p99",
			peers: distribution},
		{what: "small image through a node port, p50", limit: 1, table: small, subject: port, measure: fresh,
			peers: distribution},
	}
	return of("nodes", targets)
}
