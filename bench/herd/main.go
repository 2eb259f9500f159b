// Command herd measures how many copies of an image leave the registry, and when the last node has it, if many nodes
// pull it at the same moment: without caches, with caches, with caches of which one fails, and with nginx as a cache.
//
// The registry, each cache and each node have a network namespace of their own, with links to a bridge. What the
// registry and the caches send is limited by token buckets, so the links are the bottleneck and not the CPUs,
// which all share. The programs are the real ones, with mutual TLS; only the container runtimes are clients in
// this process. Disks are memory.
//
// Everything is in namespaces that end with the process, so a crash leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() { program.Main("herd", run) }

type options struct {
	results.Options
	dir            string
	registry, node string // programs
	nodes          int
	imageBytes     int64
	layers         int
	rate           int64 // of a link in bits per second; 0: not limited
	cases          *regexp.Regexp
	logs           string // file for the logs of caches and proxies
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("herd", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", memoryDir, "directory for up to 1 GB of temporary files; the default is in memory "+
		"and ends with the benchmark")
	flags.StringVar(&o.registry, "registry", "bin/registry", "path of the project's registry")
	flags.StringVar(&o.node, "registry-node", "bin/registry-node", "path of registry-node")
	flags.IntVar(&o.nodes, "nodes", 50, "number of nodes, at most 250")
	flags.Int64Var(&o.imageBytes, "image", 64e6, "size of the image in bytes")
	flags.IntVar(&o.layers, "layers", 4, "number of its layers")
	mbit := flags.Int64("rate", 250, "what the registry and each cache may send, in Mbit/s; 0: not limited")
	run := flags.String("run", "", "regular expression that selects cases (default: all)")
	flags.StringVar(&o.logs, "logs", "", "file to append the logs of caches and proxies to (default: none)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.nodes < 1 || o.nodes > 250 || o.layers < 1 || o.imageBytes < int64(o.layers) || *mbit < 0 {
		return o, errors.New("positional arguments are not supported, -nodes must be from 1 to 250, -layers and -image " +
			"positive, and -rate not negative")
	}
	o.rate = *mbit * 1e6
	o.cases, err = regexp.Compile(*run)
	return o, err
}

// run starts the benchmark in namespaces of its own.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == insideMode {
		return inside(ctx, args[1:], os.Stdout)
	}
	if _, err := parse(args); err != nil {
		return err
	}
	return enter(ctx, args)
}

// inside is the benchmark, in namespaces of its own.
func inside(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	for _, path := range []*string{&o.registry, &o.node} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if err := isolate(); err != nil {
		return err
	}
	all, err := o.selected(ctx)
	if err != nil {
		return err
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	dir, certificates, err := registries.Prepare(o.dir, "bench-herd-")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	b := &benchmark{options: o, dir: dir, certificates: certificates, report: report}
	if b.fabric, err = newFabric(ctx, o.nodes); err != nil {
		return err
	}
	report.How = how(b)
	var names []string
	for _, c := range all {
		report.Subjects, names = append(report.Subjects, c.Subject), append(names, c.Name)
	}
	report.Subjects = append(report.Subjects,
		results.Subject{Name: subjectAll, About: "all of them together, except nginx"})
	if err := b.prepare(ctx); err != nil {
		return fmt.Errorf("pushing the image: %w", err)
	}
	if err := report.Repeat(o.Runs, names, func(n int) error { return b.measure(ctx, all[n]) }); err != nil {
		return err
	}
	report.Add(tablePulls, subjectAll, measureFailed, "", float64(b.failed))
	report.Add(tablePulls, subjectAll, measureWrong, "", float64(b.wrong))
	return report.Save(o.Write, stdout)
}

// Names in the report to which targets in bench/report refer.
const (
	tablePulls     = "All nodes pull the image at the same moment"
	tableResources = "CPU time and memory"

	subjectAll = "all cases"

	measureFailed = "failed pulls"
	measureWrong  = "wrong blobs"
)

// fault is what happens to the first cache.
type fault int

const (
	none    fault = iota
	killed        // when half of everything is delivered
	flipped       // a byte of each stored blob has changed
	full          // its disk holds one layer
	slow          // its link
)

// slowRate is that of the link of a slow cache, in bits per second: a pull from it alone takes nine minutes.
const slowRate = 1e6

// testcase is one row of the report.
type testcase struct {
	results.Subject
	caches int
	nginx  bool
	fault  fault
}

// selected returns the cases to measure, in the order of the tables.
func (o options) selected(ctx context.Context) (all []testcase, err error) {
	add := func(name, about string, caches int, f fault) {
		all = append(all, testcase{Subject: results.Subject{Name: name, About: about}, caches: caches, fault: f})
	}
	const most = maxCaches
	add("no cache", "", 0, none)
	add("1 cache", "", 1, none)
	add("3 caches", "", 3, none)
	add("5 caches", "", most, none)
	add("5 caches, one killed", fmt.Sprintf("when half of all bytes are delivered; its endpoint is removed %.1f s later",
		endpointDelay.Seconds()), most, killed)
	add("5 caches, one corrupt", "it has stored the image already, and a byte of each blob has changed on its disk", most,
		flipped)
	add("5 caches, one full", "its disk holds a single layer", most, full)
	add("5 caches, one slow", fmt.Sprintf("its link has %.0f Mbit/s", slowRate/1e6), most, slow)
	for _, n := range []int{1, 3} {
		c := testcase{Subject: results.Subject{Name: fmt.Sprintf("%d nginx", n),
			About: "`proxy_cache` with `proxy_cache_lock` for what digests name, in place of the caches"},
			caches: n, nginx: true}
		if c.Version, err = nginxVersion(ctx); errors.Is(err, exec.ErrNotFound) {
			fmt.Fprintf(os.Stderr, "\nMISSING, not measured: %s: make bench-herd installs it\n\n", c.Name)
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	chosen := all[:0]
	for _, c := range all {
		if o.cases.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("-run selects no case")
	}
	return chosen, nil
}

func nginxVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nginx", "-v").CombinedOutput()
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), "/")
	return version, err
}

func how(b *benchmark) string {
	limit := "are not limited"
	if b.rate > 0 {
		limit = fmt.Sprintf("send at most %d Mbit/s (token buckets)", b.rate/1e6)
	}
	return fmt.Sprintf("`make bench-herd`: %d nodes pull one image of %.0f MB at the same moment, %d layers of "+
		"incompressible bytes, %d at a time like containerd, each through its own `registry-node proxy`. The registry, "+
		"caches and nodes have a network namespace each; registry and caches %s. Service addresses become random "+
		"endpoints as with kube-proxy's iptables rules. Everything runs on one machine, with new processes and empty caches "+
		"in each case, and storage in memory. Clients verify all digests, and do not retry. Copies from the registry are "+
		"bytes of response bodies, in sizes of the image. What the links allow is the time in which the caches' links, or "+
		"without caches the registry's, can carry the image to all nodes, without any overhead. The links are the "+
		"bottleneck as long as the CPUs are not always busy. Memory is the peak.",
		b.nodes, float64(b.imageBytes)/1e6, b.layers, layersAtOnce, limit)
}

// endpointDelay is how long Kubernetes takes to remove the endpoint of a pod that has ended.
const endpointDelay = 1500 * time.Millisecond
