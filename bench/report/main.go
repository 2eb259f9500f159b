// Command report renders RESULTS.md in a directory from the benchmarks' reports in its subdirectories. The page has a
// table of targets with the measured values, and the tables of each benchmark. The exit code is 1 if a target was not
// measured, or was missed and has no known cause.
package main

import (
	"bytes"
	"cmp"
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
	{"cluster", "Installation, pushes and idle nodes"},
	{"nodes", "Many nodes"},
	{"scale", "What many nodes cost the API server"},
	{"proxy", "The proxy beside other proxies"},
	{"registry", "The registry beside distribution"},
	{"garbage", "Garbage collection on S3"},
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: report DIRECTORY DIRECTORY-OF-ANOTHER-RUN [BENCHMARK...]")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// reports are those of a run by benchmark.
type reports map[string]*results.Report

// run writes the page and checks the targets of the named benchmarks, or of all. The page compares with the reports of
// another run, as far as they exist.
func run(bench, another string, checked []string, log io.Writer) error {
	now, err := read(bench)
	if err != nil {
		return err
	}
	again, err := read(another)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bench, "RESULTS.md"), page(now, again), 0o644); err != nil {
		return err
	}
	failed := 0
	for _, t := range targets {
		if len(checked) > 0 && !slices.Contains(checked, t.benchmark) {
			continue
		}
		switch o := t.check(now[t.benchmark]); {
		case o.met && t.cause != "":
			fmt.Fprintf(log, "met, so its cause can go: %s (%s)\n", t, o.value)
		case !o.met && (t.cause == "" || !o.measured):
			fmt.Fprintf(log, "missed: %s (%s)\n", t, o.value)
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d targets were missed: find the cause with a profile, and fix it or add it to the target",
			failed)
	}
	return nil
}

// read returns the reports that exist.
func read(dir string) (reports, error) {
	found := reports{}
	for _, b := range benchmarks {
		r, err := results.Read(filepath.Join(dir, b.dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[b.dir] = r
	}
	return found, nil
}

func page(now, again reports) []byte {
	var b bytes.Buffer
	b.WriteString("# Results\n\nWritten by `make bench`. Values are medians, those of targets with minimum and maximum. " +
		"Values relative to a peer (×) are ratios within the same run. *Again* is another run of all benchmarks.\n")
	b.WriteString("\n## Targets\n\n| measure | target | result | again | met |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		o, other, met := t.check(now[t.benchmark]), t.check(again[t.benchmark]), "**no**"
		switch {
		case !o.measured:
			met = "–"
		case o.met:
			met = "yes"
		case t.cause != "":
			met = "no: " + t.cause
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", t.what, t.wanted(), o.value, other.median, met)
	}
	var previous *results.Report
	for _, section := range benchmarks {
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		r := now[section.dir]
		if r == nil {
			b.WriteString("Not measured yet.\n")
			continue
		}
		fmt.Fprintf(&b, "%s %s.\n", r.How, strings.Join(measured(r, previous), "; "))
		for _, table := range tables(r) {
			writeTable(&b, r, table)
		}
		previous = r
	}
	return b.Bytes()
}

// measured says when, where and how a report was measured, as far as that differs from the previous one.
func measured(r, previous *results.Report) []string {
	said := []string{r.Date.Format("2006-01-02 15:04 MST")}
	if previous == nil || previous.Commit != r.Commit || previous.Machine.String() != r.Machine.String() {
		said = append(said, "commit "+cmp.Or(r.Commit, "unknown"), r.Machine.String())
	}
	if r.Forced {
		said = append(said, "**with `-force`: other programs may have used the machine**")
	}
	var details []string
	for _, s := range r.Subjects {
		if about := strings.TrimSpace(s.Version + " " + s.About); about != "" {
			details = append(details, s.Name+": "+about)
		}
	}
	return append(said, details...)
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
	fmt.Fprintf(b, "\n| %s |", table)
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", strings.TrimSuffix(c.What+", "+c.Unit, ", "))
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("--:|", len(columns)))
	for _, s := range r.Subjects {
		row, any := fmt.Sprintf("| %s |", s.Name), false
		for _, c := range columns {
			cell := "–"
			if m := r.Find(table, s.Name, c.What); m != nil {
				median, _, _ := m.Spread()
				cell, any = number(median), true
			}
			row += " " + cell + " |"
		}
		if any {
			fmt.Fprintln(b, row)
		}
	}
}

// spread formats a measure with its minimum and maximum.
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
