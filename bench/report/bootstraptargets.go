package main

// bootstrapTargets are the targets of bench/bootstrap.
func bootstrapTargets() []target {
	const (
		under, failed    = "Under a loop of pulls on each node", "failed"
		seeding, release = "Seeding", "zarf-registry"
	)
	all := []target{
		{what: "payload in etcd", limit: 16, unit: "MB", table: seeding, subject: release, measure: "payload in etcd"},
		{what: "what of it a node fetches", limit: 4, unit: "MB", table: seeding, subject: release,
			measure: "a node fetches"},
		{what: "seeding", limit: 2, unit: "s", table: seeding, subject: release, measure: "writing the payload"},
		{what: "install: hook's pod made → registry ready", limit: 15, unit: "s",
			table: "Installing: when each phase was reached", subject: "registry ready",
			measure: "since the hook's pod was made"},
		{what: "new node: Ready → first pull through its proxy", limit: 2, unit: "s", table: "A node is added",
			subject: release, measure: "Ready to first pull"},
		{what: "failed pulls while the registry's pod is replaced", table: under, subject: "the registry's pod deleted",
			measure: failed},
		{what: "failed pulls in a switch to nodeport mode", table: under, subject: "switch to nodeport mode",
			measure: failed},
		{what: "failed pulls in a switch to proxy mode", table: under, subject: "switch to proxy mode", measure: failed},
		{what: "failed pulls in a rollout of the proxies, host network", table: under,
			subject: "rollout of the proxies, host network", measure: failed},
		{what: "gap of pulls in a rollout of the proxies, host port", limit: 2, unit: "s", table: under,
			subject: "rollout of the proxies, host port", measure: "longest time without a pull that ended"},
	}
	for n := range all {
		all[n].benchmark = "bootstrap"
	}
	return all
}
