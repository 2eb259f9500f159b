package main

// imagesTargets are the targets of bench/images.
func imagesTargets() []target {
	others := []string{"crane", "skopeo", "regctl"}
	const node = "A container runtime pulls 1 GB"
	all := []target{
		{what: "push of 40 images through the API server", table: "Cold push", subject: "init-hook", measure: "took",
			limit: 1, peers: others},
		{what: "the same push again", table: "Warm push", subject: "init-hook", measure: "took", limit: 1, peers: others},
		{what: "pull of 40 images through the API server", table: "Cold pull", subject: "init-hook", measure: "took",
			limit: 1, peers: others},
		{what: "the same pull again", table: "Warm pull", subject: "init-hook", measure: "took", limit: 1, peers: others},
		{what: "crictl pull of 1 GB through the proxy", table: node, subject: "proxy", measure: "took", limit: 1.1,
			peers: []string{"node port"}},
		{what: "crictl pull of 1 GB through the proxy", table: node, subject: "proxy", measure: "took", limit: 1.25,
			peers: []string{"direct TLS"}},
	}
	for n := range all {
		all[n].benchmark = "images"
	}
	return all
}
