package main

import "strings"

// registryTargets are the targets of bench/registry: no test is slower than with distribution, apart from what two runs
// differ.
func registryTargets() (targets []target) {
	const faster, cheaper = 0.95, 1.05
	cause := map[string]string{
		"Pulls": "the kernel keeps at most 128 KiB of a response for a client (TCP_NOTSENT_LOWAT), so that clients that do " +
			"not read take little memory; without that limit, ours was 1.1 × distribution",
		"Three pulls for each push": "as with pulls",
	}
	add := func(table string, limit float64, measures ...string) {
		for _, measure := range measures {
			t := target{what: "registry: " + table + ", " + measure, table: table, subject: "ours",
				measure: measure, atLeast: limit < 1, limit: limit, peers: []string{"distribution"}}
			if strings.HasPrefix(measure, "100 MB") {
				t.cause = cause[table]
			}
			targets = append(targets, t)
		}
	}
	add("Pulls", faster, "1 MB", "10 MB", "100 MB", "100 MB, one client", "mixed")
	add("Pushes", faster, "1 MB", "10 MB", "100 MB", "mixed")
	add("Pushes in chunks", faster, "1 MB", "10 MB", "100 MB", "mixed")
	add("Three pulls for each push", faster, "1 MB", "10 MB", "100 MB")
	add("Catalog and resources", faster, "catalog")
	add("Catalog and resources", cheaper, "CPU of pulls per GiB", "CPU of pushes per GiB", "memory")
	return of("registry", targets)
}
