// Command images measures how users and nodes move images into and out of a cluster.
//
// Tools: a test cluster runs a release in nodeport mode. zarf-registry images push connects through the API
// server; regctl uses the same port with mutual TLS over kubectl port-forward; the others, and init-hook
// images pull, the plain port, because they do not present a client certificate or then no credential. Each
// repetition of a tool starts a new registry pod with empty storage, and the tool with empty caches. It
// measures a cold push, a warm push (the same again), a cold pull, a warm pull (the same again, into the same
// directory) and, for tools with a cache, a pull from the cache into an empty directory. The set is generated
// from a seed: five families of eight images that share base layers, 1.48 GB of incompressible content. After
// a push all manifests must be in the registry, after a pull all blobs in the output.
//
// Nodes: crictl pull of an image of 1 GB on n2, from a registry on n1, through the proxy, through the node
// port of another release, and directly over mutual TLS with a hosts.toml. All of the image is removed before
// each pull, and the node must receive as many bytes.
//
// Cluster and tools share the cores of one machine, without a network between them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// space is the disk space that a full set needs, in bytes: the sets, the registries' storage, the output, a
// cache, a node's copy of an image, and file system overhead.
const space = 13e9

func main() {
	program.Main("images", func(ctx context.Context, args []string) error { return bench(ctx, args, os.Stdout) })
}

type options struct {
	results.Options
	tools, name                          string
	nodesOnly                            bool
	dir                                  string
	scale                                float64
	content                              uint64
	initHook, testcluster, images, chart string
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.tools, "tools", "", "comma-separated names of the tools (default: all)")
	flags.BoolVar(&o.nodesOnly, "nodes-only", false, "measure only pulls by nodes")
	flags.StringVar(&o.name, "name", "bench-images", "name of the cluster")
	flags.StringVar(&o.dir, "dir", os.TempDir(), "directory for up to 13 GB of temporary files")
	flags.Float64Var(&o.scale, "scale", 1, "scale of the layer sizes; 1 is 1.48 GB in total, and 1 GB for nodes")
	flags.Uint64Var(&o.content, "content", 1, "seed of the layers")
	flags.StringVar(&o.initHook, "init-hook", "bin/zarf-registry", "path of init-hook")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster",
		"path of testcluster, which boots the cluster and builds crane, helm, kubectl and regctl")
	flags.StringVar(&o.images, "images", "dist/images", "directory with init-hook.tar")
	flags.StringVar(&o.chart, "chart", "charts/zarf-registry", "path of the chart")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.scale <= 0 {
		return errors.New("positional arguments are not supported, and -scale must be positive")
	}
	if err := enoughSpace(o.dir, int64(space*o.scale)); err != nil {
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

	// The path must not contain a colon, because skopeo parses what follows it as a tag.
	dir, err := os.MkdirTemp(o.dir, "bench-images-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "generating images in", dir)
	set, err := makeSet(filepath.Join(dir, "set"), o.content, o.scale)
	if err != nil {
		return fmt.Errorf("generating images: %w", err)
	}
	large, err := makeLarge(filepath.Join(dir, "large"), o.content+1, o.scale)
	if err != nil {
		return fmt.Errorf("generating the image for nodes: %w", err)
	}
	c, err := newCluster(ctx, o)
	if c != nil {
		defer func() { err = errors.Join(err, c.Down()) }()
	}
	if err != nil {
		return err
	}
	report.How = how(set, large)
	if !o.nodesOnly {
		if err := measureTools(ctx, c, report, found, set, filepath.Join(dir, "run")); err != nil {
			return err
		}
	}
	if err := measureNodes(ctx, c, report, large); err != nil {
		return err
	}
	return report.Save(o.Write, stdout)
}

func how(set, large *imageSet) string {
	return fmt.Sprintf("Cluster and tools share the cores of one machine. Tools: a test cluster with a release in "+
		"nodeport mode, %d images, %d blobs, %.2f GB; each tool starts with an empty registry. Cold push: the registry "+
		"is empty; warm push: it has everything; cold pull: output and cache are empty; warm pull: the output has "+
		"everything; cached pull: the output is empty, the tool's cache has everything. The client is the tool and, "+
		"where it is used, kubectl port-forward: the sum of their CPU time, and of their peak resident memory (of the "+
		"largest process of the tool). Nodes: `crictl pull` of an image of %.2f GB in %d layers on n2, from a registry "+
		"on n1, after everything of it was removed; %d for each run of the tools, after a first one that is not counted.",
		len(set.images), len(set.blobs), float64(set.bytes)/1e9, float64(large.bytes)/1e9, len(largeLayers), nodeRounds)
}

// measureTools measures all operations of all tools.
func measureTools(ctx context.Context, c *cluster, report *results.Report, found []tool, set *imageSet,
	dir string) error {
	for _, t := range found {
		report.Subjects = append(report.Subjects, results.Subject{Name: t.name, Version: t.version, About: t.about})
	}
	for run := range c.Runs {
		for _, n := range report.Order(run, len(found)) {
			began := time.Now()
			if err := settle(ctx); err != nil {
				return err
			}
			if err := measure(ctx, c, report, found[n], set, dir, run == 0); err != nil {
				return fmt.Errorf("%s: %w", found[n].name, err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d  %-12s %.1f s\n", run+1, c.Runs, found[n].name, time.Since(began).Seconds())
		}
	}
	return nil
}

// settlePause is how long the disk is given after gigabytes were removed. Without it, cold pushes took
// up to 50 % longer.
const settlePause = 3 * time.Second

// settle waits until the disk is idle.
func settle(ctx context.Context) error {
	unix.Sync()
	return clusters.Sleep(ctx, settlePause)
}

// enoughSpace returns an error if dir has less than need bytes free.
func enoughSpace(dir string, need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("checking the free space of %s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < need {
		return fmt.Errorf("%s has %.1f GB free, but %.1f GB are needed: free some space or set -dir", dir,
			float64(free)/1e9, float64(need)/1e9)
	}
	return nil
}

// selected reports whether a comma-separated list contains name or is empty.
func selected(list, name string) bool {
	if list == "" {
		return true
	}
	for one := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(one) == name {
			return true
		}
	}
	return false
}
