package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
)

// Tables of the report, and the measures of each. The targets in bench/report refer to them.
const (
	tableRequests = "Requests of 1 KiB, 8 clients"
	measureNew    = "new connections"
	measureNewP99 = "new: p99"
	measureNewCPU = "new: CPU"
	measureOpen   = "on open connections"
	measureOpCPU  = "open: CPU"

	tableBodies   = "Large bodies, and memory"
	measureOne    = "one body"
	measureOneCPU = "one: CPU"
	measureFour   = "four bodies"
	measureMemory = "memory"
	measureAfter  = "after load"
)

const (
	readyTimeout = time.Minute
	// reapPause lets a forking proxy reap its children; otherwise their CPU time is not counted.
	reapPause = 150 * time.Millisecond
)

type measurement struct {
	load         load
	dir          string
	registry     string // host:port
	certificates string // directory
	report       *results.Report
	left         map[string]*leftover // by subject
}

// leftover is a proxy that idles after the load until its memory is measured again.
type leftover struct {
	process *registries.Process
	idle    idle
	since   time.Time
}

// measure performs one run of a subject.
func (m *measurement) measure(ctx context.Context, s subject) error {
	for name, l := range m.left {
		// Longer waits would exceed the time for which proxies keep idle connections.
		if name == s.Name || time.Since(l.since) >= m.load.quiet {
			if err := m.finish(ctx, name); err != nil {
				return fmt.Errorf("%s, after its load: %w", name, err)
			}
		}
	}
	p, dial, err := m.start(ctx, s)
	if err != nil {
		return err
	}
	if err := m.measureProcess(ctx, s.Name, dial, p); err != nil {
		p.Stop()
		return fmt.Errorf("%w\noutput: %s", err, p.Output())
	}
	return nil
}

func (m *measurement) measureProcess(ctx context.Context, name string, dial dialer, p *registries.Process) error {
	rest := &leftover{process: p}
	defer rest.idle.close()
	if err := rest.idle.add(ctx, dial, m.load.idle); err != nil {
		return err
	}
	if err := m.memory(name, measureMemory, rest); err != nil {
		return err
	}
	rest.idle.close()
	if err := m.loads(ctx, name, dial, p); err != nil {
		return err
	}
	if err := rest.idle.add(ctx, dial, m.load.idle); err != nil {
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
	bytes, err := l.process.Memory()
	if err != nil {
		return err
	}
	m.report.Add(tableBodies, name, what, "MB", float64(bytes)/1e6)
	return nil
}

// finish measures the memory of a subject's leftover proxy, and stops it.
func (m *measurement) finish(ctx context.Context, name string) error {
	l := m.left[name]
	if l == nil {
		return nil
	}
	delete(m.left, name)
	defer l.process.Stop()
	defer l.idle.close()
	if err := program.Sleep(ctx, time.Until(l.since.Add(m.load.quiet))); err != nil {
		return err
	}
	return m.memory(name, measureAfter, l)
}

// end stops all leftover proxies.
func (m *measurement) end() {
	for _, l := range m.left {
		l.idle.close()
		l.process.Stop()
	}
}

// loads measures everything except memory.
func (m *measurement) loads(ctx context.Context, name string, dial dialer, p *registries.Process) error {
	if _, _, err := connectLoad(ctx, dial, m.load.connect/3); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	for _, l := range []struct {
		rate, p99, cpu string
		d              time.Duration
		run            func(context.Context, dialer, time.Duration) ([]time.Duration, time.Duration, error)
	}{{measureNew, measureNewP99, measureNewCPU, m.load.connect, connectLoad},
		{measureOpen, "", measureOpCPU, m.load.keep, keepLoad}} {
		var latencies []time.Duration
		var elapsed time.Duration
		used, err := usage(p, func() (err error) {
			latencies, elapsed, err = l.run(ctx, dial, l.d)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.rate, err)
		}
		n := float64(len(latencies))
		m.report.Add(tableRequests, name, l.rate, "1/s", n/elapsed.Seconds())
		if l.p99 != "" {
			p99 := latencies[int((n-1)*0.99)] // they are sorted
			m.report.Add(tableRequests, name, l.p99, "ms", p99.Seconds()*1000)
		}
		m.report.Add(tableRequests, name, l.cpu, "ms", used*1000/n)
	}
	for _, l := range []struct {
		throughput, cpu string
		streams         int
	}{{measureOne, measureOneCPU, 1}, {measureFour, "", 4}} {
		size := m.load.stream / int64(l.streams)
		var elapsed time.Duration
		used, err := usage(p, func() (err error) {
			elapsed, err = streamLoad(ctx, dial, l.streams, size)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.throughput, err)
		}
		all := float64(size) * float64(l.streams)
		m.report.Add(tableBodies, name, l.throughput, "MB/s", all/1e6/elapsed.Seconds())
		if l.cpu != "" {
			m.report.Add(tableBodies, name, l.cpu, "s/GiB", used/all*(1<<30))
		}
	}
	return ctx.Err()
}

// usage returns the CPU time, in seconds, that a proxy uses while do runs.
func usage(p *registries.Process, do func() error) (float64, error) {
	time.Sleep(reapPause)
	before, err := p.CPU()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	time.Sleep(reapPause)
	after, err := p.CPU()
	return after - before, err
}

// start starts a proxy on a free port and waits until it serves a request.
func (m *measurement) start(ctx context.Context, s subject) (*registries.Process, dialer, error) {
	address, err := freeport.Find()
	if err != nil {
		return nil, nil, err
	}
	host, port, err := net.SplitHostPort(m.registry)
	if err != nil {
		return nil, nil, err
	}
	_, listenPort, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	config := filepath.Join(m.dir, strings.ReplaceAll(s.Name, " ", "-")+".conf")
	fill := strings.NewReplacer("LISTEN_PORT", listenPort, "LISTEN", address, "REGISTRY_PORT", port,
		"REGISTRY", m.registry, "NAME", registryName, "CONFIG", config, "DIR", m.certificates).Replace
	if err := os.WriteFile(config, []byte(fill(s.config)), 0o600); err != nil {
		return nil, nil, err
	}
	args := slices.Clone(s.args)
	for n, arg := range args {
		args[n] = fill(arg)
	}
	p, err := registries.StartClient([]string{"ZARF_REGISTRY_SERVICE_HOST=" + host}, s.program, args...)
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
			p.Stop()
			return nil, nil, errors.Join(fmt.Errorf("no response: %w\noutput: %s", err, p.Output()), ctx.Err())
		}
	}
}
