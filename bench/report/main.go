// Command report renders RESULTS.md in a directory from the benchmarks' reports in its subdirectories. The page has a
// table of targets with the measured values, and the tables of each benchmark. The exit code is 1 if a target
// was missed, unless it is listed in missed.go, or not measured.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// benchmarks are the directories of the reports, in the order of the page.
var benchmarks = []struct{ dir, title string }{
	{"proxy", "The proxy compared with other proxies"},
	{"registry", "The registry compared with distribution"},
	{"bootstrap", "Installation on a real cluster"},
	{"images", "Images: pushes and pulls by users and nodes"},
	{"thin", "Images: only what changed"},
	{"herd", "Caches: many nodes at the same moment"},
	{"garbage", "Garbage collection in S3"},
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: report DIRECTORY [BENCHMARK...]")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// run writes the page and checks the targets of the named benchmarks, or of all.
func run(bench string, checked []string, log io.Writer) error {
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
	if err := os.WriteFile(filepath.Join(bench, "RESULTS.md"), page(reports), 0o644); err != nil {
		return err
	}
	failed := 0
	for _, t := range targets {
		if len(checked) > 0 && !slices.Contains(checked, t.benchmark) {
			continue
		}
		switch o := t.check(reports[t.benchmark]); {
		case o.met && reason(t) != "":
			fmt.Fprintf(log, "met: remove from bench/report/missed.go: %s (%s)\n", t.key(), o.value)
		case !o.met && (reason(t) == "" || !o.measured):
			fmt.Fprintf(log, "missed: %s (%s)\n", t.key(), o.value)
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d targets were missed: fix the cause, or list them with a reason in bench/report/missed.go",
			failed)
	}
	return nil
}

func page(reports map[string]*results.Report) []byte {
	var b bytes.Buffer
	b.WriteString("# Results\n\nWritten by `make bench`. Values are medians of all runs (minimum–maximum). " +
		"Targets and results relative to others (×) are ratios within the same run.\n")
	b.WriteString("\n## Targets\n\n| measure | target | result | met | why not |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		o, met, why := t.check(reports[t.benchmark]), "**no**", reason(t)
		switch {
		case !o.measured:
			met, why = "–", ""
		case o.met:
			met, why = "yes", ""
		case why != "":
			met = "no"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", t.what, t.wanted(), o.value, met, why)
	}
	for _, section := range benchmarks {
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		r := reports[section.dir]
		if r == nil {
			b.WriteString("Not measured yet.\n")
			continue
		}
		fmt.Fprintf(&b, "%s\n\n%s: %s", r.How, r.Date.Format("2006-01-02 15:04 MST"), r.Machine)
		if r.Seed != 0 {
			fmt.Fprintf(&b, "; order of the subjects in each run: -seed %d", r.Seed)
		}
		b.WriteString(".\n")
		if r.Forced {
			b.WriteString("\n**With `-force`: other programs may have used the machine.**\n")
		}
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
