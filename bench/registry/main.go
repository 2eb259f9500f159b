// Command registry compares the project's registry with distribution's own server, distribution's
// handlers without a server around them, and a minimal file server. It measures pushes and pulls of large
// blobs, one and four at a time, and small requests.
//
// Each registry runs in its own process with mutual TLS over HTTP/1.1 and file system storage, as in the
// chart. All use the same client on the same machine. The registries verify the digest of each push; the
// client checks the length of each pull, and in a first round that is not measured also the digest.
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

// run runs the benchmark, or one of its child processes, which a signal kills.
func run(args []string, stdout io.Writer) error {
	if len(args) > 0 && children[args[0]] != nil {
		return children[args[0]](args[1:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process
	return bench(ctx, args, stdout)
}

type options struct {
	results.Options
	dir, program string
	size         int64         // size of a blob in bytes
	small        time.Duration // how long to send small requests
	subjects     string
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("registry", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", "", "directory for up to 1 GB of temporary files (default: /dev/shm, in memory)")
	flags.StringVar(&o.program, "registry", "bin/registry", "path of the project's registry")
	flags.Int64Var(&o.size, "size", 128<<20, "size of each of the 6 blobs in bytes")
	flags.DurationVar(&o.small, "small", 1500*time.Millisecond, "how long to send small requests")
	flags.StringVar(&o.subjects, "subjects", "", "name of the only registry to measure (default: all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.size < 1 {
		return errors.New("positional arguments are not supported, and -size must be positive")
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	dir, certificates, err := registries.Prepare(o.dir, "bench-registry-")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	blobs, err := makeBlobs(o.size)
	if err != nil {
		return err
	}
	selected := slices.DeleteFunc(subjects(o.program),
		func(s subject) bool { return o.subjects != "" && o.subjects != s.Name })
	if len(selected) == 0 {
		return fmt.Errorf("unknown registry %q", o.subjects)
	}
	report.How = how(o)
	for _, s := range selected {
		report.Subjects = append(report.Subjects, s.Subject)
	}
	for n := range o.Runs + 1 {
		for _, i := range report.Order(n, len(selected)) {
			s := selected[i]
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
			fmt.Fprintf(os.Stderr, "run %d of %d  %-22s %.1f s\n", n, o.Runs, s.Name, time.Since(began).Seconds())
		}
	}
	return report.Save(o.Write, stdout)
}

func how(o options) string {
	return fmt.Sprintf(
		"`make bench-registry`: registry and client are processes on one machine and use mutual TLS 1.3 and HTTP/1.1 "+
			"over loopback. Storage is in memory, so that the disk's speed does not matter; blobs are %.0f MB of "+
			"incompressible content. Each run starts every registry with empty storage; a first round is not counted. CPU "+
			"time and peak resident memory are those of the registry. Small requests are sent by 8 clients with one "+
			"connection each, which alternate between `HEAD` of a tag and `GET` of a digest, as container runtimes do.",
		float64(o.size)/1e6)
}
