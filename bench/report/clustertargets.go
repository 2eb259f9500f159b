package main

// clusterTargets are the targets of bench/cluster.
func clusterTargets() []target {
	const (
		install, payload, idle = "From the installation to the first pod", "Payload and start", "What runs on an idle node"
		later, pull            = "A node added later", "A container runtime pulls 1 GB"
		push, changed          = "Push of 40 images, 1.48 GB", "Push of the same after 1 % has changed"
		ours, took             = "zarf-registry", "took"
	)
	tools := []string{"crane", "skopeo", "regctl"}
	all := []target{
		{what: "zarf-registry install: registry ready", limit: 15, unit: "s", table: install,
			subject: "zarf-registry install", measure: "registry ready",
			cause: "six pods start at once on two cores: containerd takes 2 to 3 s for each sandbox, alone 0.4 s"},
		{what: "payload in etcd", limit: 14.5, unit: "MB", table: payload, subject: ours, measure: "in etcd"},
		{what: "what of it a node fetches", limit: 3.85, unit: "MB", table: payload, subject: ours,
			measure: "a node fetches"},
		{what: "new node: Ready → first pull through its proxy", limit: 2, unit: "s", table: later, subject: ours,
			measure: "Ready to first pull",
			cause:   "of a typical 5.0 s, kubelet and containerd took 4.1 s: volumes 1.0 s, sandbox 1.6 s, container 0.7 s"},
		{what: "watches of a node", limit: 10, table: idle, subject: "a node", measure: "watches"},
		{what: "push of 40 images through the API server", limit: 1, peers: tools, table: push, subject: ours, measure: took},
		{what: "the same push after 1 % has changed", limit: 1, peers: tools, table: changed, subject: ours, measure: took},
		{what: "crictl pull of 1 GB through the proxy", limit: 1.25, peers: []string{"direct TLS"}, table: pull,
			subject: "proxy", measure: took,
			cause: "client, proxy, registry and control plane share two cores; with links of 1 Gbit/s it is 1 × (below)"},
	}
	return of("cluster", all)
}
