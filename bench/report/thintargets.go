package main

// thinTargets are the targets of bench/thin.
func thinTargets() []target {
	const archive, thin, full = "Archive of all images, pulled and pushed", "thin archive", "full archive"
	all := []target{
		{what: "inventory of 1000 images", limit: 100, unit: "kB", table: "Inventory", subject: "inventory", measure: "size"},
		{what: "thin archive of 1000 images, 50 changed: bytes for each byte of manifests and new blobs", limit: 1.05,
			table: archive, subject: thin, measure: "bytes per byte of manifests and new blobs"},
		{what: "pull of the thin archive", limit: 0.5, table: archive, subject: thin, measure: "pull", peers: []string{full}},
		{what: "push of the thin archive", limit: 1, table: archive, subject: thin, measure: "push", peers: []string{full}},
		{what: "images of the thin archive that are incomplete afterwards", table: archive, subject: thin,
			measure: "incomplete images"},
	}
	for n := range all {
		all[n].benchmark = "thin"
	}
	return all
}
