// Command bootstrap measures what installing the chart takes on a real cluster, as
// an operator does it: helm install on two nodes that hold nothing but the pause
// image, one of them init-hook's besides. Each run has a cluster of its own, made by
// testcluster, on which all is measured one after the other:
//
//   - install: when each phase was reached. The hook Jobs' phases are those of their
//     logs, which have milliseconds; all else is when a watch said so.
//   - what of the payload is in etcd, and what a node fetches of it.
//   - a node is added: from Ready to the first image that its container runtime pulls
//     through its own proxy, and what that cost the API server, by its audit log.
//   - a rollout of the proxies, with host port and with host network; a registry pod
//     deleted; both switches of the mode. All under a loop of pulls on each node.
//
// Everything shares one machine's cores, the two nodes and the control plane
// included, and there is no network between them: shares of it, rather than seconds,
// are what carries over to other clusters. It does not measure how fast images are
// pulled, which is bench/proxy's and bench/images', nor large clusters.
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
	runs                            int
	write, name                     string
	installOnly                     bool
	testcluster, images, chart, log string
}

// run is the program, or a child process that it starts of itself on nodes.
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
	flags.IntVar(&o.runs, "n", 5, "runs, each on a new cluster")
	flags.StringVar(&o.write, "write", "", "directory to write RESULTS.json to (default: a text goes to stdout)")
	flags.BoolVar(&o.installOnly, "install-only", false, "measure the installation alone")
	flags.StringVar(&o.name, "name", "bench-bootstrap", "name of the clusters")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster", "the program that makes clusters")
	flags.StringVar(&o.images, "images", "dist/images", "directory with init-hook.tar")
	flags.StringVar(&o.chart, "chart", "charts/zarf-registry", "the chart")
	flags.StringVar(&o.log, "log", "", "file to write every event of the installations to, with its time (default: none)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.runs < 1 {
		return errors.New("positional arguments are not supported, and -n must be positive")
	}
	if os.Getuid() != 0 {
		return errors.New("the test cluster needs root")
	}
	report := results.New(how, subjects()...)
	for n := range o.runs {
		begin := time.Now()
		if err := oneRun(ctx, o, n, report); err != nil {
			return fmt.Errorf("run %d: %w", n+1, err)
		}
		say("run %d of %d took %s", n+1, o.runs, time.Since(begin).Round(time.Second))
	}
	if o.write != "" {
		return report.Write(o.write)
	}
	for _, m := range report.Measures {
		median, least, most := m.Spread()
		fmt.Printf("%-28s %-44s %-34s %8.2f  (%.2f–%.2f) %s\n", m.Table, m.Subject, m.What, median, least, most, m.Unit)
	}
	return nil
}

// oneRun measures everything once.
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
		if n%2 == 1 { // later measurements depend on earlier ones
			later[0], later[2] = later[2], later[0]
		}
		// A switch ends in proxy mode with host ports; host network is last.
		steps = append(append(steps, later...), measureSwitch, hostNetwork, measureRollout("host network"))
	}
	for _, step := range steps {
		if err := step(ctx, c, report); err != nil {
			return err
		}
	}
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// absolute returns an absolute path, for children with another working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
