// Command report renders bench/RESULTS.md from the reports in the benchmarks' directories. The page has a
// table of targets with the measured values, and the tables of each benchmark.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// benchmarks are the directories of the benchmarks in bench/, in the order of the page.
var benchmarks = []struct{ dir, title string }{
	{"proxy", "The proxy compared with other proxies"},
	{"registry", "The registry compared with distribution"},
	{"bootstrap", "Installation on a real cluster"},
	{"scale", "One registry and up to 1000 nodes"},
	{"healer", "The healer"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: report BENCH_DIRECTORY")
		os.Exit(1)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(bench string) error {
	reports := map[string]*results.Report{}
	for _, b := range benchmarks {
		r, err := results.Read(filepath.Join(bench, b.dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not measured yet; the page says so
		}
		if err != nil {
			return err
		}
		reports[b.dir] = r
	}
	return os.WriteFile(filepath.Join(bench, "RESULTS.md"), page(reports), 0o644)
}

func page(reports map[string]*results.Report) []byte {
	var b bytes.Buffer
	b.WriteString("# Results\n\nWritten by `make bench`. Values are medians of all runs (minimum–maximum). " +
		"[images/RESULTS.md](images/RESULTS.md) compares pushes and pulls of images with other tools.\n")
	b.WriteString("\n## Targets\n\n| measure | target | result | met | limiting factor |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		ours, met := t.result(reports)
		bound := t.bound
		if met == "yes" {
			bound = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", t.what, t.want, ours, met, bound)
	}
	for _, section := range benchmarks {
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		r := reports[section.dir]
		if r == nil {
			b.WriteString("Not measured yet.\n")
			continue
		}
		fmt.Fprintf(&b, "%s\n\n%s: %s.\n", r.How, r.Date.Format("2006-01-02 15:04 MST"), r.Machine)
		writeSubjects(&b, r)
		for _, table := range tables(r) {
			writeTable(&b, r, table)
		}
	}
	return b.Bytes()
}

func writeSubjects(b *bytes.Buffer, r *results.Report) {
	b.WriteString("\n| subject | version | details |\n|---|---|---|\n")
	for _, s := range r.Subjects {
		fmt.Fprintf(b, "| %s | %s | %s |\n", s.Name, s.Version, s.About)
	}
}

// tables returns the headings of a report's tables, in order.
func tables(r *results.Report) []string {
	var found []string
	for _, m := range r.Measures {
		if !slices.Contains(found, m.Table) {
			found = append(found, m.Table)
		}
	}
	return found
}

// writeTable writes a table with a row for each subject that has a value.
func writeTable(b *bytes.Buffer, r *results.Report, table string) {
	var columns []*results.Measure
	for _, m := range r.Measures {
		if m.Table == table && !slices.ContainsFunc(columns, func(c *results.Measure) bool { return c.What == m.What }) {
			columns = append(columns, m)
		}
	}
	fmt.Fprintf(b, "\n### %s\n\n| |", table)
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", strings.TrimSuffix(c.What+", "+c.Unit, ", "))
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("--:|", len(columns)))
	for _, s := range r.Subjects {
		row, any := fmt.Sprintf("| %s |", s.Name), false
		for _, c := range columns {
			cell := "–"
			if m := r.Find(table, s.Name, c.What); m != nil {
				cell, any = spread(m), true
			}
			row += " " + cell + " |"
		}
		if any {
			fmt.Fprintln(b, row)
		}
	}
}

// spread formats a measure for a table.
func spread(m *results.Measure) string {
	median, minimum, maximum := m.Spread()
	if minimum == maximum {
		return number(median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(median), number(minimum), number(maximum))
}

// number formats a value with three significant digits, or as an integer if it is 100 or more.
func number(x float64) string {
	switch {
	case x >= 100 || x == 0:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
