// Command registry compares the project's registry with distribution's own server by the method of zb, the benchmark of
// the registry zot: https://github.com/project-zot/zot/tree/main/cmd/zb, here as of commit 0975c28. zb itself cannot
// send client certificates.
//
// As in zb, each client pulls or pushes one image after the other; an image has one layer, of 1, 10 or 100 MiB, the
// same for all images of a size, and a configuration of its own. A pull is HEAD and GET of the manifest, of the
// configuration and of the layer. A push goes to a new repository: configuration and layer with POST and PUT, or in
// chunks with POST, PATCH and PUT, and the manifest under a tag. Unlike zb, it sends fewer requests for large images,
// and does not count pushes that only prepare pulls. Both registries run at the same time, and each test is run with
// one after the other, so that what else the machine does affects both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() {
	program.Main("registry", func(ctx context.Context, args []string) error {
		if len(args) > 0 && args[0] == distribution.Mode {
			return serveDistribution(ctx, args[1:])
		}
		return bench(ctx, args, os.Stdout)
	})
}

type options struct {
	results.Options
	dir, program string
	size         int64 // of the smallest layer in bytes; the others have 10 and 100 times as many
	tests        *regexp.Regexp
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("registry", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", "", "directory for up to 2 GB of temporary files (default: /dev/shm, in memory)")
	flags.StringVar(&o.program, "registry", "bin/registry", "path of the project's registry")
	flags.Int64Var(&o.size, "size", 1<<20, "size of the smallest layer in bytes")
	tests := flags.String("tests", "", "regular expression of the tests to run, such as '^Pulls: 1' (default: all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.tests, err = regexp.Compile(*tests); err != nil || flags.NArg() > 0 || o.size < 1 {
		return errors.Join(errors.New("positional arguments are not supported, and -size must be positive"), err)
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
	report.How = fmt.Sprintf("Method of [zb](https://github.com/project-zot/zot/tree/main/cmd/zb): %d clients transfer "+
		"images with one layer of 1, 10 or 100 MiB; mixed: 20, 70 and 10 %% of them. Registry and clients are processes on "+
		"one machine, with mutual TLS 1.3; storage is in memory. Figures are images per second.", clients)
	all := subjects(o.program)
	for _, s := range all {
		report.Subjects = append(report.Subjects, s.Subject)
	}
	for n := range o.Runs {
		began := time.Now()
		r := &run{options: o, report: report, number: n, certificates: certificates}
		if err := r.measure(ctx, all, filepath.Join(dir, "run")); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "run %d of %d  %.1f s\n", n+1, o.Runs, time.Since(began).Seconds())
	}
	return report.Save(o.Write, stdout)
}
