package main

// proxyTargets are the targets of bench/proxy.
func proxyTargets() []target {
	const (
		connect = "A new connection for each request of 1 KiB, 8 clients"
		keep    = "Requests of 1 KiB on 8 connections that stay"
		stream  = "One large body"
		streams = "Four large bodies at once"
		memory  = "Memory"

		requests, p99, each, gib, throughput = "requests", "p99", "CPU of the proxy for each", "CPU of the proxy",
			"throughput"
	)
	naive := []string{"naive Go"}
	others := []string{"naive Go", "nginx http", "nginx stream", "haproxy http", "haproxy tcp", "stunnel", "ghostunnel",
		"socat"}
	all := []target{
		{what: "new connections", table: connect, measure: requests, atLeast: true, limit: 1, peers: naive},
		{what: "new connections", table: connect, measure: requests, atLeast: true, limit: 1, peers: others},
		{what: "new connections, p99", table: connect, measure: p99, limit: 1, peers: naive},
		{what: "new connections, p99", table: connect, measure: p99, limit: 1, peers: others},
		{what: "CPU of the proxy for a new connection", table: connect, measure: each, limit: 0.8, peers: naive},
		{what: "CPU of the proxy for a new connection", table: connect, measure: each, limit: 1, peers: others},
		{what: "requests on connections that stay", table: keep, measure: requests, atLeast: true, limit: 1, peers: naive},
		{what: "requests on connections that stay", table: keep, measure: requests, atLeast: true, limit: 1, peers: others},
		{what: "CPU of the proxy for a request on a connection that stays", table: keep, measure: each, limit: 1,
			peers: naive},
		{what: "CPU of the proxy for one body", table: stream, measure: gib, limit: 1, peers: others},
		{what: "one body", table: stream, measure: throughput, atLeast: true, limit: 0.95, peers: others},
		{what: "four large bodies", table: streams, measure: throughput, atLeast: true, limit: 0.95, peers: others},
		{what: "memory, 50 idle connections", table: memory, measure: "50 idle connections", limit: 1, peers: naive},
		{what: "memory, 50 idle connections after load", table: memory, measure: "50 after load", limit: 12, unit: "MB"},
	}
	for n := range all {
		all[n].benchmark, all[n].subject = "proxy", "registry-node"
	}
	return all
}
