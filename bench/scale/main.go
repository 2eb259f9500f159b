// Command scale measures one registry with up to 1000 clients that pull at once, like the proxies of as
// many nodes, and init-hook's prepare and the healer in clusters of up to 5000 nodes.
//
// The clients run in one process. Each has its own client certificate, TLS session cache and connection
// pool. The registry is bin/registry in another process; both share the cores and the loopback interface
// of this machine. The cluster is a minimal API server in this process that keeps objects in memory.
// Network, disks, kubelets and etcd are not measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/registry/s3test"
)

func main() {
	program.Main("scale", func(ctx context.Context, args []string) error { return bench(ctx, args, os.Stdout) })
}

type options struct {
	results.Options
	dir               string
	registry, hook    string
	s3                string        // the program of an S3 server
	node              string        // the program of the healer
	rest              time.Duration // how long a healer is measured
	nodes, clusters   []int         // numbers of nodes
	healers           []int         // the same
	garbage           []int         // numbers of blobs to collect
	herds             []herd
	pulls, imageBytes int
}

// herd is a number of nodes that pull the same image at once.
type herd struct {
	nodes int
	bytes int // size of the image
}

func (h herd) String() string {
	return fmt.Sprintf("%d nodes, %s MB", h.nodes, strconv.FormatFloat(float64(h.bytes)/1e6, 'f', -1, 64))
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", "", "directory for temporary files (default: /dev/shm, in memory)")
	flags.StringVar(&o.registry, "registry", "bin/registry", "path of the project's registry")
	flags.StringVar(&o.hook, "init-hook", "bin/zarf-registry", "path of init-hook")
	flags.StringVar(&o.s3, "s3", "", "path of versitygw: the registry stores in S3 (default: in a directory)")
	flags.StringVar(&o.node, "registry-node", "bin/registry-node", "path of registry-node")
	flags.DurationVar(&o.rest, "rest", time.Minute, "how long a healer is measured")
	flags.IntVar(&o.pulls, "pulls", 1000, "total number of pulls by all nodes")
	flags.IntVar(&o.imageBytes, "image", 1e6, "size of the pulled images in bytes")
	nodes := flags.String("nodes", "1,10,100,1000", "comma-separated numbers of nodes that pull; empty: none")
	herds := flags.String("herds", "10x500,100x30,1000x3",
		"comma-separated herds as NODESxMEGABYTES of the image; empty: none")
	clusters := flags.String("clusters", "100,1000,5000",
		"comma-separated cluster sizes for prepare; empty: none")
	garbage := flags.String("garbage", "", "comma-separated numbers of blobs to collect during pushes (default: none)")
	healers := flags.String("healers", "", "comma-separated cluster sizes for the healer (default: none)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.rest <= 0 || o.pulls < 1 || o.imageBytes < 1 {
		return o, errors.New("positional arguments are not supported, and -rest, -pulls and -image must be positive")
	}
	if o.nodes, err = numbers(*nodes, ","); err != nil {
		return o, fmt.Errorf("-nodes: %w", err)
	}
	if o.clusters, err = numbers(*clusters, ","); err != nil {
		return o, fmt.Errorf("-clusters: %w", err)
	}
	if o.healers, err = numbers(*healers, ","); err != nil {
		return o, fmt.Errorf("-healers: %w", err)
	}
	if o.garbage, err = numbers(*garbage, ","); err != nil {
		return o, fmt.Errorf("-garbage: %w", err)
	}
	for one := range strings.SplitSeq(*herds, ",") {
		if one == "" {
			continue
		}
		parts, err := numbers(one, "x")
		if err != nil || len(parts) != 2 {
			return o, fmt.Errorf("-herds: invalid %q: want NODESxMEGABYTES", one)
		}
		o.herds = append(o.herds, herd{parts[0], parts[1] * 1e6})
	}
	return o, nil
}

// numbers parses positive numbers. An empty text has none.
func numbers(text, separator string) (all []int, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, separator) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("invalid %q: want a positive number", part)
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
	if err := raiseFileLimit(o); err != nil {
		return err
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	report.How, report.Subjects = how(o), subjects(o)
	dir, certificates, err := registries.Prepare(o.dir, "bench-scale-")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}

	b := &benchmark{options: o, dir: dir, certificates: certificates, report: report}
	if o.s3 != "" {
		server, err := startS3(ctx, o.s3, dir)
		if err != nil {
			return err
		}
		defer server.Stop()
		b.driver = server.Driver("")
	}
	if len(o.nodes) > 0 || len(o.herds) > 0 {
		fmt.Fprintln(os.Stderr, "pushing the images")
		if err := b.push(ctx); err != nil {
			return fmt.Errorf("pushing the images: %w", err)
		}
	}
	work := b.work()
	names := make([]string, len(work))
	for i, w := range work {
		names[i] = w.name
	}
	if err := report.Repeat(o.Runs, names, func(n int) error { return work[n].do(ctx) }); err != nil {
		return err
	}
	return report.Save(o.Write, stdout)
}

// benchmark is the state of all runs.
type benchmark struct {
	options
	dir          string
	driver       string // of the registry's storage, as of [registries.StartOurs]
	certificates *registries.Certificates
	report       *results.Report
	images       []image
	herdImages   map[int]image // by size
}

// startS3 runs a server whose bucket is in dir.
func startS3(ctx context.Context, program, dir string) (*s3test.Server, error) {
	address, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	bucket := filepath.Join(dir, "s3", "bucket")
	if err := os.MkdirAll(bucket, 0o700); err != nil {
		return nil, err
	}
	return s3test.Start(program, address, bucket)
}

// task is one measurement of a run.
type task struct {
	name string
	do   func(context.Context) error
}

func (b *benchmark) work() (all []task) {
	for _, n := range b.nodes {
		all = append(all,
			task{fmt.Sprintf("%d nodes, the same image", n),
				func(ctx context.Context) error { return b.pullMany(ctx, tableSame, n, b.images[:1]) }},
			task{fmt.Sprintf("%d nodes, different images", n),
				func(ctx context.Context) error { return b.pullMany(ctx, tableDifferent, n, b.images) }})
	}
	for _, h := range b.herds {
		all = append(all, task{"herd of " + h.String(), func(ctx context.Context) error { return b.stampede(ctx, h) }})
	}
	for _, n := range b.clusters {
		all = append(all, task{fmt.Sprintf("prepare of %d nodes", n),
			func(ctx context.Context) error { return b.prepare(ctx, n) }})
	}
	for _, n := range b.healers {
		for _, taint := range []bool{false, true} {
			all = append(all, task{healerName(n, taint), func(ctx context.Context) error { return b.heal(ctx, n, taint) }})
		}
	}
	for _, n := range b.garbage {
		for _, c := range collectors(n) {
			all = append(all, task{c.name, func(ctx context.Context) error { return b.collectWhilePushing(ctx, n, c) }})
		}
	}
	return all
}

// raiseFileLimit raises the limit of open files. Each connection needs one at both ends, and another in the
// registry for the blob.
func raiseFileLimit(o options) error {
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
		return nil // Go raises its own soft limit to the hard limit, also in the registry
	}
	raised := syscall.Rlimit{Cur: need, Max: max(limit.Max, need)}
	// Unlike unix.Setrlimit, syscall.Setrlimit also sets the limit of child processes.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("%d nodes need %d open files, but the limit is %d: run as root, raise it with ulimit -n, "+
			"or set smaller -nodes and -herds: %w", nodes, need, limit.Cur, err)
	}
	return nil
}

func subjects(o options) (all []results.Subject) {
	add := func(name, about string) { all = append(all, results.Subject{Name: name, About: about}) }
	for _, n := range o.nodes {
		add(nodesName(n), fmt.Sprintf("%d pulls of %.1f MB in total, %d per node, one after the other", max(n, o.pulls/n*n),
			float64(o.imageBytes)/1e6, max(1, o.pulls/n)))
	}
	for _, h := range o.herds {
		add(h.String(), "all nodes start at once with new connections and pull the image once")
	}
	for _, n := range o.clusters {
		add(clusterName(n), fmt.Sprintf(
			"`init-hook prepare` of a new installation; a node is %.0f kB of JSON with %d images", float64(nodeBytes())/1e3,
			imagesOnNode))
	}
	for _, n := range o.healers {
		node := fmt.Sprintf("a node is %.0f kB of JSON", float64(nodeBytes())/1e3)
		add(healerName(n, false), "`registry-node heal` without pending pods; watches them only")
		add(healerName(n, true), fmt.Sprintf("the same, and watches nodes, each of which is updated every %.0f minutes; %s",
			reportInterval.Minutes(), node))
	}
	for _, n := range o.garbage {
		for i, about := range []string{fmt.Sprintf("the same pushes for %s", withoutCollection),
			"the registry to which images are pushed collects, as with one replica",
			"`registry garbage-collect` collects, like another replica"} {
			add(collectors(n)[i].name, about)
		}
	}
	return all
}

func how(o options) string {
	if len(o.garbage) > 0 {
		return fmt.Sprintf("`make bench-garbage`: one registry, and %d clients that push small images one after the other, "+
			"on one machine over loopback with mutual TLS 1.3. Storage is in memory. The garbage are blobs of %d bytes without "+
			"an image; the grace period is 0. Each client alternates between images with new layers and images whose two "+
			"layers are garbage at random, which it uploads only if the registry does not have them. The wait of a manifest "+
			"is from its first request until it is stored, with all repetitions if the registry refuses it. At the end, all "+
			"images are pulled.", pushers, garbageBytes)
	}
	if len(o.nodes)+len(o.herds)+len(o.clusters) == 0 {
		return fmt.Sprintf("`make bench-healer`: one healer and a minimal API server, on one machine. Figures are of %s at "+
			"rest, after the healer has read all nodes; at start: until then.", o.rest)
	}
	command, storage := "make bench-scale", "Images are in memory"
	if o.s3 != "" {
		command, storage = "make bench-scale-s3", "Images are in the memory of an S3 server (versitygw) on this machine"
	}
	return fmt.Sprintf(
		"`%s`: one registry, and one process with a client for each node, which behaves like the node's "+
			"proxy, on one machine over loopback with mutual TLS 1.3. %s. A pull requests the manifest by "+
			"tag and by digest, then the configuration and the layers, %d at a time like containerd. CPU time and peak "+
			"resident memory are those of the registry, which is restarted for each row. Jain's index of the nodes' rates "+
			"is 1 if all nodes are served equally.", command, storage, layersAtOnce)
}

func nodesName(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func clusterName(n int) string { return fmt.Sprintf("cluster of %d nodes", n) }
