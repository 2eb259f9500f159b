package main

// proxyTargets are the targets of bench/proxy.
func proxyTargets() []target {
	const (
		requests, bodies   = "Requests of 1 KiB, 8 clients", "Large bodies, and memory"
		fresh, open        = "new connections", "on open connections"
		freshCPU, openCPU  = "new: CPU", "open: CPU"
		naive, nginx, zarf = "naive Go", "nginx http", "socat"
	)
	one := func(name string) []string { return []string{name} }
	all := []target{
		{what: "new connections", table: requests, measure: fresh, atLeast: true, limit: 10, peers: one(zarf)},
		{what: "new connections", table: requests, measure: fresh, atLeast: true, limit: 1, peers: one(naive)},
		{what: "new connections, p99", table: requests, measure: "new: p99", limit: 1, peers: one(naive)},
		{what: "CPU for a new connection", table: requests, measure: freshCPU, limit: 0.8, peers: one(naive)},
		{what: "CPU for a new connection", table: requests, measure: freshCPU, limit: 1, peers: one(nginx),
			cause: "three quarters of the difference are user space: Go's runtime takes 28 % of the CPU time"},
		{what: "requests on open connections", table: requests, measure: open, atLeast: true, limit: 1, peers: one(naive)},
		{what: "CPU for a request on an open connection", table: requests, measure: openCPU, limit: 1, peers: one(naive)},
		{what: "CPU for one body", table: bodies, measure: "one: CPU", limit: 1, peers: one(nginx),
			cause: "equal within the ranges; the kernel takes 60 % of the CPU time and AES-GCM 28 %"},
		{what: "four bodies", table: bodies, measure: "four bodies", atLeast: true, limit: 0.95,
			peers: []string{naive, nginx, "haproxy http", "ghostunnel", zarf}},
		{what: "memory, 50 idle connections", table: bodies, measure: "memory", limit: 1, peers: one(naive)},
		{what: "memory, 50 idle connections after load", table: bodies, measure: "after load", limit: 12, unit: "MB",
			cause: "8.7 MB are pages of the program's file, which the kernel can drop"},
	}
	for n := range all {
		all[n].subject = "registry-node"
	}
	return of("proxy", all)
}
