// Command cluster measures on a test cluster what users and operators of a cluster feel: the time from
// the installation to the first pod with a pushed image, the payload, what an idle node costs, nodes
// that join later, pushes of many images and of few changes, and pulls by a container runtime. Peers
// are plain distribution, crane, skopeo and regctl, a node port, and a container runtime with TLS.
// With scale as the first argument, it measures what many simulated nodes cost the API server.
//
// Control plane, nodes and tools share the cores of one machine, without a network between them, so
// ratios carry over to other clusters and seconds do not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// how describes the method in the report.
const how = "A test cluster of two nodes; control plane, nodes, tools and registry share the cores of one machine. " +
	"Each installation begins without an object or image of the one before. Each tool pushes to an empty registry " +
	"through `kubectl port-forward`, `zarf-registry` by itself. The client is the tool with its port-forward, or " +
	"containerd with the proxy: the sum of their CPU time and of their peak resident memory."

// First arguments that make the program run in a pod, or another benchmark.
var modes = map[string]func(ctx context.Context, args []string) error{
	waitMode:  func(ctx context.Context, _ []string) error { <-ctx.Done(); return nil },
	scaleMode: scale,
	distribution.Mode: func(ctx context.Context, _ []string) error {
		return distribution.Serve(ctx, distributionConfig)
	},
}

const waitMode = "wait"

func main() {
	program.Main("cluster", func(ctx context.Context, args []string) error {
		if len(args) > 0 && modes[args[0]] != nil {
			return modes[args[0]](ctx, args[1:])
		}
		return bench(ctx, args, os.Stdout)
	})
}

type options struct {
	results.Options
	pushes                             int
	name, dir                          string
	scale                              float64
	idle                               time.Duration
	zarf, testcluster, initHook, chart string
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	o.Register(flags)
	o.Runs, flags.Lookup("n").DefValue = 3, "3"
	flags.IntVar(&o.pushes, "pushes", 1, "runs of the pushes, which take two minutes each")
	flags.StringVar(&o.name, "name", "bench-cluster", "name of the cluster")
	flags.StringVar(&o.dir, "dir", os.TempDir(), "directory for up to 9 GB of temporary files")
	flags.Float64Var(&o.scale, "scale", 1, "scale of the layer sizes; 1 is 1.48 GB to push, and 1 GB to pull")
	flags.DurationVar(&o.idle, "idle", time.Minute, "how long idle nodes are measured")
	flags.StringVar(&o.zarf, "zarf-registry", "bin/zarf-registry", "path of zarf-registry")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster",
		"path of testcluster, which boots the cluster and builds the tools; Helm is beside it")
	flags.StringVar(&o.initHook, "init-hook", "dist/images/init-hook.tar", "path of init-hook's image")
	flags.StringVar(&o.chart, "chart", "charts/zarf-registry", "path of the chart")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.scale <= 0 || o.pushes < 0 || o.idle <= 0 {
		return o, errors.New("positional arguments are not supported, and sizes and numbers must be positive")
	}
	return o, nil
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	found, err := findTools(ctx, o)
	if err != nil {
		return err
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	report.How = how
	// The path must not contain a colon, because skopeo parses what follows it as a tag.
	dir, err := os.MkdirTemp(o.dir, "bench-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	began := time.Now()
	c, err := newCluster(ctx, o, dir)
	if c != nil {
		defer func() { err = errors.Join(err, c.down()) }()
	}
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"boot", func() error { return nil }},
		{"install", func() error { return c.measureInstalls(ctx, report) }},
		{"idle", func() error { return c.measureIdle(ctx, report) }},
		{"later", func() error { return c.measureLater(ctx, report) }},
		{"pull", func() error { return c.measurePulls(ctx, report) }},
		{"push", func() error { return c.measurePushes(ctx, report, found) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		logf("%-8s done after %.0f s", step.name, time.Since(began).Seconds())
	}
	return report.Save(o.Write, stdout)
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// settle waits until the disk is idle, because removing and writing gigabytes slows what comes next.
func settle(ctx context.Context) error {
	unix.Sync()
	return program.Sleep(ctx, time.Second)
}
