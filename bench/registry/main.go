// Command registry measures the registry behind our front beside distribution's own
// server, distribution's handlers alone, and a server that does the least there is to
// do: pushes and pulls of large blobs, one at a time and four, and small requests.
//
// Each runs in a process of its own with mutual TLS, as the chart runs ours: storage on
// a file system, HTTP/1.1. The client is the same for all, on the same machine. What is
// pushed is compared by the registries with its digest, and what is pulled by the client
// with its length, in a round before the first also with its digest.
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
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

// run is the program, or a child process that it starts of itself and that a signal ends at once.
func run(args []string, stdout io.Writer) error {
	if len(args) > 0 && children[args[0]] != nil {
		return children[args[0]](args[1:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return bench(ctx, args, stdout)
}

type options struct {
	runs       int
	write, dir string
	program    string
	size       int64         // of a blob, in bytes
	small      time.Duration // how long small requests are made
	subjects   string
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("registry", flag.ContinueOnError)
	flags.IntVar(&o.runs, "n", 5, "runs")
	flags.StringVar(&o.write, "write", "", "directory to write RESULTS.json to (default: it goes to stdout)")
	flags.StringVar(&o.dir, "dir", "", "where to put up to 1 GB that is removed in the end (default: memory, /dev/shm)")
	flags.StringVar(&o.program, "registry", "bin/registry", "our program")
	flags.Int64Var(&o.size, "size", 128<<20, "size of a blob in bytes; there are 6")
	flags.DurationVar(&o.small, "small", 1500*time.Millisecond, "how long small requests are made")
	flags.StringVar(&o.subjects, "subjects", "", "name of the only one to measure (default: all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.runs < 1 || o.size < 1 {
		return errors.New("there are no arguments but flags, and -n and -size must be positive")
	}
	dir, err := registries.StorageDir(o.dir, "bench-registry-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	certificates, err := registries.NewCertificates(filepath.Join(dir, "tls"))
	if err != nil {
		return err
	}
	blobs, err := makeBlobs(o.size)
	if err != nil {
		return err
	}
	// The client's garbage collection must not disturb the measurement.
	debug.SetGCPercent(400)
	selected := slices.DeleteFunc(subjects(o.program), func(s subject) bool {
		return o.subjects != "" &&
			o.subjects != s.Name
	})
	if len(selected) == 0 {
		return fmt.Errorf("there is no subject %q", o.subjects)
	}
	report := newReport(o, selected)
	for n := range o.runs + 1 {
		for i := range selected {
			// In another order each time, so that no subject always follows the slowest.
			s := selected[(i+n)%len(selected)]
			record := func(table, what, unit string, value float64) {
				if n > 0 {
					report.Add(table, s.Name, what, unit, value)
				}
			}
			began := time.Now()
			m := &measurement{options: o, certificates: certificates, blobs: blobs, add: record, verify: n == 0}
			if err := m.run(ctx, s, filepath.Join(dir, "run")); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d  %-22s %.1f s\n", n, o.runs, s.Name, time.Since(began).Seconds())
		}
	}
	return report.Save(o.write, stdout)
}

func newReport(o options, selected []subject) *results.Report {
	all := make([]results.Subject, 0, len(selected))
	for _, s := range selected {
		all = append(all, s.Subject)
	}
	return results.New(fmt.Sprintf(
		"`make bench-registry`: registry and client on one machine over loopback, mutual TLS 1.3, HTTP/1.1, one process "+
			"for each and one client for all; storage in memory, so that no disk is "+
			"measured; blobs of %.0f MB that do not compress. In each run every registry begins empty; the first round is "+
			"not counted. CPU is the registry's alone, memory the most that was resident, "+
			"the program's own pages included. A small request is `HEAD` of a manifest's tag or `GET` of its digest, by "+
			"turns, as container runtimes do, from 8 clients with a connection each.", float64(o.size)/1e6), all...)
}
