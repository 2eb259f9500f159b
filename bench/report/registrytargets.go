package main

// registryTargets are the targets of bench/registry.
func registryTargets() (targets []target) {
	// The differences to distribution that are allowed.
	const more, less = 0.95, 1.05
	for _, t := range []target{
		{what: "pulls, one at a time", atLeast: true, table: "Pulls", measure: "one at a time"},
		{what: "pulls, four at a time", atLeast: true, table: "Pulls", measure: "four at a time"},
		{what: "CPU of pulls, four at a time", table: "Pulls", measure: "four: CPU per GiB"},
		{what: "memory at four pulls", table: "Pulls", measure: "four: memory"},
		{what: "pushes, one at a time", atLeast: true, table: "Pushes", measure: "one at a time"},
		{what: "pushes, four at a time", atLeast: true, table: "Pushes", measure: "four at a time"},
		{what: "CPU of pushes, four at a time", table: "Pushes", measure: "four: CPU per GiB"},
		{what: "small requests", atLeast: true, table: "Small requests", measure: "requests"},
		{what: "CPU of a small request", table: "Small requests", measure: "CPU per request"},
	} {
		t.what, t.benchmark, t.subject = "registry: "+t.what, "registry", "ours"
		t.peers, t.limit = []string{"distribution"}, less
		if t.atLeast {
			t.limit = more
		}
		targets = append(targets, t)
	}
	return targets
}

// scaleTargets are the targets of bench/scale.
func scaleTargets() []target {
	const same, different, herd, prepare, garbage = "Pulls of the same image", "Pulls of different images",
		"Thundering herd", "prepare, by nodes in the cluster", "Pushes while garbage is collected"
	return []target{
		{what: "1000 nodes pull the same image: failed pulls", benchmark: "scale", table: same,
			subject: "1000 nodes", measure: "failed pulls"},
		{what: "1000 nodes pull different images: failed pulls", benchmark: "scale", table: different,
			subject: "1000 nodes", measure: "failed pulls"},
		{what: "herd of 1000 nodes: failed pulls", benchmark: "scale", table: herd, subject: "1000 nodes, 3 MB",
			measure: "failed pulls"},
		{what: "herd of 1000 nodes: the registry's memory", limit: 536, unit: "MB, half of the chart's limit",
			benchmark: "scale", table: herd, subject: "1000 nodes, 3 MB", measure: "memory"},
		{what: "herd of 10 nodes and 500 MB: bytes sent for each of the image and node", limit: 1.01,
			benchmark: "scale", table: herd, subject: "10 nodes, 500 MB", measure: "sent per byte of image and node"},
		{what: "herd of 10 nodes and 500 MB: Jain's index of fairness", atLeast: true, limit: 0.95,
			benchmark: "scale", table: herd, subject: "10 nodes, 500 MB", measure: "Jain's index"},
		{what: "prepare in a cluster of 5000 nodes: memory", limit: 536, unit: "MB, the chart's limit", benchmark: "scale",
			table: prepare, subject: "cluster of 5000 nodes", measure: "memory"},
		{what: "healer at rest with 5000 nodes and startupTaint: memory", limit: 33, unit: "MB, half of the chart's limit",
			benchmark: "healer", table: "A healer at rest, by nodes in the cluster",
			subject: "healer, 5000 nodes, startupTaint", measure: "memory"},
		{what: "collection of 100000 blobs: longest wait of a manifest", limit: 2, unit: "s", benchmark: "garbage",
			table: garbage, subject: "100000 blobs", measure: "longest wait of a manifest, new layers"},
		{what: "collection of 100000 blobs: longest wait of a manifest whose layers are garbage", limit: 2, unit: "s",
			benchmark: "garbage", table: garbage, subject: "100000 blobs",
			measure: "longest wait of a manifest, layers are garbage"},
		{what: "collection of 100000 blobs: images that are incomplete afterwards", benchmark: "garbage", table: garbage,
			subject: "100000 blobs", measure: "incomplete images"},
	}
}
