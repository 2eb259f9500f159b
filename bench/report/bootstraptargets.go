package main

// bootstrapTargets are the targets of bench/bootstrap.
func bootstrapTargets() []target {
	const under = "Under a loop of pulls on each node"
	one := func(what, want string, limit float64, table, subject, measure string) target {
		return target{what: what, want: want, met: atMost(limit), benchmark: "bootstrap", table: table, subject: subject,
			measure: measure}
	}
	rollout := one("gap of pulls in a rollout of the proxies, host port", "< 2 s", 2, under,
		"rollout of the proxies, host port", "longest time without a pull that ended")
	rollout.bound = "Kubernetes creates the new pod only after the old one is gone, kubelets check for exited " +
		"containers once a second, and setting up a pod's network and volumes takes about a second " +
		"([details](../docs/performance.md#bootstrap))"
	return []target{
		one("payload in etcd", "≤ 14 MB", 14, "Seeding", "zarf-registry", "payload in etcd"),
		one("what of it a node fetches", "≤ 4 MB", 4, "Seeding", "zarf-registry", "a node fetches"),
		one("seeding", "≤ 2 s", 2, "Seeding", "zarf-registry", "writing the payload"),
		one("install: hook's pod made → registry ready", "≤ 15 s", 15, "Installing: when each phase was reached",
			"registry ready", "since the hook's pod was made"),
		one("new node: Ready → first pull through its proxy", "≤ 6 s", 6, "A node is added", "zarf-registry",
			"Ready to first pull"),
		one("failed pulls while the registry's pod is replaced", "0", 0, under, "the registry's pod deleted", "failed"),
		one("failed pulls in a switch to nodeport mode", "0", 0, under, "switch to nodeport mode", "failed"),
		one("failed pulls in a switch to proxy mode", "0", 0, under, "switch to proxy mode", "failed"),
		one("failed pulls in a rollout of the proxies, host network", "0", 0, under, "rollout of the proxies, host network",
			"failed"),
		rollout,
	}
}
