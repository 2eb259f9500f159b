package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// link is a TCP connection's way between a client and a registry, on which things
// go wrong.
type link struct {
	net.Listener
	target string
	next   func() fault // for the next connection
	wire   atomic.Int64 // bytes that came from the client
	back   atomic.Int64 // bytes that came from the registry
	done   chan struct{}
	all    sync.WaitGroup
}

// fault is what goes wrong with one connection.
type fault struct {
	kind  string
	after int64 // bytes in one direction
	up    bool  // from the client to the registry
}

const (
	fine      = "fine"
	reset     = "reset"
	stall     = "stall"
	halfClose = "half close"
	trickle   = "trickle"
)

func newLink(t testing.TB, target string, next func() fault) *link {
	t.Helper()
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := &link{Listener: listener, target: target, next: next, done: make(chan struct{})}
	l.all.Go(l.serve)
	t.Cleanup(l.end)
	return l
}

func (l *link) end() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.Close()
	l.all.Wait()
}

func (l *link) serve() {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.target)
		if err != nil {
			client.Close()
			continue
		}
		f := l.next()
		l.all.Go(func() {
			ended := make(chan struct{})
			l.all.Go(func() {
				select {
				case <-l.done:
				case <-ended:
				}
				client.Close()
				server.Close()
			})
			var both sync.WaitGroup
			both.Go(func() { l.copy(server.(*net.TCPConn), client.(*net.TCPConn), &l.wire, f, f.up) })
			both.Go(func() { l.copy(client.(*net.TCPConn), server.(*net.TCPConn), &l.back, f, !f.up) })
			both.Wait()
			close(ended)
		})
	}
}

func (l *link) copy(to, from *net.TCPConn, count *atomic.Int64, f fault, faulty bool) {
	buffer := make([]byte, 32<<10)
	var passed int64
	for {
		p := buffer
		if faulty && f.kind != fine && f.kind != trickle {
			p = p[:min(int64(len(p)), f.after-passed)]
		}
		if f.kind == trickle && passed < f.after {
			p = p[:2<<10]
			time.Sleep(time.Millisecond)
		}
		if len(p) == 0 {
			switch f.kind {
			case reset:
				// Neither end hears more than that it is over.
				for _, conn := range []*net.TCPConn{to, from} {
					conn.SetLinger(0)
					conn.Close()
				}
			case halfClose:
				to.CloseWrite()
				io.Copy(io.Discard, from)
			case stall:
				<-l.done
			}
			return
		}
		n, err := from.Read(p)
		count.Add(int64(n))
		passed += int64(n)
		if _, failed := to.Write(p[:n]); failed != nil {
			return
		}
		if err != nil {
			to.CloseWrite()
			return
		}
	}
}

// over has a client reach the registry over a link.
func (l *link) over(opts *Options) {
	opts.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, l.Addr().String())
	}
}

// troubles are what goes wrong in one run, by chance, a limited number of times.
type troubles struct {
	mu   sync.Mutex
	rng  *rand.Rand
	left int
	kind []string // of what the link does
}

// draw is whether something goes wrong now.
func (f *troubles) draw(chance float64) bool {
	if f.left == 0 || f.rng.Float64() >= chance {
		return false
	}
	f.left--
	return true
}

func (f *troubles) next() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.draw(0.6) {
		return fault{kind: fine}
	}
	drawn := fault{
		kind:  f.kind[f.rng.IntN(len(f.kind))],
		after: int64(100) << f.rng.IntN(15), // 100 B to 1.6 MB
		up:    f.rng.IntN(2) == 0,
	}
	if drawn.kind == halfClose {
		drawn.up = false // of half a request's header a server says that it is a bad one
	}
	return drawn
}

// front fails as registries and load balancers do.
func (f *troubles) front(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	wrong := f.draw(0.15)
	kind := f.rng.IntN(4)
	f.mu.Unlock()
	if !wrong {
		return false
	}
	switch kind {
	case 0:
		w.Header().Set("Retry-After", "7")
		say(w, http.StatusTooManyRequests, "TOOMANYREQUESTS")
	case 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	case 2:
		// Some of the body is read, and the rest is not.
		io.CopyN(io.Discard, r.Body, 1000)
		say(w, http.StatusInternalServerError, "UNKNOWN")
	case 3:
		if !strings.Contains(r.URL.Path, "/blobs/uploads/") || r.Method == http.MethodPost {
			return false
		}
		say(w, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN")
	}
	return true
}

// TestFaultyLink pushes and pulls blobs a hundred times over a link on which things
// go wrong, to and from a registry of which the same is true. What passes must not
// be noticed, what does not must end in an error that says it.
func TestFaultyLink(t *testing.T) {
	fronts := sync.Map{} // seed in the repository's name → troubles
	front := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Via-Link") == "" {
			return false
		}
		parts := strings.Split(r.URL.Path, "/")
		if len(parts) > 3 {
			if f, ok := fronts.Load(parts[3]); ok {
				return f.(func(http.ResponseWriter, *http.Request) bool)(w, r)
			}
		}
		return false
	}
	plain := newTestRegistry(t, true)
	secure := newTestRegistry(t, false)
	plain.SetFront(front)
	secure.SetFront(front)

	const runs = 100
	var ran atomic.Int64
	seeds := make(chan uint64, runs)
	for seed := range uint64(runs) {
		seeds <- seed
	}
	close(seeds)
	var workers sync.WaitGroup
	for range 10 { // most of the time is spent waiting for stalls to be noticed
		workers.Go(func() {
			for seed := range seeds {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					registry := plain
					if seed%2 == 1 {
						registry = secure
					}
					faultyRun(t, seed, registry, &fronts)
					ran.Add(1)
				})
			}
		})
	}
	workers.Wait()
	if ran.Load() != runs && !t.Failed() {
		t.Errorf("%d runs, want %d", ran.Load(), runs)
	}
}

// viaLink marks the requests that may fail.
const viaLink = "Via-Link"

func faultyRun(t *testing.T, seed uint64, registry testRegistry, fronts *sync.Map) {
	rng := rand.New(rand.NewPCG(seed, 1))
	trouble := &troubles{rng: rand.New(rand.NewPCG(seed, 2)), left: 6, kind: []string{reset, reset, reset, halfClose,
		trickle, stall}}
	name := fmt.Sprintf("run/%d", seed)
	next, before := trouble.next, trouble.front

	// Every tenth run has something that does not pass.
	permanent := ""
	if seed%10 >= 8 {
		kinds := []string{reset, stall, "forbidden", "unavailable", "content"}
		permanent = kinds[seed/10%uint64(len(kinds))]
		trouble.left = 0 // else it may be the last one that is told
	}
	switch permanent {
	case reset, stall:
		// So early that nothing ever arrives: what gets further is not permanent.
		next = func() fault { return fault{kind: permanent, after: 50 + int64(seed), up: true} }
	case "forbidden", "unavailable":
		before = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut {
				return false
			}
			if permanent == "forbidden" {
				say(w, http.StatusForbidden, "DENIED")
			} else {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return true
		}
	}
	fronts.Store(fmt.Sprint(seed), before)
	l := newLink(t, registry.Host(), next)
	log, lines := logged()
	defer func() {
		noSecret(t, lines.String())
		if t.Failed() {
			t.Logf("seed %d, %s: log:\n%s", seed, permanent, lines)
		}
		l.end()
	}()
	reg := registry.client(t, func(opts *Options) {
		l.over(opts)
		if permanent == "" || permanent == stall {
			opts.idleTimeout = 800 * time.Millisecond
			opts.responseTimeout = 1200 * time.Millisecond
			opts.Retries = 100 // a busy machine exceeds these times too
		}
		opts.Log = log
		if permanent != "" {
			opts.Retries = 3
		}
	})
	reg.client.Header.Set(viaLink, "1")
	repo := repository(t, reg, name)

	sizes := []int{0, 1 + rng.IntN(5000), 20_000 + rng.IntN(400_000)}
	if seed%10 == 0 {
		sizes = append(sizes, 2<<20+rng.IntN(1<<20))
	}
	if permanent != "" {
		sizes = []int{100_000 + rng.IntN(300_000)}
	}
	for i, size := range sizes {
		b := noise(seed+1000*uint64(i)+7, size)
		desc := describe(b)
		open := opener(b)
		if rng.IntN(2) == 0 {
			open = fileOpener(t, b)
		}
		if permanent == "content" {
			desc.Digest = digest.FromString("something else")
		}
		_, err := repo.PushBlob(t.Context(), desc, "", open, nil)
		if permanent == "" {
			require.NoError(t, err, "seed", seed, "pushing", size, "bytes")
			registry.has(t, name, b)
			offset := int64(rng.IntN(size + 1))
			got, err := pull(t.Context(), repo, desc, offset)
			if err != nil || !bytes.Equal(got, b[offset:]) {
				t.Fatalf("seed %d: pulling %d bytes from %d: got %d, error %v", seed, size, offset, len(got), err)
			}
			continue
		}
		if err == nil {
			t.Fatalf("seed %d: no error although %s", seed, permanent)
		}
		noSecret(t, err.Error())
		registry.hasNot(t, name, desc.Digest)
		var content *blob.Error
		if errors.As(err, &content) != (permanent == "content") {
			t.Errorf("seed %d: %s: %v is about the wrong thing", seed, permanent, err)
		}
		right := map[string]bool{
			reset: strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "EOF") ||
				strings.Contains(err.Error(), "broken pipe") || strings.Contains(err.Error(), "closed"),
			stall:         errors.Is(err, errIdleTimeout) || strings.Contains(err.Error(), "timeout"),
			"forbidden":   statusCode(err) == http.StatusForbidden,
			"unavailable": statusCode(err) == http.StatusServiceUnavailable,
			"content":     true,
		}
		if !right[permanent] {
			t.Errorf("seed %d: %s: %v is not the right error", seed, permanent, err)
		}
	}
}

// largeFile is a file of varying content, most of it zeros that need no place on
// the disk, and its digest.
func largeFile(t *testing.T, size int64) (string, ocispec.Descriptor) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large")
	f := require.Value(os.Create(path))(t)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	for offset := int64(0); offset+64<<10 < size; offset += 8 << 20 {
		require.Value(f.WriteAt(noise(uint64(offset>>20), 64<<10), offset+offset>>9))(t)
	}
	d := require.Value(digest.FromReader(io.NewSectionReader(f, 0, size)))(t)
	return path, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: size}
}

// TestPushOverALinkThatBreaksEvery200MB shows that what arrived is not sent again,
// in either direction.
func TestPushOverALinkThatBreaksEvery200MB(t *testing.T) {
	if testing.Short() {
		t.Skip("needs minutes, for 2 GiB over a link that breaks every 200 MB: run it without -short")
	}
	const size = 2 << 30
	path, desc := largeFile(t, size)
	registry := newTestRegistry(t, true)
	var up atomic.Bool
	up.Store(true)
	l := newLink(t, registry.Host(), func() fault { return fault{kind: reset, after: 200e6, up: up.Load()} })
	reg := registry.client(t, func(opts *Options) {
		l.over(opts)
		opts.sleep = nil // as in life
	})
	repo := repository(t, reg, "large")
	start := time.Now()
	_, err := repo.PushBlob(t.Context(), desc, "", func() (io.ReadCloser, error) { return os.Open(path) }, nil)
	require.NoError(t, err)
	checkWire(t, "push", l.wire.Load(), size, time.Since(start))

	up.Store(false)
	reg.Close() // its connections still fail on uploads
	start = time.Now()
	rc := repo.Blob(t.Context(), desc, nil)
	defer rc.Close()
	verifier := desc.Digest.Verifier()
	if n, err := io.CopyBuffer(verifier, rc, make([]byte, 1<<20)); err != nil || n != size || !verifier.Verified() {
		t.Fatalf("pulled %d bytes, verified %v, error %v", n, verifier.Verified(), err)
	}
	checkWire(t, "pull", l.back.Load(), size, time.Since(start))
}

func checkWire(t *testing.T, what string, wire, size int64, took time.Duration) {
	t.Helper()
	ratio := float64(wire) / float64(size)
	t.Logf("%s: %d bytes on the wire, %.4f of the size, in %.1f s", what, wire, ratio, took.Seconds())
	if ratio < 1 || ratio >= 1.2 {
		t.Errorf("%s: %.4f of the size went over the wire, want less than 1.2", what, ratio)
	}
}

// TestLinkThatIsCutEveryFewSeconds shows that a transfer of any length ends if it makes progress between the cuts. Each
// takes longer than the retries without progress would.
func TestLinkThatIsCutEveryFewSeconds(t *testing.T) {
	const cuts, between, rate = 12, 250 * time.Millisecond, 8 << 20
	raw := noise(3, cuts*rate/4)
	registry := newTestRegistry(t, true)
	l := newLink(t, registry.Host(), func() fault { return fault{kind: fine} })
	var broken atomic.Int64
	client := registry.client(t, func(opts *Options) {
		l.over(opts)
		dial := opts.DialContext
		opts.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			before := l.wire.Load() + l.back.Load()
			var cut func()
			cut = func() {
				if l.wire.Load()+l.back.Load()-before < rate/8 { // on a slow machine, not before it has made progress
					time.AfterFunc(between/4, cut)
					return
				}
				broken.Add(1)
				c.Close()
			}
			time.AfterFunc(between, cut)
			return c, nil
		}
		opts.Rate = NewRate(rate)
		opts.Retries = 6 // fewer than cuts
	})
	repo := repository(t, client, "cut")
	desc := describe(raw)
	require.Value(repo.PushBlob(t.Context(), desc, "", opener(raw), nil))(t)
	registry.has(t, "cut", raw)
	if got, err := pull(t.Context(), repo, desc, 0); err != nil || !bytes.Equal(got, raw) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if broken.Load() < cuts {
		t.Errorf("only %d cuts", broken.Load())
	}
}

// TestRate measures both directions, each over several connections.
func TestRate(t *testing.T) {
	registry := newTestRegistry(t, true)
	client := registry.client(t, func(opts *Options) { opts.Rate = NewRate(4 << 20) })
	repo := repository(t, client, "limited")
	var blobs [][]byte
	for i := range 4 {
		blobs = append(blobs, noise(uint64(i), 1<<20))
	}
	for name, transfer := range map[string]func(raw []byte) error{
		"push": func(raw []byte) error {
			_, err := repo.PushBlob(t.Context(), describe(raw), "", opener(raw), nil)
			return err
		},
		"pull": func(raw []byte) error {
			registry.put(t, "limited", raw)
			_, err := pull(t.Context(), repo, describe(raw), 0)
			return err
		},
	} {
		begin := time.Now()
		var all sync.WaitGroup
		for _, raw := range blobs {
			all.Go(func() {
				if err := transfer(raw); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		// Four of four megabytes per second, of which the first half may pass at once.
		if took := time.Since(begin); took < 500*time.Millisecond || took > 10*time.Second {
			t.Errorf("%s takes %s", name, took)
		}
	}
}
