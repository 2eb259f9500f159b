package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

// Tables of the report. The targets in bench/report refer to them.
const (
	tableConnect = "A new connection for each request of 1 KiB, 8 clients"
	tableKeep    = "Requests of 1 KiB on 8 connections that stay"
	tableStream  = "One large body"
	tableStreams = "Four large bodies at once"
	tableMemory  = "Memory"
	tableRatios  = "The proxy beside direct TLS"
)

const (
	readyTimeout = 10 * time.Second
	// reapPause lets a forking proxy reap its children; otherwise their CPU time is not counted.
	reapPause = 150 * time.Millisecond
)

type measurement struct {
	load         load
	dir          string
	registry     string // host:port
	certificates certificates
	report       *results.Report
	left         map[string]*leftover // by subject
}

// leftover is a proxy that idles after the load until its memory is measured again.
type leftover struct {
	process *process
	idle    idle
	since   time.Time
}

// measure performs one run of a subject.
func (m *measurement) measure(ctx context.Context, s subject) error {
	if err := m.finish(ctx, s.Name); err != nil {
		return err
	}
	if s.direct {
		dial, err := m.direct()
		if err != nil {
			return err
		}
		return m.loads(ctx, s.Name, dial, nil)
	}
	p, dial, err := m.start(ctx, s)
	if err != nil {
		return err
	}
	if err := m.measureProcess(ctx, s.Name, dial, p); err != nil {
		p.stop()
		return fmt.Errorf("%w\noutput: %s", err, p.log)
	}
	return nil
}

func (m *measurement) measureProcess(ctx context.Context, name string, dial dialer, p *process) error {
	rest := &leftover{process: p}
	defer rest.idle.close()
	for _, step := range []struct {
		what string
		n    int
	}{{"fresh", 0}, {fmt.Sprintf("%d idle connections", m.load.few), m.load.few},
		{fmt.Sprintf("%d idle connections", m.load.many), m.load.many}} {
		if err := rest.idle.add(ctx, dial, step.n); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		if err := m.memory(name, step.what, rest); err != nil {
			return err
		}
	}
	rest.idle.close()
	if err := m.loads(ctx, name, dial, p); err != nil {
		return err
	}
	if err := rest.idle.add(ctx, dial, m.load.few); err != nil {
		return err
	}
	m.left[name] = &leftover{process: p, idle: rest.idle, since: time.Now()}
	rest.idle = nil
	return nil
}

func (m *measurement) memory(name, what string, l *leftover) error {
	time.Sleep(reapPause)
	if err := l.idle.alive(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	bytes, err := l.process.memory()
	if err != nil {
		return err
	}
	m.report.Add(tableMemory, name, what, "MB", float64(bytes)/1e6)
	return nil
}

// finish measures the memory of a subject's leftover proxy, and stops it.
func (m *measurement) finish(ctx context.Context, name string) error {
	l := m.left[name]
	if l == nil {
		return nil
	}
	delete(m.left, name)
	defer l.process.stop()
	defer l.idle.close()
	select {
	case <-time.After(time.Until(l.since.Add(m.load.quiet))):
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.memory(name, fmt.Sprintf("%d after load", m.load.few), l)
}

// end stops all leftover proxies.
func (m *measurement) end() {
	for _, l := range m.left {
		l.idle.close()
		l.process.stop()
	}
}

// loads measures everything except memory. p is nil for the client without a proxy.
func (m *measurement) loads(ctx context.Context, name string, dial dialer, p *process) error {
	if _, _, err := connectLoad(ctx, dial, m.load.connect/3); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	for _, l := range []struct {
		table string
		d     time.Duration
		run   func(context.Context, dialer, time.Duration) ([]time.Duration, time.Duration, error)
	}{{tableConnect, m.load.connect, connectLoad}, {tableKeep, m.load.keep, keepLoad}} {
		var latencies []time.Duration
		var elapsed time.Duration
		used, err := usage(p, func() (err error) {
			latencies, elapsed, err = l.run(ctx, dial, l.d)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.table, err)
		}
		n := float64(len(latencies))
		m.report.Add(l.table, name, measureRate, "1/s", n/elapsed.Seconds())
		m.report.Add(l.table, name, measureP50, "ms", milliseconds(latencies, 0.5))
		m.report.Add(l.table, name, measureP99, "ms", milliseconds(latencies, 0.99))
		if p != nil {
			m.report.Add(l.table, name, measureCPU, "ms", used.proxy*1000/n)
		}
	}
	for _, l := range []struct {
		table   string
		streams int
	}{{tableStream, 1}, {tableStreams, 4}} {
		size := m.load.stream / int64(l.streams)
		var elapsed time.Duration
		used, err := usage(p, func() (err error) {
			elapsed, err = streamLoad(ctx, dial, l.streams, size)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.table, err)
		}
		all := float64(size) * float64(l.streams)
		m.report.Add(l.table, name, measureThroughput, "MB/s", all/1e6/elapsed.Seconds())
		if p != nil {
			m.report.Add(l.table, name, measureGiB, "s/GiB", used.proxy/all*(1<<30))
		}
		m.report.Add(l.table, name, measureBothGiB, "s/GiB", (used.client+used.proxy)/all*(1<<30))
	}
	return ctx.Err()
}

// Measures of the loads.
const (
	measureRate       = "requests"
	measureP50        = "p50"
	measureP99        = "p99"
	measureCPU        = "CPU of the proxy for each"
	measureThroughput = "throughput"
	measureGiB        = "CPU of the proxy"
	measureBothGiB    = "CPU of client and proxy"
)

// used is CPU time in seconds.
type used struct{ client, proxy float64 }

// usage returns the CPU time that client and proxy use while do runs.
func usage(p *process, do func() error) (u used, err error) {
	read := func() (u used, err error) {
		if u.client, err = ownCPU(); err != nil || p == nil {
			return u, err
		}
		time.Sleep(reapPause)
		u.proxy, err = processes.CPU(p.Process.Pid)
		return u, err
	}
	before, err := read()
	if err != nil {
		return u, err
	}
	if before.client, err = ownCPU(); err != nil { // excludes the time spent in read
		return u, err
	}
	if err := do(); err != nil {
		return u, err
	}
	after, err := read()
	return used{after.client - before.client, after.proxy - before.proxy}, err
}

// milliseconds returns a quantile of sorted latencies.
func milliseconds(sorted []time.Duration, quantile float64) float64 {
	return sorted[int(float64(len(sorted)-1)*quantile)].Seconds() * 1000
}

// ratios adds the ratios of our proxy to the client without a proxy.
func (m *measurement) ratios(run int) {
	for _, of := range []struct{ table, measure, name string }{
		{tableConnect, measureRate, "new connections"},
		{tableKeep, measureRate, "requests on connections that stay"},
		{tableStream, measureThroughput, "one body, throughput"},
		{tableStreams, measureThroughput, "four bodies, throughput"},
	} {
		ours, direct := m.report.Find(of.table, oursName, of.measure), m.report.Find(of.table, directName, of.measure)
		if ours != nil && direct != nil {
			m.report.Add(tableRatios, oursName, of.name, "ours / direct", ours.Runs[run]/direct.Runs[run])
		}
	}
}

// direct returns a dialer that connects to the registry with TLS.
func (m *measurement) direct() (dialer, error) {
	source, err := tlsfiles.Open(m.certificates.dir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{Config: tlsfiles.ClientConfig(source.Current(), registryName)}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", m.registry) }, nil
}

// start starts a proxy on a free port and waits until it serves a request.
func (m *measurement) start(ctx context.Context, s subject) (*process, dialer, error) {
	address, err := freeport.Find()
	if err != nil {
		return nil, nil, err
	}
	host, port, err := net.SplitHostPort(m.registry)
	if err != nil {
		return nil, nil, err
	}
	at := setting{certificates: m.certificates, Listen: address, Registry: m.registry, registryHost: host,
		registryPort: port}
	_, at.listenPort, err = net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	if s.config != "" {
		at.config = filepath.Join(m.dir, strings.ReplaceAll(s.Name, " ", "-")+".conf")
		if err := writeFile(at.config, []byte(at.fill(s.config))); err != nil {
			return nil, nil, err
		}
	}
	args, environment := s.command(at)
	command := exec.Command(s.program, args...)
	command.Env = append(command.Environ(), environment...)
	p, err := start(command)
	if err != nil {
		return nil, nil, err
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	for end := time.Now().Add(readyTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := func() error {
			c, err := dial(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			return roundTrip(c, request(smallSize, "Connection: close\r\n"), make([]byte, 16<<10))
		}()
		if err == nil {
			return p, dial, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			p.stop()
			return nil, nil, errors.Join(fmt.Errorf("no response: %w\noutput: %s", err, p.log), ctx.Err())
		}
	}
}
