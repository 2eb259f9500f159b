package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// counted counts the requests that a registry serves at the same time.
type counted struct {
	http.Handler
	now, most atomic.Int64
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	c.Handler.ServeHTTP(w, r)
}

// stall requests a blob and does not read the response.
func stall(t testing.TB, f *fixture, b blob) net.Conn {
	t.Helper()
	c := f.dial(t)
	t.Cleanup(func() { _ = c.Close() })
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b.path())
	return c
}

// finish reads the response of a stalled client.
func finish(c net.Conn, b blob) error {
	_ = c.SetReadDeadline(time.Now().Add(2 * longest))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	return b.check(response, body, err)
}

// A thousand downloads whose client does not read neither fail nor delay others, and occupy only some
// connections. Those that are left complete when their client reads on.
//
// Claim: A thousand stalled downloads do not fail, and delay others only while they begin.
func TestThousandStalledDownloads(t *testing.T) {
	if testing.Short() {
		t.Skip("needs seconds of CPU time: run it without -short")
	}
	large, small := newBlob(4<<20), newBlob(1<<10)
	handler := &counted{Handler: store{large, small}}
	f := start(t, handler, func(p *Proxy) { p.limits.write = 10 * longest })
	p99 := func() time.Duration {
		t.Helper()
		var took []time.Duration
		for range 200 {
			began := time.Now()
			response, body, err := f.get(small.path())
			if err := small.check(response, body, err); err != nil {
				t.Fatalf("another client: %v", err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	idle := p99()
	var stalled []net.Conn
	for range 1000 {
		stalled = append(stalled, stall(t, f, large))
	}
	for end := time.Now().Add(10 * longest); ; time.Sleep(5 * time.Millisecond) { // a thousand handshakes
		connected := f.metric("connections") + f.metric("connections_dropped_total")
		requests, queued := f.metric("requests_in_flight"), f.metric("requests_queued")
		buffered := f.metric("buffered_bytes")
		if connected >= 1000 && requests >= maxConnections-1 && queued == 0 && buffered == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v clients have connected, %v requests are in flight, %v queued, %v bytes are buffered",
				connected, requests, queued, buffered)
		}
	}
	busy := p99()
	t.Logf("p99 of small requests: idle %s, with 1000 stalled downloads %s (%.1f times)", idle, busy,
		float64(busy)/float64(idle))
	response, body, err := f.get(large.path())
	if err := large.check(response, body, err); err != nil {
		t.Errorf("another client: %v", err)
	}
	if most := handler.most.Load(); most > 2*maxUpstream { // it may notice late that a connection is closed
		t.Errorf("the registry served %d requests at once, want about %d", most, maxUpstream)
	}
	if got := f.metric("upstream_connections_in_use"); got > maxUpstream {
		t.Errorf("%v connections to the registry are in use, want at most %d", got, maxUpstream)
	}
	if open := f.metric("connections"); open > maxConnections {
		t.Errorf("%v clients are connected, want at most %d", open, maxConnections)
	}
	if paused := f.metric("responses_paused_total"); paused < maxConnections-maxUpstream {
		t.Errorf("%v responses were paused", paused)
	}
	var reading sync.WaitGroup
	for _, c := range stalled[980:] { // the last ones: longer stalls end first
		reading.Go(func() {
			if err := finish(c, large); err != nil {
				t.Errorf("a client that reads on: %v", err)
			}
		})
	}
	reading.Wait()
	for _, c := range stalled {
		_ = c.Close()
	}
	eventually(t, "all connections to the registry are free, and nothing is buffered for nobody", func() bool {
		return f.metric("upstream_connections_in_use") == 0 && f.metric("buffered_bytes") == 0
	})
}

// A request takes the connection of a response whose client does not read, and no other.
func TestRequestsTakeTheConnectionsOfStalledClients(t *testing.T) {
	large, small := newBlob(4<<20), newBlob(1<<10)
	f := start(t, store{large, small}, limitSlots(2))
	first, second := stall(t, f, large), stall(t, f, large)
	eventually(t, "both have connections", func() bool { return f.metric("upstream_connections_in_use") == 2 })
	for range 5 {
		f.pull(t, small)
	}
	// A paused response asks for a connection again each time the client's kernel takes a little more.
	if got := f.metric("responses_paused_total"); got < 1 {
		t.Error("no response was paused")
	}
	eventually(t, "no buffer waits for a client", func() bool { return f.metric("buffered_bytes") == 0 })
	for _, c := range []net.Conn{second, first} {
		if err := finish(c, large); err != nil {
			t.Error(err)
		}
	}
	if got := f.metric(`upstream_resumes_total{result="ok"}`); got != 0 {
		t.Errorf("%v broken responses are counted", got)
	}
}

// A request waits while all connections serve clients that read, and leaves when its client does.
func TestRequestsWaitForAConnection(t *testing.T) {
	next := make(chan struct{})
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-next
		_, _ = io.WriteString(w, "response")
	}), limitSlots(1))
	get := func() error {
		_, body, err := f.get("/v2/")
		if err == nil && string(body) != "response" {
			err = fmt.Errorf("got %q", body)
		}
		return err
	}
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- get() }()
	}
	eventually(t, "the second is queued", func() bool { return f.metric("requests_queued") == 1 })
	leaving := stall(t, f, newBlob(1))
	eventually(t, "the third is queued", func() bool { return f.metric("requests_queued") == 2 })
	_ = leaving.Close()
	eventually(t, "the third has left", func() bool { return f.metric("requests_queued") == 1 })
	for range 2 {
		next <- struct{}{}
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the connection is free", func() bool { return f.metric("upstream_connections_in_use") == 0 })
}

// A response that cannot be resumed breaks off, visibly for its client, if its connection is taken.
func TestPausedResponseThatCannotBeResumed(t *testing.T) {
	small := newBlob(1 << 10)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == small.path() {
			store{small}.ServeHTTP(w, r)
			return
		}
		endless(w, r)
	}), limitSlots(1))
	stalled := stall(t, f, newBlob(1))
	eventually(t, "it has the connection", func() bool { return f.metric("upstream_connections_in_use") == 1 })
	f.pull(t, small)
	_ = stalled.SetReadDeadline(time.Now().Add(longest))
	response := require.Value(http.ReadResponse(bufio.NewReader(stalled), nil))(t)
	if n, err := io.Copy(io.Discard, response.Body); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the client got %d bytes, %v", n, err)
	}
}

// At the limit, a new client replaces one that does not read.
func TestConnectionLimit(t *testing.T) {
	large, small := newBlob(4<<20), newBlob(1<<10)
	f := start(t, store{large, small}, func(p *Proxy) { p.connections = connlimit.New(3) })
	for range 3 {
		stall(t, f, large)
	}
	eventually(t, "all are served", func() bool { return f.metric("requests_in_flight") == 3 })
	time.Sleep(minLent) // now they wait for their clients
	for range 20 {
		f.pull(t, small)
	}
	if dropped, open := f.metric("connections_dropped_total"), f.metric("connections"); dropped < 1 || open > 3 {
		t.Errorf("%v connections were dropped, %v are open", dropped, open)
	}
}

// The kernel keeps little for a client that does not read.
func TestUnsentDataIsLimited(t *testing.T) {
	l := require.Value(listen.Open(t.Context(), "127.0.0.1:0", listen.Options{Unsent: unsentSize}))(t)
	defer l.Close()
	c := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	accepted := require.Value(l.Accept())(t)
	defer accepted.Close()
	_ = accepted.SetWriteDeadline(time.Now().Add(time.Second / 2))
	if n, _ := accepted.Write(make([]byte, 8<<20)); n > 1<<20 {
		t.Errorf("%d bytes were written for a client that does not read", n)
	}
}

func TestLargeBuffersAreForFastClients(t *testing.T) {
	b := newBuffers()
	sizes := func(length int64, fast bool) int {
		buffer := b.get(length, fast)
		defer b.put(buffer)
		return len(*buffer)
	}
	if got := sizes(100, true); got != smallBufferSize {
		t.Errorf("a small body gets %d bytes", got)
	}
	if got := sizes(1<<30, false); got != mediumBufferSize {
		t.Errorf("a client that may be slow gets %d bytes", got)
	}
	var large []*[]byte
	for range maxLarge {
		large = append(large, b.get(1<<30, true))
		if got := len(*large[len(large)-1]); got != bufferSize {
			t.Fatalf("a fast client gets %d bytes", got)
		}
	}
	if got := sizes(-1, true); got != mediumBufferSize {
		t.Errorf("without a large buffer, a fast client gets %d bytes", got)
	}
	if got := b.bytes.Load(); got != maxLarge*bufferSize {
		t.Errorf("%d bytes are in use, want %d", got, maxLarge*bufferSize)
	}
	for _, buffer := range large {
		b.put(buffer)
	}
	if got := sizes(-1, true); got != bufferSize || b.bytes.Load() != 0 {
		t.Errorf("a fast client gets %d bytes, %d are in use", got, b.bytes.Load())
	}
}

// A successor of another user cannot share the port, and has it as soon as the predecessor ends.
func TestListenWaitsForThePort(t *testing.T) {
	predecessor, err := net.Listen("tcp", "127.0.0.1:0") // without SO_REUSEPORT
	require.NoError(t, err)
	freed := make(chan time.Time, 1)
	time.AfterFunc(200*time.Millisecond, func() {
		freed <- time.Now()
		_ = predecessor.Close()
	})
	f := start(t, store{}, func(p *Proxy) {
		p.config.Listen, p.config.ReusePort = []string{predecessor.Addr().String()}, true
	})
	t.Logf("the proxy listens %s after the port is free", time.Since(<-freed))
	if response, _, err := f.get("/v2/"); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", response, err)
	}
}

// hook is a writer of a log.
type hook func()

func (h hook) Write(p []byte) (int, error) {
	h()
	return len(p), nil
}

// While a successor waits for the metrics port, the others refuse connections: nobody would accept them.
func TestTheMetricsPortIsOpenedFirst(t *testing.T) {
	f := start(t, store{}) // without SO_REUSEPORT
	ctx, cancel := context.WithCancel(t.Context())
	config, address := f.proxy.config, freeport.Loopback(t)
	config.Listen, config.MetricsListen, config.ReusePort = []string{address}, f.proxy.MetricsAddr().String(), true
	config.Logger = slog.New(slog.NewTextHandler(hook(func() { // it waits
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			t.Error("the port is open")
		}
		cancel()
	}), nil))
	p := require.Value(New(config))(t)
	if err := p.Listen(ctx); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
}

func limitSlots(n int) func(*Proxy) {
	return func(p *Proxy) {
		p.slots = newSlots(n, p.metrics.pauses)
		p.upstream.slots = p.slots
	}
}
