package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// benchmark is the state of all runs.
type benchmark struct {
	options
	dir           string
	certificates  *registries.Certificates
	report        *results.Report
	fabric        *fabric
	image         image
	failed, wrong int // sums of all cases, except with nginx
}

// prepare issues the certificates and pushes the image to the registry's storage.
func (b *benchmark) prepare(ctx context.Context) (err error) {
	if err := b.issue(); err != nil {
		return err
	}
	process, err := registries.StartOurs(ctx, b.registry, b.path("registry"), "", b.certificates)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	b.image, err = b.push(ctx, process)
	return err
}

// measure measures a case with new processes and empty caches.
func (b *benchmark) measure(ctx context.Context, c testcase) (err error) {
	s := &stage{benchmark: b, testcase: c}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	sentBefore, err := s.sentByRegistry(ctx) // to the cache that is to be corrupted
	if err != nil {
		return err
	}
	linksBefore, err := sentBy()
	if err != nil {
		return err
	}
	before, err := results.ReadStat()
	if err != nil {
		return err
	}
	half, broken := make(chan struct{}), make(chan error, 1)
	delivered := &progress{reached: func() { close(half) }}
	delivered.left.Store(int64(b.nodes) * b.image.Bytes / 2)
	herd, end := context.WithCancel(ctx)
	defer end()
	go func() {
		var err error
		if c.fault == killed {
			select {
			case <-half:
				err = s.kill(ctx)
			case <-herd.Done():
				err = errors.New("not half of all bytes were delivered")
			}
		}
		broken <- err
	}()
	o := b.pullAll(ctx, delivered)
	after, err := results.ReadStat()
	if err != nil {
		return err
	}
	links, err := sentBy()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if o.failure != nil {
		fmt.Fprintf(os.Stderr, "%s: %d pulls failed and %d got wrong blobs, one of them: %v\n", c.Name, o.failed, o.wrong,
			o.failure)
	}
	if len(o.took) == 0 {
		return fmt.Errorf("all pulls failed: %w", o.failure)
	}
	end()
	if err := <-broken; err != nil {
		return err
	}
	if !c.nginx {
		b.failed, b.wrong = b.failed+o.failed, b.wrong+o.wrong
	}
	for name, n := range linksBefore {
		links[name] -= n
	}
	sent, err := s.sentByRegistry(ctx)
	if err != nil {
		return err
	}
	s.reportPulls(o, links, sent-sentBefore)
	share, err := results.BusyShare(before, after)
	if err != nil {
		return err
	}
	return s.reportResources(share)
}

// reportPulls reports when the nodes were done, and what links and the registry have sent.
func (s *stage) reportPulls(o outcome, links map[string]int64, sent int64) {
	add := func(what, unit string, value float64) { s.report.Add(tablePulls, s.Name, what, unit, value) }
	slices.Sort(o.took)
	last := o.took[len(o.took)-1].Seconds()
	add(measureFailed, "", float64(o.failed))
	add(measureWrong, "", float64(o.wrong))
	add("copies from the registry", "", float64(sent)/float64(s.image.Bytes))
	add("first done", "s", o.took[0].Seconds())
	add("median done", "s", o.took[len(o.took)/2].Seconds())
	add("last done", "s", last)
	if s.rate > 0 {
		allowed := float64(s.image.Bytes) * 8 * float64(s.nodes) / s.linkRates()
		add("last done, × what the links allow", "", last/allowed)
	}
	if s.caches > 1 {
		var sum, most int64
		for _, c := range s.fabric.caches[:s.caches] {
			sum, most = sum+links[c.port], max(most, links[c.port])
		}
		add("busiest cache, × their mean", "", float64(most)*float64(s.caches)/float64(sum))
	}
}

// linkRates returns what the links of the sources can carry, in bits per second.
func (s *stage) linkRates() float64 {
	switch {
	case s.caches == 0:
		return float64(s.rate)
	case s.fault == slow:
		return float64(s.rate)*float64(s.caches-1) + slowRate
	}
	return float64(s.rate) * float64(s.caches)
}

// sentByRegistry returns how many bytes of response bodies the registry has sent to nodes and caches.
func (s *stage) sentByRegistry(ctx context.Context) (sum int64, err error) {
	body, err := get(ctx, metricsURL(s.fabric.registry, "/metrics"))
	if err != nil {
		return 0, err
	}
	found := false
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(name, "zarf_registry_http_sent_bytes_total{") {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+int64(n), true
	}
	if !found {
		return 0, errors.New("the registry does not report what it has sent")
	}
	return sum, nil
}

// usage is what the processes of a program have used since its start.
type usage struct {
	cpu    float64 // seconds
	memory int64   // peak, bytes
}

func usageOf(p *registries.Process) (u usage, err error) {
	if u.cpu, err = processes.CPU(p.PID()); err != nil {
		return u, err
	}
	all, err := processes.Tree(p.PID())
	if err != nil {
		return u, err
	}
	for _, pid := range all {
		peak, err := processes.Peak(pid)
		if err != nil && !processes.Gone(err) {
			return u, err
		}
		u.memory += peak
	}
	return u, nil
}

// reportResources reports what each program has used, and the share of the machine's CPU time in which it was busy.
func (s *stage) reportResources(share float64) error {
	add := func(what, unit string, value float64) { s.report.Add(tableResources, s.Name, what, unit, value) }
	add("CPUs busy", "%", share*100)
	registry, err := usageOf(s.registry)
	if err != nil {
		return err
	}
	add("CPU of the registry", "s", registry.cpu)
	add("memory of the registry", "MB", float64(registry.memory)/1e6)
	var cpu, memory []float64
	for n, p := range s.cached {
		u, ended := s.ended[n]
		if !ended {
			if u, err = usageOf(p); err != nil {
				return err
			}
		}
		cpu, memory = append(cpu, u.cpu), append(memory, float64(u.memory)/1e6)
	}
	if len(cpu) > 0 {
		sum := 0.0
		for _, c := range cpu {
			sum += c
		}
		add("CPU of all caches", "s", sum)
		add("of one at most", "s", slices.Max(cpu))
		add("memory of a cache at most", "MB", slices.Max(memory))
	}
	cpu, memory = nil, nil
	for _, p := range s.proxies {
		u, err := usageOf(p)
		if err != nil {
			return err
		}
		cpu, memory = append(cpu, u.cpu), append(memory, float64(u.memory)/1e6)
	}
	slices.Sort(cpu)
	slices.Sort(memory)
	add("CPU of a proxy, median", "s", results.Median(cpu))
	add("memory of a proxy, median", "MB", results.Median(memory))
	return nil
}

// get returns the body of a response with the status 200.
func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return string(body), err
}
