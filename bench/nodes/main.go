// Command nodes measures how long nodes need to pull images through links of 1 Gbit/s: until the last of 1 to 50 nodes
// has a large image, and the latency of a small one.
//
// The registry, each cache and each node have a network namespace of their own, with links to a bridge, which token
// buckets limit. The programs are the real ones; only the container runtimes are clients in this process. Disks are
// memory. Everything is in namespaces that end with the process, so a crash leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() { program.Main("nodes", run) }

// crowd is a number of nodes that pull the large image at the same moment.
type crowd struct {
	table  string // heading, to which targets in bench/report refer
	nodes  int
	image  int64 // bytes
	rate   int64 // of each link, in bits per second
	caches int
}

// Many nodes have a fifth of the link and of the image, which takes as long: one machine's CPUs carry no more.
var crowds = []crowd{
	{"1 GB on 1 node", 1, 1e9, 1e9, 3},
	{"1 GB on 2 nodes", 2, 1e9, 1e9, 3},
	{"1 GB on 10 nodes", 10, 1e9 / 5, 1e9 / 5, 3},
	{"200 MB on 50 nodes", 50, 200e6 / 5, 1e9 / 5, maxCaches},
}

const how = "Registry, caches and nodes are processes in network namespaces of one machine, with links of 1 Gbit/s; " +
	"for 10 and 50 nodes, links and images are a fifth of that, which takes as long, because its CPUs carry no more. " +
	"All nodes start at once, pull 3 of 8 incompressible layers at a time and verify digests; 1 GB on 50 nodes would " +
	"occupy the registry's link for 7 minutes. Links allow what registry or caches must send, without overhead. " +
	"A pull of the small image is a HEAD and a GET of its manifest, then its configuration and a layer of 10 kB at " +
	"once; after a pause, proxies have no connection to the registry."

type options struct {
	results.Options
	registry, node string // programs
	pulls          int
	divisor        int64 // of the sizes of large images
	cases          *regexp.Regexp
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("nodes", flag.ContinueOnError)
	o.Register(flags)
	o.Runs = 1 // takes nine minutes
	flags.StringVar(&o.registry, "registry", "bin/registry", "path of the project's registry")
	flags.StringVar(&o.node, "registry-node", "bin/registry-node", "path of registry-node")
	flags.IntVar(&o.pulls, "pulls", 700, "pulls of the small image, for each of 3 measurements in a run")
	flags.Int64Var(&o.divisor, "divisor", 1, "divisor of the sizes of large images")
	run := flags.String("run", "", "regular expression that selects cases (default: all)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.pulls < 1 || o.divisor < 1 {
		return o, errors.New("positional arguments are not supported, and -pulls and -divisor must be positive")
	}
	o.cases, err = regexp.Compile(*run)
	return o, err
}

// run starts the benchmark in namespaces of its own.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case insideMode:
			return inside(ctx, args[1:])
		case distribution.Mode:
			return serveDistribution(ctx, args[1:])
		}
	}
	if _, err := parse(args); err != nil {
		return err
	}
	return enter(ctx, args)
}

// benchmark is the state of all runs.
type benchmark struct {
	options
	dir          string
	certificates *registries.Certificates
	report       *results.Report
	fabric       *fabric
	small        registries.Image
	large        map[int64]registries.Image // by size
}

// inside is the benchmark, in namespaces of its own.
func inside(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := isolate(); err != nil {
		return err
	}
	ways, err := ways(ctx)
	if err != nil {
		return err
	}
	b := &benchmark{options: o}
	if b.report, err = o.Begin(ctx); err != nil {
		return err
	}
	b.report.How = how
	var large, small []testcase
	for _, w := range ways {
		b.report.Subjects = append(b.report.Subjects, results.Subject{Name: w.name, Version: w.version, About: w.about})
		for _, c := range crowds {
			if !w.distribution && (!w.nginx || c.caches == maxCaches) {
				large = append(large, testcase{w, c, (*stage).rollout})
			}
		}
		if !w.caches {
			small = append(small, testcase{w, crowd{table: tableSmall, nodes: pausedNodes, rate: 1e9}, (*stage).latency})
		}
	}
	if b.dir, b.certificates, err = registries.Prepare(memoryDir, "bench-"); err != nil {
		return err
	}
	if b.fabric, err = newFabric(ctx, crowds[len(crowds)-1].nodes); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return fmt.Errorf("pushing the images: %w", err)
	}
	if err := b.repeat(ctx, large, o.Runs); err != nil {
		return err
	}
	if err := b.repeat(ctx, small, o.Runs*latencyRuns); err != nil {
		return err
	}
	return b.report.Save(o.Write, os.Stdout)
}

// testcase is a row of a table.
type testcase struct {
	way     way
	crowd   crowd
	measure func(*stage, context.Context) error
}

// repeat measures those cases that -run selects.
func (b *benchmark) repeat(ctx context.Context, all []testcase, runs int) error {
	var chosen []testcase
	var names []string
	for _, c := range all {
		if name := c.crowd.table + ": " + c.way.name; b.cases.MatchString(name) {
			chosen, names = append(chosen, c), append(names, name)
		}
	}
	return b.report.Repeat(runs, names, func(n int) error { return b.run(ctx, chosen[n]) })
}

// way is how nodes get images.
type way struct {
	name, version, about                  string
	nodePort, caches, nginx, distribution bool
	htpasswd                              bool // distribution requires a password
}

// ways returns all of them, in the order of the tables. The targets in bench/report refer to the names.
func ways(ctx context.Context) ([]way, error) {
	nginx, err := exec.CommandContext(ctx, "nginx", "-v").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("nginx, which hack/deps.sh bench installs: %w", err)
	}
	_, nginxVersion, _ := strings.Cut(strings.TrimSpace(string(nginx)), "/")
	theirs := distribution.Version()
	return []way{
		{"node port", "", "our registry: plain HTTP, a password", true, false, false, false, false},
		{"proxy", "", "our proxy, mutual TLS to our registry", false, false, false, false, false},
		{"caches", "", "our proxy, and 3 of our caches, 5 for 50 nodes", false, true, false, false, false},
		{"nginx", nginxVersion, "our proxy, and `proxy_cache` instead of our caches", false, true, true, false, false},
		{"distribution", theirs, "node port: plain HTTP, no password", true, false, false, true, false},
		{"distribution, password", theirs, "node port: plain HTTP, bcrypt as in Zarf", true, false, false, true, true},
	}, nil
}
