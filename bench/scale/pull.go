package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	// layersAtOnce is the number of concurrent downloads of containerd (max_concurrent_downloads).
	layersAtOnce = 3
	// layersOfImage is the same number, so that all layers of an image are pulled at once.
	layersOfImage = 3
	// differentImages is large enough that two nodes seldom pull the same image at the same time.
	differentImages = 100

	tableSame      = "Pulls of the same image"
	tableDifferent = "Pulls of different images"
	tableHerd      = "Thundering herd"
)

type image = registries.Image

// push pushes all images to the registry's storage, and verifies one of them.
func (b *benchmark) push(ctx context.Context) (err error) {
	process, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	client := registries.NewClient(b.certificates.Push())
	defer client.CloseIdleConnections()
	if len(b.nodes) > 0 {
		for n := range min(differentImages, b.pulls) {
			i, err := pushImage(ctx, client, process, fmt.Sprintf("bench/app-%d", n), uint64(n), b.imageBytes)
			if err != nil {
				return err
			}
			b.images = append(b.images, i)
		}
	}
	b.herdImages = map[int]image{}
	for _, h := range b.herds {
		if _, ok := b.herdImages[h.bytes]; ok {
			continue
		}
		if b.herdImages[h.bytes], err = pushImage(ctx, client, process, fmt.Sprintf("bench/herd-%d", h.bytes),
			uint64(h.bytes), h.bytes); err != nil {
			return err
		}
	}
	// Verify the digests once. The measurements check only lengths.
	node := newNode(b.certificates, new(traffic))
	defer node.CloseIdleConnections()
	for _, i := range b.images[:min(1, len(b.images))] {
		for _, d := range i.Blobs {
			hash := digest.SHA256.Hash()
			if _, err := registries.Get(ctx, node, http.MethodGet, process.URL("/v2/"+i.Repository+"/blobs/"+d.Digest.String()),
				"", d.Size, hash); err != nil {
				return err
			}
			if digest.NewDigest(digest.SHA256, hash) != d.Digest {
				return fmt.Errorf("digest mismatch: %s", d.Digest)
			}
		}
	}
	return nil
}

func (b *benchmark) start(ctx context.Context) (*registries.Process, error) {
	return registries.StartOurs(ctx, b.registry, filepath.Join(b.dir, "registry"), b.driver, b.certificates)
}

func pushImage(ctx context.Context, client *http.Client, process *registries.Process, repository string, seed uint64,
	size int) (image, error) {
	return registries.PushImage(ctx, client, process, repository, "v1", seed, layersOfImage, int64(size/layersOfImage))
}

// The settings of the proxies on nodes (internal/node/proxy).
const (
	retryBudget      = time.Minute
	handshakeTimeout = 30 * time.Second
	firstDelay       = 50 * time.Millisecond
	lastDelay        = 2 * time.Second
)

// get sends a request and retries it like a proxy. Unlike a proxy, it restarts an interrupted download.
func (t *traffic) get(ctx context.Context, client *http.Client, method, url, accept string, size int64) error {
	began := time.Now()
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		_, err := registries.Get(ctx, client, method, url, accept, size, io.Discard)
		pause := delay - rand.N(delay/2)
		if err == nil || ctx.Err() != nil || time.Since(began)+pause > retryBudget {
			return err
		}
		t.retries.Add(1)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// pull sends the requests of a container runtime that pulls an image through its node's proxy.
func (t *traffic) pull(ctx context.Context, client *http.Client, process *registries.Process, i image) error {
	url := process.URL("/v2/" + i.Repository)
	for _, request := range []struct{ method, name string }{{http.MethodHead, "v1"},
		{http.MethodGet, i.Manifest.Digest.String()}} {
		if err := t.get(ctx, client, request.method, url+"/manifests/"+request.name, i.Manifest.MediaType,
			i.Manifest.Size); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(layersAtOnce)
	for _, d := range i.Blobs {
		group.Go(func() error {
			return t.get(ctx, client, http.MethodGet, url+"/blobs/"+d.Digest.String(), "", d.Size)
		})
	}
	return group.Wait()
}

// traffic counts the connections, bytes and retries of all nodes.
type traffic struct {
	received   atomic.Int64 // bytes, including TLS and headers
	open, most atomic.Int64 // connections: current and maximum
	retries    atomic.Int64
}

// newNode returns the client of a node, whose connections are counted.
func newNode(c *registries.Certificates, t *traffic) *http.Client {
	client := registries.NewClient(c.Node())
	var dialer net.Dialer
	transport := client.Transport.(*http.Transport)
	transport.TLSHandshakeTimeout = handshakeTimeout
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		for now := t.open.Add(1); ; {
			most := t.most.Load()
			if now <= most || t.most.CompareAndSwap(most, now) {
				break
			}
		}
		return &countedConn{Conn: conn, traffic: t}, nil
	}
	return client
}

type countedConn struct {
	net.Conn
	traffic *traffic
	closed  sync.Once
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.traffic.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Close() error {
	c.closed.Do(func() { c.traffic.open.Add(-1) })
	return c.Conn.Close()
}

// outcome is the result of a load on the registry.
type outcome struct {
	took     []time.Duration // durations of successful pulls, sorted
	failed   int
	failure  error // of one failed pull
	seconds  float64
	cpu      float64 // seconds
	memory   int64   // bytes
	traffic  traffic
	received int64 // bytes of pulled images
}

// measure starts a registry from which nodes pull at once. Each node pulls the images that images
// returns for it.
func (b *benchmark) measure(ctx context.Context, nodes int, images func(node int) []image) (o *outcome, err error) {
	process, err := b.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	o = new(outcome)
	before, err := process.CPU()
	if err != nil {
		return nil, err
	}
	if err := process.ResetPeak(); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	start := make(chan struct{})
	clients := make([]*http.Client, nodes)
	var began time.Time
	for n := range nodes {
		clients[n] = newNode(b.certificates, &o.traffic)
		all.Go(func() {
			<-start
			for _, i := range images(n) {
				from := time.Now()
				err := o.traffic.pull(ctx, clients[n], process, i)
				took := time.Since(from)
				mu.Lock()
				if err != nil {
					o.failed++
					o.failure = err
				} else {
					o.took = append(o.took, took)
					o.received += i.Bytes
				}
				mu.Unlock()
			}
		})
	}
	began = time.Now()
	close(start)
	all.Wait()
	o.seconds = time.Since(began).Seconds()
	after, err := process.CPU()
	if err != nil {
		return nil, err
	}
	o.cpu = after - before
	if o.memory, err = process.PeakMemory(); err != nil {
		return nil, err
	}
	for _, c := range clients {
		c.CloseIdleConnections()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(o.took) == 0 {
		return nil, fmt.Errorf("all pulls failed: %w", o.failure)
	}
	slices.Sort(o.took)
	return o, nil
}

// pullMany measures nodes that each pull several images one after the other.
func (b *benchmark) pullMany(ctx context.Context, table string, nodes int, from []image) error {
	each := max(1, b.pulls/nodes)
	o, err := b.measure(ctx, nodes, func(node int) []image {
		var mine []image
		for n := range each {
			mine = append(mine, from[(node*each+n)%len(from)])
		}
		return mine
	})
	if err != nil {
		return err
	}
	add := func(what, unit string, value float64) { b.report.Add(table, nodesName(nodes), what, unit, value) }
	add("failed pulls", "", float64(o.failed))
	add("requests made again", "", float64(o.traffic.retries.Load()))
	add("throughput", "MB/s", float64(o.received)/1e6/o.seconds)
	add("an image, p50", "ms", quantile(o.took, 0.5).Seconds()*1e3)
	add("an image, p99", "ms", quantile(o.took, 0.99).Seconds()*1e3)
	add("CPU per GiB", "s", o.cpu/(float64(o.received)/(1<<30)))
	add("memory", "MB", float64(o.memory)/1e6)
	add("connections", "", float64(o.traffic.most.Load()))
	logFailures(o)
	return nil
}

// stampede measures nodes that all pull the same image at once.
func (b *benchmark) stampede(ctx context.Context, h herd) error {
	wanted := b.herdImages[h.bytes]
	o, err := b.measure(ctx, h.nodes, func(int) []image { return []image{wanted} })
	if err != nil {
		return err
	}
	add := func(what, unit string, value float64) { b.report.Add(tableHerd, h.String(), what, unit, value) }
	add("failed pulls", "", float64(o.failed))
	add("requests made again", "", float64(o.traffic.retries.Load()))
	add("sent", "GB", float64(o.traffic.received.Load())/1e9)
	add("sent per byte of image and node", "", float64(o.traffic.received.Load())/float64(o.received))
	add("first done", "s", o.took[0].Seconds())
	add("median done", "s", quantile(o.took, 0.5).Seconds())
	add("last done", "s", o.took[len(o.took)-1].Seconds())
	add("Jain's index", "", jain(o.took))
	add("throughput", "MB/s", float64(o.received)/1e6/o.seconds)
	add("CPU per GiB", "s", o.cpu/(float64(o.received)/(1<<30)))
	add("memory", "MB", float64(o.memory)/1e6)
	add("connections", "", float64(o.traffic.most.Load()))
	logFailures(o)
	return nil
}

// logFailures prints the number of failed pulls and one of the errors.
func logFailures(o *outcome) {
	if o.failed > 0 {
		fmt.Fprintf(os.Stderr, "%d pulls failed, one of them: %v\n", o.failed, o.failure)
	}
}

// jain returns Jain's fairness index of the rates: 1 if all are equal, 1/n if one of n nodes gets
// everything.
func jain(took []time.Duration) float64 {
	sum, squares := 0.0, 0.0
	for _, t := range took {
		rate := 1 / t.Seconds()
		sum += rate
		squares += rate * rate
	}
	return sum * sum / (float64(len(took)) * squares)
}

// quantile returns a quantile of sorted, which must not be empty.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
