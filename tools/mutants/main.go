// Command mutants changes the code of packages in small ways, one change at a time, and reports which
// changes no unit test notices.
//
//	go run ./tools/mutants -seed 1 -n 200 ./internal/proxy ./internal/registry
//
// It first runs every test alone to learn which statements it executes. For a mutant it compiles the test
// programs with an overlay, so it never writes to the source tree, and runs only tests that execute the
// mutated statement, with -short and fastest first. A mutant is caught if one of them fails or exceeds its
// timeout twice.
// Each mutant has a rank that depends only on the seed and its own text, so a change elsewhere does not
// alter the sample. Mutants that do not compile, or that no unit test executes, are not in the sample.
//
// The exit code is 1 if fewer mutants are caught than -target requires, or if a survivor has no
// explanation in survivors.txt.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "seed of the sample")
	number := flags.Int("n", 200, "number of mutants")
	target := flags.Float64("target", 85, "percentage of mutants that must be caught")
	only := flags.String("run", "", "regular expression: run only mutants of the sample whose FILE:LINE FUNCTION matches")
	jobs := flags.Int("jobs", runtime.GOMAXPROCS(0), "number of mutants at a time")
	list := flags.String("survivors", "tools/mutants/survivors.txt", "explanations of mutants that survive")
	output := flags.String("output", "dist/mutants.json", "file for the results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("invalid -run: %w", err)
	}
	began := time.Now()
	explained, err := readExplanations(*list)
	if err != nil {
		return err
	}
	packages, err := load(ctx, flags.Args())
	if err != nil {
		return err
	}
	dir, err := tempDir("")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	covered, err := measure(ctx, dir, packages, *jobs)
	if err != nil {
		return err
	}
	var all []*mutant
	for _, p := range packages {
		all = append(all, p.mutants()...)
	}
	without := 0
	for _, m := range all {
		if m.tests = covered.by(m); len(m.tests) == 0 {
			without++
		}
	}
	sample := choose(all, *seed, *number)
	fmt.Fprintf(out, "%d possible mutants, %d of them in statements that no unit test executes; "+
		"sample of %d with seed %d; %.0f s for coverage\n", len(all), without, len(sample), *seed,
		time.Since(began).Seconds())
	sample = slices.DeleteFunc(sample, func(m *mutant) bool { return !wanted.MatchString(m.where()) })
	if len(sample) == 0 {
		return fmt.Errorf("no mutant in %s matches %q", strings.Join(flags.Args(), " "), *only)
	}
	if err := try(ctx, dir, sample, *jobs, out); err != nil {
		return err
	}
	slices.SortFunc(sample, func(a, b *mutant) int { return cmp.Or(cmp.Compare(a.File, b.File), a.Line-b.Line) })
	if err := write(*output, sample); err != nil {
		return err
	}
	return report(out, sample, all, explained, *target, time.Since(began))
}

// try runs the tests of every mutant, jobs at a time, and prints a line for each.
func try(ctx context.Context, dir string, sample []*mutant, jobs int, out io.Writer) error {
	var (
		mu   sync.Mutex // guards out and done
		done int
	)
	return each(ctx, sample, jobs, func(m *mutant) error {
		began := time.Now()
		if err := m.try(ctx, dir); err != nil {
			return fmt.Errorf("%s: %w", m.where(), err)
		}
		m.Seconds = time.Since(began).Seconds()
		mu.Lock()
		defer mu.Unlock()
		done++
		fmt.Fprintf(out, "%3d/%d %-9s %4.0f s  %s  [%s => %s]  %s\n", done, len(sample), m.Result, m.Seconds, m.where(),
			m.Before, m.After, m.Test)
		if len(m.Flaky) > 0 {
			fmt.Fprintf(out, "        flaky: %s\n", strings.Join(m.Flaky, " "))
		}
		return nil
	})
}

// each calls work for every item, jobs at a time, until one fails.
func each[T any](ctx context.Context, items []T, jobs int, work func(T) error) error {
	var (
		running sync.WaitGroup
		once    sync.Once
		failure error
		slots   = make(chan struct{}, max(jobs, 1))
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, item := range items {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if err := work(item); err != nil {
				once.Do(func() { failure = err; cancel() })
			}
		})
	}
	running.Wait()
	return cmp.Or(failure, ctx.Err())
}

// report prints the survivors and a table of the packages, and decides whether the run fails.
func report(out io.Writer, sample, all []*mutant, explained map[string]string, target float64,
	took time.Duration) error {
	type counts struct{ mutants, caught, timedOut, survived int }
	var names []string
	sums := map[string]*counts{"total": {}}
	var unexplained int
	for _, m := range sample {
		name := filepath.Dir(m.File)
		if sums[name] == nil {
			sums[name] = &counts{}
			names = append(names, name)
		}
		for _, sum := range []*counts{sums[name], sums["total"]} {
			sum.mutants++
			switch m.Result {
			case caught:
				sum.caught++
			case timedOut:
				sum.timedOut++
			case survived:
				sum.survived++
			}
		}
		if m.Result != survived {
			continue
		}
		reason, ok := explained[m.key()]
		if !ok {
			unexplained++
			reason = "NOT EXPLAINED"
		}
		fmt.Fprintf(out, "\n# line %d, %d tests execute it\n%s\n%s\n", m.Line, len(m.tests), m.key(), reason)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\nmutants\tcaught\ttimed out\tsurvived\tpercentage\t  package\n")
	for _, name := range append(names, "total") {
		s := sums[name]
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%.0f %%\t  %s\n", s.mutants, s.caught, s.timedOut, s.survived,
			100*float64(s.caught+s.timedOut)/float64(s.mutants), name)
	}
	_ = table.Flush()
	fmt.Fprintf(out, "%.0f s\n", took.Seconds())

	exist := map[string]bool{}
	for _, m := range all {
		exist[m.key()] = true
	}
	for key := range explained {
		if !exist[key] {
			return fmt.Errorf("survivors.txt explains a mutant that does not exist any more; remove it:\n%s", key)
		}
	}
	percentage := 100 * float64(sums["total"].caught+sums["total"].timedOut) / float64(sums["total"].mutants)
	switch {
	case unexplained > 0:
		return fmt.Errorf("%d survivors are not explained: add a test, or a reason to survivors.txt", unexplained)
	case percentage < target:
		return fmt.Errorf("%.1f %% of the mutants were caught: want at least %.0f %%", percentage, target)
	}
	return nil
}

// readExplanations reads paragraphs that consist of a mutant's key, in three lines, and a reason. Lines
// that begin with # are comments.
func readExplanations(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), "")
	explained := map[string]string{}
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); paragraph == "" {
			continue
		}
		lines := strings.SplitN(paragraph, "\n", 4)
		if len(lines) < 4 || !strings.HasPrefix(lines[1], "- ") || !strings.HasPrefix(lines[2], "+ ") {
			return nil, fmt.Errorf("%s: want FILE FUNCTION, - LINE, + LINE and a reason, not:\n%s", path, paragraph)
		}
		explained[strings.Join(lines[:3], "\n")] = lines[3]
	}
	return explained, nil
}

func write(path string, sample []*mutant) error {
	data, err := json.MarshalIndent(sample, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
