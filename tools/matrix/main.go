// Command matrix tests the life of an installation on each supported configuration, one test cluster after
// another, and writes docs/compatibility.md from the results.
//
//	go run ./tools/matrix            # run what has no result for this tree yet, and write the report
//	go run ./tools/matrix -list
//	go run ./tools/matrix -slice 1/4 # every fourth cell, for a night
//	go run ./tools/matrix -check     # run all cells again, and fail if a result differs from the report
//
// Results and logs are in dist/matrix. A cell runs again once the sources of the product or the tests have changed.
// It runs TestCell of test/e2e, which make e2e builds the programs for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

type options struct {
	list, check, report bool
	index, count        int
	only                *regexp.Regexp
	parallel            int
	results, docs       string
}

func parse(args []string) (options, error) {
	o := options{index: 1, count: 1}
	flags := flag.NewFlagSet("matrix", flag.ContinueOnError)
	flags.BoolVar(&o.list, "list", false, "list the cells")
	flags.BoolVar(&o.check, "check", false, "run the cells again, and compare with the report instead of writing it")
	flags.BoolVar(&o.report, "report", false, "write the report from the results that exist, and run nothing")
	flags.IntVar(&o.parallel, "parallel", 1, "how many clusters run at a time")
	flags.StringVar(&o.results, "results", "dist/matrix", "directory of results and logs")
	flags.StringVar(&o.docs, "docs", "docs", "directory of the report")
	flags.Func("slice", "run a part, as INDEX/COUNT (2/4 is the second of four)", func(text string) error {
		if n, err := fmt.Sscanf(text, "%d/%d", &o.index, &o.count); n != 2 || err != nil || o.index < 1 || o.index > o.count {
			return errors.New("want INDEX/COUNT with INDEX from 1 to COUNT")
		}
		return nil
	})
	flags.Func("run", "run cells whose name matches this regular expression", func(text string) (err error) {
		o.only, err = regexp.Compile(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.parallel < 1 {
		return o, fmt.Errorf("-parallel %d: want at least 1", o.parallel)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	chosen := slice(cells(), o.index, o.count)
	if o.only != nil {
		chosen = slices.DeleteFunc(chosen, func(c cell) bool { return !o.only.MatchString(c.name()) })
	}
	if len(chosen) == 0 {
		return errors.New("no cell is left to run: -list shows their names")
	}
	if o.list {
		for _, c := range chosen {
			fmt.Fprintln(out, c.name())
		}
		return nil
	}
	source, err := sourceID(ctx)
	if err != nil {
		return err
	}
	store := store{dir: o.results, source: source}
	if o.check {
		store.dir = filepath.Join(o.results, "check")
	}
	if !o.report {
		if err := runAll(ctx, chosen, store, o.parallel, out); err != nil {
			return err
		}
	}
	results, err := store.all()
	if err != nil {
		return err
	}
	if o.check {
		return compare(filepath.Join(o.docs, reportJSON), results, chosen)
	}
	return writeReport(o.docs, o.results, results)
}

// runAll runs cells that have no result yet. A cell that fails, or cannot run, does not stop the others. Cells with
// CRI-O run one after another: a kubelet with CRI-O looks for the containers of all others on this machine, for
// seconds each, before it registers its node.
func runAll(ctx context.Context, chosen []cell, store store, parallel int, out io.Writer) error {
	errs := make([]error, len(chosen))
	run := func(i int) {
		c, begin := chosen[i], time.Now()
		r, err := store.load(c)
		if ctx.Err() != nil || err == nil && r != nil && r.Source == store.source {
			return
		}
		var done result
		if err == nil {
			done, err = runCell(ctx, c, store)
		}
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", c.name(), err)
			return
		}
		fmt.Fprintf(out, "%d/%d %s: %s in %s\n", i+1, len(chosen), c.name(), done.Status,
			time.Since(begin).Round(time.Second))
	}
	pool := func(limit int, of func(cell) bool) {
		var group errgroup.Group
		group.SetLimit(limit)
		for i, c := range chosen {
			if of(c) {
				group.Go(func() error { run(i); return nil })
			}
		}
		_ = group.Wait() // errs has the errors
	}
	if parallel == 1 {
		pool(1, func(cell) bool { return true })
	} else {
		var crio sync.WaitGroup
		crio.Go(func() { pool(1, cell.usesCRIO) })
		pool(parallel-1, func(c cell) bool { return !c.usesCRIO() })
		crio.Wait()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; the same command goes on: %w", ctx.Err())
	}
	return errors.Join(errs...)
}
