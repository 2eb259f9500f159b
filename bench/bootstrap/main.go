// Command bootstrap measures an installation of the chart on a real cluster. It runs helm install on
// two nodes that hold only the pause image; one of them also has init-hook's image. Each run boots a
// new cluster with testcluster and measures in turn:
//
//   - install: the time at which each phase is reached, from the hook Jobs' logs and from watches.
//   - payload: its size in etcd, and the part that a node fetches.
//   - a new node: the time from Ready to the first image that its container runtime pulls through its
//     own proxy, and the requests to the API server, from its audit log.
//   - failed pulls while the proxies are rolled out, with host port and with host network, while the
//     registry's pod is replaced, and while the mode is switched in both directions.
//
// Nodes and control plane share the cores of one machine, without a network between them, so ratios
// carry over to other clusters and seconds do not. bench/proxy and bench/images measure the speed of
// pulls, bench/scale large clusters.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() { program.Main("bootstrap", run) }

type options struct {
	results.Options
	name                            string
	installOnly                     bool
	testcluster, images, chart, log string
}

// run runs the benchmark, or one of the modes that the benchmark starts on nodes.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case pullMode:
			return pullUntil(ctx, args[1:], os.Stdout)
		case firstMode:
			return firstPull(ctx, args[1:], os.Stdout)
		}
	}
	var o options
	flags := flag.NewFlagSet("bootstrap", flag.ContinueOnError)
	o.Register(flags)
	flags.BoolVar(&o.installOnly, "install-only", false, "measure only the installation")
	flags.StringVar(&o.name, "name", "bench-bootstrap", "name of the clusters")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster", "path of testcluster, which boots the clusters")
	flags.StringVar(&o.images, "images", "dist/images", "directory with init-hook.tar")
	flags.StringVar(&o.chart, "chart", "charts/zarf-registry", "path of the chart")
	flags.StringVar(&o.log, "log", "", "file to which the events of each installation are appended (default: none)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("positional arguments are not supported")
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	report.How, report.Subjects = how, subjects()
	for n := range o.Runs {
		begin := time.Now()
		if err := oneRun(ctx, o, n, report); err != nil {
			return fmt.Errorf("run %d: %w", n+1, err)
		}
		logf("run %d of %d took %s", n+1, o.Runs, time.Since(begin).Round(time.Second))
	}
	return report.Save(o.Write, os.Stdout)
}

// oneRun performs all measurements on a new cluster.
func oneRun(ctx context.Context, o options, n int, report *results.Report) (err error) {
	c, err := newCluster(ctx, o)
	if c != nil {
		defer func() { err = errors.Join(err, c.down()) }()
	}
	if err != nil {
		return err
	}
	steps := []func(context.Context, *cluster, *results.Report) error{measureInstall, measurePayload}
	if !o.installOnly {
		later := []func(context.Context, *cluster, *results.Report) error{measureNode, measureRollout("host port"),
			measureRegistryRestart}
		for _, i := range report.Order(n, len(later)) {
			steps = append(steps, later[i])
		}
		// Host network is last, because measureSwitch ends with host ports.
		steps = append(steps, measureSwitch, hostNetwork, measureRollout("host network"))
	}
	for _, step := range steps {
		if err := step(ctx, c, report); err != nil {
			return err
		}
	}
	return nil
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// absolute returns an absolute path, for children with another working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
