package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The report: a page, the same as data, and a directory with the end of each log.
const (
	reportPage = "compatibility.md"
	reportJSON = "compatibility.json"
	reportLogs = "compatibility"
)

const introduction = `# Compatibility

What has been run, on which configuration, and when. ` + "`make matrix`" + ` writes this page,
[compatibility.json](compatibility.json) and the logs; ` + "`make matrix-check`" + ` runs all again and
compares. [support.md](support.md) says what follows from it, [distributions.md](distributions.md)
what is known about products that have not been run.

Each cell is a [test cluster](../test/cluster/README.md) with upstream programs, built from source,
on which a release is installed, images are pushed, each node pulls, a node joins and pulls, the
mode is switched to node ports and back while nodes pull (or refused with advice, where node ports
do not answer on the loopback address, or CRI-O demands TLS), the release is uninstalled, and one of
the previous version is installed and upgraded while nodes pull.

* **tested**: all steps passed.
* **simulated**: all steps passed, on a program changed to behave like another version: CRI-O 1.34
  which demands TLS on loopback addresses, as 1.35 does.
* **known broken**: a step failed, named below.
* **reasoned**: not run, for the reason below.

The tables have one log for each result that their cells have; what differs between those is below.
`

// writeReport writes the page, the data and the logs.
func writeReport(docs, logs string, results []result) error {
	if len(results) == 0 {
		return errors.New("there are no results to report: run make matrix")
	}
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Join(docs, reportLogs)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(docs, reportJSON), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(docs, reportPage), []byte(page(results)), 0o644)); err != nil {
		return err
	}
	for _, r := range results {
		if len(r.Steps) == 0 {
			continue
		}
		log, err := os.ReadFile(filepath.Join(logs, r.Cell+".log"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, r.Cell+".log"), []byte(condensed(string(log))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// condensed returns the lines of a log that say what was run and how it ended.
func condensed(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		trimmed := strings.TrimSpace(line)
		if slices.ContainsFunc([]string{"--- ", "=== RUN", "PASS", "FAIL", "ok"}, func(prefix string) bool {
			return strings.HasPrefix(trimmed, prefix)
		}) || strings.Contains(line, "versions: ") || strings.Contains(line, "figure: ") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func page(results []result) string {
	var b strings.Builder
	b.WriteString(introduction)
	all := cells()
	fmt.Fprint(&b, "\n## Kubernetes and container runtime\n\n")
	table(&b, results, all, "Kubernetes", func(c cell) string { return c.Kubernetes },
		func(c cell) string { return c.Runtime })
	fmt.Fprint(&b, "\n## IP family and kube-proxy\n\n")
	table(&b, results, all, "IP family", func(c cell) string { return c.Family },
		func(c cell) string { return c.KubeProxy })
	fmt.Fprint(&b, "\n## Network of pods\n\n")
	table(&b, results, all, "CNI plugin", func(c cell) string { return c.CNI }, func(c cell) string { return c.Family })
	fmt.Fprint(&b, "\n## Helm and storage\n\n")
	table(&b, results, all, "Storage", func(c cell) string { return c.Storage }, func(c cell) string { return c.Helm })
	fmt.Fprint(&b, `
Helm is 3.22.0 where no version is named. The StorageClass "standard" is a host directory, "local"
has node affinity, and volumes of "attached" attach and detach; "s3" is versitygw with a private CA.

## All cells

A second runtime is that of one of the nodes. A tainted node has kubeadm's taint of a control plane.
Sources are identified by a digest of their list in git.

| cell | result | day | sources | steps |
|---|---|---|---|---|
`)
	for _, c := range all {
		if r := find(results, c); r != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.name(), link(*r), r.Date, r.Source, details(*r))
		}
	}
	return b.String()
}

// table writes the results by two properties.
func table(b *strings.Builder, results []result, all []cell, what string, row, column func(cell) string) {
	columns := values(all, column)
	fmt.Fprintf(b, "| %s | %s |\n|---|%s\n", what, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, rowValue := range values(all, row) {
		fmt.Fprintf(b, "| %s |", rowValue)
		for _, columnValue := range columns {
			fmt.Fprintf(b, " %s |", summary(results, all, func(c cell) bool {
				return row(c) == rowValue && column(c) == columnValue
			}))
		}
		b.WriteString("\n")
	}
}

// summary returns each status that some cells have, with the log of the first such cell.
func summary(results []result, all []cell, of func(cell) bool) string {
	found := map[string]string{}
	for _, c := range all {
		if r := find(results, c); of(c) && r != nil && found[r.Status] == "" {
			found[r.Status] = link(*r)
		}
	}
	var links []string
	for _, status := range statuses {
		if l := found[status]; l != "" {
			links = append(links, l)
		}
	}
	return cmp.Or(strings.Join(links, ", "), "not run")
}

var statuses = []string{tested, simulated, notRunnable, failed}

func link(r result) string {
	if len(r.Steps) == 0 {
		return r.Status
	}
	return fmt.Sprintf("[%s](%s/%s.log)", r.Status, reportLogs, r.Cell)
}

// details returns how many steps passed, or what did not.
func details(r result) string {
	for _, s := range r.Steps {
		if !s.Passed {
			return strings.TrimSuffix(fmt.Sprintf("%q failed: %s", s.Name, r.Reason), ": ")
		}
	}
	return cmp.Or(r.Reason, fmt.Sprintf("%d passed", len(r.Steps)))
}
