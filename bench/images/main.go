// Command images measures pushes and pulls of a set of images with init-hook, crane, skopeo and regctl,
// against the same registry on loopback.
//
// The set is generated from a seed: five families of eight images that share base layers, 1.48 GB of
// incompressible content. Each repetition of a tool starts a new registry process with empty storage,
// and the tool with empty caches. It measures a cold push, a warm push (the same again), a cold pull, a
// warm pull (the same again, into the same directory) and, for tools with a cache, a pull from the cache
// into an empty directory. The floor, a client that neither hashes nor checks for existing blobs, shows
// the cost of the registry and the machine alone.
//
// Client and registry share the cores of one machine, without a network. Every result is verified: after
// a push all manifests are in the registry, after a pull all blobs are in the output.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
)

// space is the disk space that a full set needs, in bytes: the set, the registry's storage, the output,
// a cache, and file system overhead.
const space = 8e9

func main() {
	program.Main("images", func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout) })
}

// run runs the benchmark, or one of its child processes.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case registryMode:
			return serveRegistry(args[1:], os.Stdin, stdout)
		case floorPushMode:
			return floorPush(ctx, args[1:])
		case floorPullMode:
			return floorPull(ctx, args[1:])
		}
	}
	return bench(ctx, args, stdout)
}

type options struct {
	repetitions   int
	tools         string
	dir, write    string
	scale         float64
	seed          uint64
	initHook, get string
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.IntVar(&o.repetitions, "n", 3, "repetitions")
	flags.StringVar(&o.tools, "tools", "", "comma-separated names of the tools (default: all that are installed)")
	flags.StringVar(&o.dir, "dir", os.TempDir(), "directory for up to 8 GB of temporary files")
	flags.StringVar(&o.write, "write", "",
		"directory to write RESULTS.md and RESULTS.json to (default: print the tables to stdout)")
	flags.Float64Var(&o.scale, "scale", 1, "scale of the layer sizes; 1 is 1.48 GB in total")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the layers")
	flags.StringVar(&o.initHook, "init-hook", "bin/init-hook", "path of init-hook")
	flags.StringVar(&o.get, "testcluster", "bin/testcluster", "path of testcluster, which builds crane and regctl")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.repetitions < 1 || o.scale <= 0 {
		return errors.New("positional arguments are not supported, and -n and -scale must be positive")
	}
	if err := enoughSpace(o.dir, int64(space*o.scale)); err != nil {
		return err
	}
	found, err := findTools(ctx, o)
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
	set, err := makeSet(filepath.Join(dir, "set"), o.seed, o.scale)
	if err != nil {
		return fmt.Errorf("generating images: %w", err)
	}
	if err := syncTree(dir); err != nil {
		return err
	}
	report := newReport(o, set, found, time.Now())
	for repetition := range o.repetitions {
		// The order is random, because a tool's disk writes slow down the next one.
		for _, n := range rand.New(rand.NewPCG(o.seed, uint64(repetition))).Perm(len(found)) {
			t := found[n]
			if err := settle(ctx); err != nil {
				return err
			}
			samples, err := measure(ctx, t, set, filepath.Join(dir, "run"), repetition == 0)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			for _, s := range samples {
				report.add(t.name, s)
				fmt.Fprintf(os.Stderr, "%d/%d  %-20s %-12s %6.2f s\n", repetition+1, o.repetitions, t.name, s.Operation, s.Seconds)
			}
		}
	}
	if o.write == "" {
		return report.markdown(stdout)
	}
	return report.write(o.write)
}

// settlePause is how long the disk is given after gigabytes were removed. Without it, cold pushes took
// up to 50 % longer.
const settlePause = 3 * time.Second

// settle waits until the disk is idle.
func settle(ctx context.Context) error {
	unix.Sync()
	select {
	case <-time.After(settlePause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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
