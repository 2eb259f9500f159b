// Command proxy compares registry-node's proxy with socat, haproxy, nginx, ghostunnel and the reverse proxy of Go's
// standard library. All of them run between the same client and the same registry on loopback, which requires client
// certificates.
//
// The benchmark measures new connections, requests on open connections, large bodies, the CPU time of
// the proxy for each of them, and its memory. It checks every response.
//
// Client, proxy and registry share the cores of one machine, without a network, so CPU time that the
// proxy uses slows down the other two. The registry serves from memory to use as little as possible;
// bench/registry measures a real one.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

func main() { program.Main("proxy", run) }

// run runs the benchmark, or one of its child processes.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case registryMode:
			return serveRegistry(args[1:])
		case naiveMode:
			return serveNaive(args[1:])
		}
	}
	return bench(ctx, args)
}

type options struct {
	results.Options
	subjects          string
	node, testcluster string
	load              load
}

func bench(ctx context.Context, args []string) (err error) {
	var o options
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.subjects, "subjects", "",
		"comma-separated names of the proxies (default: all that are installed)")
	flags.StringVar(&o.node, "registry-node", "bin/registry-node", "path of registry-node")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster", "path of testcluster, which builds ghostunnel")
	flags.DurationVar(&o.load.connect, "connect", 1500*time.Millisecond,
		"how long to open new connections, after a third of that as warm-up")
	flags.DurationVar(&o.load.keep, "keep", 1000*time.Millisecond, "how long to send requests on open connections")
	flags.Int64Var(&o.load.stream, "stream", 1<<30,
		"size of a large body in bytes; four concurrent bodies have a quarter of it each")
	flags.IntVar(&o.load.idle, "idle", 50, "number of idle connections for measuring memory")
	flags.DurationVar(&o.load.quiet, "quiet", 22*time.Second,
		"idle time after the load before memory is measured again")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.load.stream < 4 {
		return errors.New("positional arguments are not supported, and -stream must be at least 4")
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	certificates, node, err := makeCertificates(dir)
	if err != nil {
		return fmt.Errorf("creating certificates: %w", err)
	}
	registry, err := startRegistry(ctx, certificates)
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	defer registry.Stop()
	found, err := findSubjects(ctx, o, dir)
	if err != nil {
		return err
	}
	report.How = how(o.load)
	m := &measurement{
		load: o.load, dir: dir, registry: registry.Address, certificates: node, report: report,
		left: map[string]*leftover{},
	}
	defer m.end()
	names := make([]string, 0, len(found))
	for _, s := range found {
		names = append(names, s.Name)
		report.Subjects = append(report.Subjects, s.Subject)
	}
	err = report.Repeat(o.Runs, names, func(n int) error { return m.measure(ctx, found[n]) })
	if err != nil {
		return err
	}
	for _, s := range found {
		if err := m.finish(ctx, s.Name); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return report.Save(o.Write, os.Stdout)
}

func how(l load) string {
	return fmt.Sprintf("Client, proxy and registry share the cores. The registry serves from memory with TLS 1.3 and "+
		"requires a client certificate. %d clients request 1 KiB for %s with a connection for each request, then for %s on "+
		"open connections; one body has %.2f GiB, four concurrent ones a quarter of it each. Memory is private and shared "+
		"resident memory with %d idle connections, before the load and %s after it.",
		clients, l.connect, l.keep, float64(l.stream)/(1<<30), l.idle, l.quiet)
}

// registryName is the DNS name in the registry's certificate. The certificate also has the IP address,
// because socat compares it with the destination.
const registryName = "zarf-registry.zarf.svc"

// makeCertificates creates the directories registry and node, with certificates of one CA.
func makeCertificates(dir string) (issued *registries.Certificates, node string, err error) {
	registry, node := filepath.Join(dir, "registry"), filepath.Join(dir, "node")
	if issued, err = registries.NewCertificates(registry); err != nil {
		return nil, "", err
	}
	return issued, node, errors.Join(
		issued.Write(registry, pki.Leaf{CommonName: "registry", DNSNames: []string{registryName},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		issued.Write(node, pki.Leaf{CommonName: "node", Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))
}

// raiseFileLimit raises the limit of open files for this process and its children. A proxy needs two
// for each connection.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
