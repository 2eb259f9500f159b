// Command proxy measures registry-node's proxy beside others: socat, stunnel,
// haproxy, nginx, ghostunnel and the reverse proxy of Go's standard library, all
// between the same client and the same registry on loopback, which asks for a
// client certificate. The client without a proxy, with TLS of its own, is the
// limit.
//
// It measures new connections, requests on connections that stay, large bodies,
// the CPU time that the proxy takes for each of them, and its memory. Every answer
// is checked.
//
// Client, proxy and registry share the cores of one machine, and there is no
// network: what a proxy takes is missing to the other two. The registry answers
// from memory, so that it is the least of what is measured; what a real one takes
// is measured by bench/registry.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

func main() { program.Main("proxy", run) }

// run is the program, or a child process that it starts of itself.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case registryMode:
			return serveRegistry(args[1:], os.Stdin, os.Stdout)
		case naiveMode:
			return serveNaive(args[1:])
		}
	}
	return bench(ctx, args)
}

type options struct {
	runs              int
	write, subjects   string
	node, testcluster string
	load              load
}

func bench(ctx context.Context, args []string) (err error) {
	var o options
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	flags.IntVar(&o.runs, "n", 5, "runs")
	flags.StringVar(&o.write, "write", "", "directory to write RESULTS.json to (default: the medians go to stdout)")
	flags.StringVar(&o.subjects, "subjects", "",
		"names of what to measure, separated by commas (default: all that are there)")
	flags.StringVar(&o.node, "registry-node", "bin/registry-node", "path of init-hook")
	flags.StringVar(&o.testcluster, "testcluster", "bin/testcluster", "the program that builds ghostunnel")
	flags.DurationVar(&o.load.connect, "connect", 1500*time.Millisecond,
		"how long to make new connections, after a third of that to warm up")
	flags.DurationVar(&o.load.keep, "keep", 1000*time.Millisecond, "how long to ask on connections that stay")
	flags.Int64Var(&o.load.stream, "stream", 1<<30, "bytes of a large body; of the four at once a quarter each")
	flags.IntVar(&o.load.few, "few", 50, "idle connections to measure memory with")
	flags.IntVar(&o.load.many, "many", 500, "many idle connections")
	flags.DurationVar(&o.load.quiet, "quiet", 22*time.Second,
		"how long a proxy that was used is left alone before its memory is measured again")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.runs < 1 || o.load.stream < 4 {
		return errors.New("there are no arguments but flags, and -n and -stream must be positive")
	}
	if err := manyFiles(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	certificates, err := makeCertificates(dir)
	if err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	registry, address, err := startRegistry(filepath.Join(dir, "registry"))
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	defer registry.stop()
	found, err := findSubjects(ctx, o, dir)
	if err != nil {
		return err
	}
	m := &measurement{
		load: o.load, dir: dir, registry: address, certificates: certificates,
		report: results.New(how(o.load), described(found)...), left: map[string]*leftover{},
	}
	defer m.end()
	for run := range o.runs {
		order := rand.New(rand.NewPCG(1, uint64(run))).Perm(len(found))
		for _, n := range order {
			fmt.Fprintf(os.Stderr, "%d/%d  %s\n", run+1, o.runs, found[n].Name)
			if err := m.measure(ctx, found[n]); err != nil {
				return fmt.Errorf("%s: %w", found[n].Name, err)
			}
		}
		m.ratios(run)
	}
	for _, s := range found {
		if err := m.finish(ctx, s.Name); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	if o.write != "" {
		return m.report.Write(o.write)
	}
	for _, measure := range m.report.Measures {
		median, least, most := measure.Spread()
		fmt.Printf("%-40s %-16s %-26s %10.4g (%.4g-%.4g) %s\n", measure.Table, measure.Subject, measure.What, median, least,
			most, measure.Unit)
	}
	return nil
}

func how(l load) string {
	return fmt.Sprintf("Client, proxy and registry are processes of one machine and share its cores; the registry "+
		"answers from memory, with TLS 1.3, and requires a client certificate. "+
		"In each run every proxy is started anew, in another order, has its memory measured, and gets %d clients with a "+
		"connection for each request for %s, "+
		"%d clients with connections that stay for %s, one body of %.2f GiB, and four at once of a quarter each. "+
		"CPU time is that of all of the proxy's processes (CLOCK_PROCESS_CPUTIME_ID, and what the kernel has of children "+
		"that ended), "+
		"memory is resident memory, of which what a proxy's processes share counts once. "+
		"\"After load\" is with %d new connections when the proxy had nothing to do for %s.",
		clients, l.connect, clients, l.keep, float64(l.stream)/(1<<30), l.few, l.quiet)
}

// certificates are the files that clients of the registry need.
type certificates struct {
	dir                string // with the names that registry-node expects
	cert, key, ca, pem string // pem has both certificate and key
}

// registryName is the name in the registry's certificate, which also has the address, because socat
// compares it with the destination.
const registryName = "zarf-registry.zarf.svc"

// makeCertificates creates directories for registry and node, with certificates of one CA.
func makeCertificates(dir string) (certificates, error) {
	now := time.Now()
	authority, err := pki.NewCA("bench", now, 0)
	if err != nil {
		return certificates{}, err
	}
	for name, leaf := range map[string]pki.Leaf{
		"registry": {DNSNames: []string{registryName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		"node": {Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		leaf.CommonName = name
		pair, err := authority.Issue(leaf, now)
		if err != nil {
			return certificates{}, err
		}
		for file, content := range map[string][]byte{
			"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": authority.KeyPair().Certificate,
			"both.pem": append(append([]byte(nil), pair.Certificate...), pair.Key...),
		} {
			if err := writeFile(filepath.Join(dir, name, file), content); err != nil {
				return certificates{}, err
			}
		}
	}
	of := func(name string) string { return filepath.Join(dir, "node", name) }
	return certificates{dir: of(""), cert: of("tls.crt"), key: of("tls.key"), ca: of("ca.crt"), pem: of("both.pem")}, nil
}

func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// manyFiles raises the limit of open files, also for child processes: two for each connection.
func manyFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
