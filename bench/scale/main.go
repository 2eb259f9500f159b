// Command scale measures one registry and many nodes: up to 1000 clients that pull at
// once, as the proxies of so many nodes do, and what init-hook's prepare reads of a
// cluster with up to 5000 nodes.
//
// The clients are in one process, each with a client certificate, a TLS session cache and
// a pool of connections of its own; the registry is bin/registry in another process, and
// both share this machine's processors and its loopback interface. The cluster is an API
// server of this program's own that keeps objects in memory; it schedules nothing.
// Nothing is measured of a network, a disk, a kubelet or etcd: docs/scale.md reckons with
// those.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() {
	program.Main("scale", func(ctx context.Context, args []string) error { return bench(ctx, args, os.Stdout) })
}

type options struct {
	runs              int
	write, dir        string
	registry, hook    string
	nodes, clusters   []int
	herds             []herd
	pulls, imageBytes int
}

// herd is a number of nodes that pull the same image at once.
type herd struct {
	nodes int
	bytes int // of the image
}

func (h herd) String() string {
	return fmt.Sprintf("%d nodes, %s MB", h.nodes, strconv.FormatFloat(float64(h.bytes)/1e6, 'f', -1, 64))
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.IntVar(&o.runs, "n", 5, "runs")
	flags.StringVar(&o.write, "write", "", "directory to write RESULTS.json to (default: it goes to stdout)")
	flags.StringVar(&o.dir, "dir", "", "where to put the images, which are removed in the end (default: memory, /dev/shm)")
	flags.StringVar(&o.registry, "registry", "bin/registry", "our registry")
	flags.StringVar(&o.hook, "init-hook", "bin/init-hook", "our init-hook")
	flags.IntVar(&o.pulls, "pulls", 1000, "how many images all nodes pull together")
	flags.IntVar(&o.imageBytes, "image", 1e6, "bytes of such an image")
	nodes := flags.String("nodes", "1,10,100,1000", "how many nodes pull, separated by commas; empty: none")
	herds := flags.String("herds", "10x500,100x30,1000x3",
		"herds, NODESxMEGABYTES of the image, separated by commas; empty: none")
	clusters := flags.String("clusters", "100,1000,5000",
		"how many nodes there are for prepare, separated by commas; empty: none")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.runs < 1 || o.pulls < 1 || o.imageBytes < 1 {
		return o, errors.New("there are no arguments but flags, and -n, -pulls and -image must be positive")
	}
	if o.nodes, err = numbers(*nodes, ","); err != nil {
		return o, fmt.Errorf("-nodes: %w", err)
	}
	if o.clusters, err = numbers(*clusters, ","); err != nil {
		return o, fmt.Errorf("-clusters: %w", err)
	}
	for one := range strings.SplitSeq(*herds, ",") {
		if one == "" {
			continue
		}
		parts, err := numbers(one, "x")
		if err != nil || len(parts) != 2 {
			return o, fmt.Errorf("-herds: %q is not NODESxMEGABYTES", one)
		}
		o.herds = append(o.herds, herd{parts[0], parts[1] * 1e6})
	}
	return o, nil
}

// numbers parses positive numbers, separated by commas; none in an empty text.
func numbers(text, separator string) (all []int, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, separator) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no positive number", part)
		}
		all = append(all, n)
	}
	return all, nil
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := allowFiles(o); err != nil {
		return err
	}
	dir, err := registries.StorageDir(o.dir, "bench-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	certificates, err := registries.NewCertificates(filepath.Join(dir, "tls"))
	if err != nil {
		return err
	}
	// The clients' own garbage collection must not disturb the measurement.
	debug.SetGCPercent(400)

	b := &benchmark{options: o, dir: dir, certificates: certificates, report: newReport(o)}
	if len(o.nodes) > 0 || len(o.herds) > 0 {
		fmt.Fprintln(os.Stderr, "pushing the images")
		if err := b.push(ctx); err != nil {
			return fmt.Errorf("pushing the images: %w", err)
		}
	}
	work := b.work()
	for run := range o.runs {
		for n := range work {
			w := work[(n+run)%len(work)] // in another order each time
			began := time.Now()
			if err := w.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d  %-32s %.1f s\n", run+1, o.runs, w.name, time.Since(began).Seconds())
		}
	}
	return b.report.Save(o.write, stdout)
}

// benchmark is one call of the program.
type benchmark struct {
	options
	dir          string
	certificates *registries.Certificates
	report       *results.Report
	images       []image // numbers of nodes
	herdImages   map[int]image
}

// task is one measurement of a run.
type task struct {
	name string
	do   func(context.Context) error
}

func (b *benchmark) work() (all []task) {
	for _, n := range b.nodes {
		all = append(all,
			task{fmt.Sprintf("%d nodes, the same image", n), func(ctx context.Context) error {
				return b.pullMany(ctx, tableSame,
					n, b.images[:1])
			}},
			task{fmt.Sprintf("%d nodes, different images", n), func(ctx context.Context) error {
				return b.pullMany(ctx,
					tableDifferent, n, b.images)
			}})
	}
	for _, h := range b.herds {
		all = append(all, task{"herd of " + h.String(), func(ctx context.Context) error { return b.stampede(ctx, h) }})
	}
	for _, n := range b.clusters {
		all = append(all, task{fmt.Sprintf("prepare of %d nodes", n),
			func(ctx context.Context) error { return b.prepare(ctx, n) }})
	}
	return all
}

// allowFiles raises the limit of open files: at both ends a connection is one, and in the
// registry a blob that is sent is another.
func allowFiles(o options) error {
	nodes := slices.Max(append(slices.Clone(o.nodes), 1))
	for _, h := range o.herds {
		nodes = max(nodes, h.nodes)
	}
	need := uint64(2*layersAtOnce*nodes + 500)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Cur >= need {
		return nil // Go has raised it as far as it may, and a child in Go will
	}
	raised := syscall.Rlimit{Cur: need, Max: max(limit.Max, need)}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err != nil { // syscall's tells the children
		return fmt.Errorf("%d nodes need %d open files, and only %d are allowed: be root, raise the limit with ulimit -n, "+
			"or take fewer with -nodes and -herds: %w", nodes, need, limit.Cur, err)
	}
	return nil
}

func newReport(o options) *results.Report {
	var all []results.Subject
	add := func(name, about string) { all = append(all, results.Subject{Name: name, About: about}) }
	for _, n := range o.nodes {
		add(nodesName(n), fmt.Sprintf("%d pulls of %.1f MB in all, %d by each, one after the other", max(n, o.pulls/n*n),
			float64(o.imageBytes)/1e6, max(1, o.pulls/n)))
	}
	for _, h := range o.herds {
		add(h.String(), "all begin at once, with new connections, and each pulls the image once")
	}
	for _, n := range o.clusters {
		add(clusterName(n), fmt.Sprintf(
			"`init-hook prepare`, as a new installation; a node is %.0f kB as JSON, with %d images", float64(nodeBytes())/1e3,
			imagesOnNode))
	}
	return results.New(fmt.Sprintf(
		"`make bench-scale`: one registry, and clients that are the proxies of so many nodes in one process, on one "+
			"machine over loopback with mutual TLS 1.3; images are in memory. "+
			"An image has a manifest, asked for by tag and by digest, a configuration and layers, %d at a time as containerd "+
			"does. CPU and memory are the registry's alone, which begins anew for each row; "+
			"memory is the most that was resident, the program's own pages included. Jain's index of the nodes' rates is 1 "+
			"where all are served alike.", layersAtOnce), all...)
}

func nodesName(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func clusterName(n int) string { return fmt.Sprintf("cluster of %d nodes", n) }
