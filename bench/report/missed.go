package main

// missed lists the targets that are known to be missed, with the reason, which the page shows. Targets that
// are missed and not listed here fail the benchmark. docs/dev/performance.md has the profiles.
var missed = []struct{ reason, target string }{
	{boundConnect, "new connections: ≥ 1 × every other"},
	{boundConnect, "new connections, p99: ≤ 1 × every other"},
	{boundConnect, "CPU of the proxy for a new connection: ≤ 1 × every other"},
	{boundKeep, "requests on connections that stay: ≥ 1 × every other"},
	{boundStream, "CPU of the proxy for one body: ≤ 1 × every other"},
	{boundStream, "one body: ≥ 0.95 × every other"},
	{boundMemory, "memory, 50 idle connections after load: ≤ 12 MB"},
	{"a node port does not encrypt; registry and proxy do, and all nodes share this machine: compare direct TLS",
		"crictl pull of 1 GB through the proxy: ≤ 1.1 × node port"},
}

const (
	boundConnect = "the server of net/http: a second goroutine and three context allocations per request, in addition " +
		"to the system calls that every proxy needs ([profile](../docs/dev/performance.md#new-connections))"
	boundKeep = "HTTP is parsed and written twice, unlike in TCP proxies " +
		"([profile](../docs/dev/performance.md#requests-on-open-connections))"
	boundStream = "three quarters of the CPU time are copies in the kernel and AES-GCM in Go " +
		"([profile](../docs/dev/performance.md#large-bodies))"
	boundMemory = "7.6 MB are pages of the program's file, of which only `configure` uses 1.1 MB " +
		"([breakdown](../docs/dev/performance.md#memory))"
)

// reason returns why a target is known to be missed, or "" if it is not.
func reason(t target) string {
	for _, m := range missed {
		if m.target == t.key() {
			return m.reason
		}
	}
	return ""
}
