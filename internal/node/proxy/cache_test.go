package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/serviceaddress"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// startWithCache starts a registry, a server in the place of the caches, and a proxy of both.
func startWithCache(t *testing.T, handler, cached http.Handler, change ...func(*Proxy)) (f *fixture, caches *registry) {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "ca")
	caches = newRegistry(t, ca, cached)
	patient := func(p *Proxy) {
		l := &p.cacheLimits
		l.dial, l.ackTimeout, l.handshake, l.head, l.progressTimeout, l.cacheTurn =
			longest, longest, longest, longest, longest, longest
	}
	change = append(append([]func(*Proxy){patient}, change...), func(p *Proxy) {
		port := require.Value(strconv.ParseUint(caches.port(), 10, 16))(t)
		p.useCaches(serviceaddress.Address{Host: registryName, Port: uint16(port),
			ClusterIP: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))})
	})
	return startBefore(t, newRegistry(t, ca, handler), ca, ca.Files(t, organization, loopback), change...), caches
}

// counting counts requests.
type counting struct {
	http.Handler
	requests atomic.Int64
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.requests.Add(1)
	c.Handler.ServeHTTP(w, r)
}

// full is the response of a cache that has no room.
var full = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "full", 503) })

// Caches are asked first for what they serve. Whatever else two of them respond, the registry is asked.
func TestCachesFirst(t *testing.T) {
	blob := newBlob(300_000)
	withAPI := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
			w.WriteHeader(status)
		}
	}
	for name, tt := range map[string]struct {
		path              string
		cache             http.Handler
		status            int
		atCache, atDirect int64
	}{
		"a blob":                             {blob.path(), store{blob}, 200, 1, 0},
		"not for caches":                     {"/v2/repository/tags/list", store{blob}, 404, 0, 1},
		"the registry's 404 through a cache": {"/v2/repository/manifests/none", store{}, 404, 1, 0},
		"all caches are full":                {blob.path(), full, 200, 2, 1},
		"the cache denies":                   {blob.path(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }), 200, 2, 1},
		"no cache at this address":           {blob.path(), http.NotFoundHandler(), 200, 2, 1},
		"the cache panics":                   {blob.path(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), 200, 2, 1},
		"one cache is full":                  {blob.path(), firstThen(full, store{blob}.ServeHTTP), 200, 2, 0},
		"the registry is overloaded":         {blob.path(), withAPI(429), 429, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cached, direct := &counting{Handler: tt.cache}, &counting{Handler: store{blob}}
			f, _ := startWithCache(t, direct, cached)
			response, body, err := f.get(tt.path)
			require.NoError(t, err)
			if response.StatusCode != tt.status || tt.status == 200 && !bytes.Equal(body, blob.data) {
				t.Errorf("%s, %d bytes", response.Status, len(body))
			}
			if cached.requests.Load() != tt.atCache || direct.requests.Load() != tt.atDirect {
				t.Errorf("%d requests to caches, %d to the registry, want %d and %d", cached.requests.Load(),
					direct.requests.Load(), tt.atCache, tt.atDirect)
			}
		})
	}
}

// The rest of a body that breaks off at a cache comes from a cache, and after the second time from the
// registry. A cache that has other content by then is not used.
func TestCacheBreaksOff(t *testing.T) {
	blob, other := newBlob(5_000_000), newBlob(5_000_001)
	var mu sync.Mutex
	var log []string
	note := func(where string, handler http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			log = append(log, where+" "+strings.TrimPrefix(r.Header.Get("Range"), "bytes="))
			mu.Unlock()
			handler(w, r)
		}
	}
	half := func(w http.ResponseWriter, r *http.Request) { store{blob}.ServeHTTP(&cutter{w, 1_000_000}, r) }
	for name, tt := range map[string]struct {
		second http.HandlerFunc
		want   string
	}{
		"twice":         {half, "cache |cache 1000000-4999999|registry 2000000-4999999"},
		"once":          {store{blob}.ServeHTTP, "cache |cache 1000000-4999999"},
		"other content": {func(w http.ResponseWriter, _ *http.Request) { other.setHeader(w); _, _ = w.Write(other.data) }, "cache |cache 1000000-4999999|cache 1000000-4999999|registry 1000000-4999999"},
	} {
		t.Run(name, func(t *testing.T) {
			log = nil
			f, _ := startWithCache(t, note("registry", store{blob}.ServeHTTP), note("cache", firstThen(half, tt.second).ServeHTTP))
			f.pull(t, blob)
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(log, "|"); got != tt.want {
				t.Errorf("requests %q, want %q", got, tt.want)
			}
		})
	}
}

// Without caches, requests go to the registry at once, and after two failures caches are not tried for a while.
func TestCachesAway(t *testing.T) {
	blob := newBlob(100)
	f, caches := startWithCache(t, store{blob}, store{blob})
	caches.kill()
	f.pull(t, blob)
	f.proxy.cacheRetryAt.Add(int64(time.Hour)) // if it is set
	for range 4 {
		f.pull(t, blob)
	}
	if n := f.proxy.metrics.cache.dialErrors.Get(); n != 2 {
		t.Errorf("caches were tried %d times", n)
	}
	caches.start()
	f.proxy.cacheRetryAt.Store(0)
	f.pull(t, blob)
	if n := f.proxy.metrics.cacheServed.Get(); n != 1 {
		t.Errorf("caches served %d requests", n)
	}
}

// While the registry is away, requests wait, and caches are asked again and again: another one may have what is
// requested.
func TestRegistryAwayWithCaches(t *testing.T) {
	blob := newBlob(100)
	var asked atomic.Int64
	f, _ := startWithCache(t, store{blob}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "never asked for it", http.StatusServiceUnavailable)
			return
		}
		store{blob}.ServeHTTP(w, r)
	}))
	f.kill()
	f.pull(t, blob)
	if n := asked.Load(); n != 3 {
		t.Errorf("caches were asked %d times", n)
	}
}

// A body that takes long comes from one cache after the other, if they have it. If two are too slow, the rest comes from the registry.
func TestTurns(t *testing.T) {
	blob := newBlob(5_000_000)
	busy := func(w http.ResponseWriter, r *http.Request) { store{blob}.ServeHTTP(slowWriter{w}, r) }
	trickle := func(w http.ResponseWriter, r *http.Request) {
		blob.setHeader(w)
		http.ServeContent(trickling{w, r.Context()}, r, "", time.Time{}, bytes.NewReader(blob.data))
	}
	for name, tt := range map[string]struct {
		cache                    http.HandlerFunc
		turn                     time.Duration
		atLeast, direct, resumed int64
	}{
		"busy caches": {busy, 5 * time.Millisecond, 3, 0, 0},
		"others fail": {firstThen(busy, full).ServeHTTP, 5 * time.Millisecond, 2, 0, 0},
		"slow caches": {trickle, 100 * time.Millisecond, 2, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			cached, direct := &counting{Handler: tt.cache}, &counting{Handler: store{blob}}
			f, _ := startWithCache(t, direct, cached, func(p *Proxy) { p.cacheLimits.cacheTurn = tt.turn })
			f.pull(t, blob)
			if n := cached.requests.Load(); n < tt.atLeast {
				t.Errorf("%d requests to caches", n)
			}
			if n := direct.requests.Load(); n != tt.direct {
				t.Errorf("%d requests to the registry, want %d", n, tt.direct)
			}
			if n := f.proxy.metrics.resumes.Get(); n != uint64(tt.resumed) {
				t.Errorf("%d resumes, want %d", n, tt.resumed)
			}
		})
	}
}

// trickling sends a few bytes at a time.
type trickling struct {
	http.ResponseWriter
	ctx context.Context
}

func (c trickling) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.ResponseWriter.Write(p[n:min(n+10, len(p))])
		n += m
		if err == nil {
			err = http.NewResponseController(c.ResponseWriter).Flush()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-c.ctx.Done():
			err = c.ctx.Err()
		}
	}
	return n, err
}

func TestPace(t *testing.T) {
	const turn = 10 * time.Second
	const enough = 10 * slowBody
	var p pace
	for range 9 {
		require.NoError(t, p.add(slowBody, turn/10, turn))
	}
	for _, tt := range []struct {
		about  string
		failed bool
		bytes  int
		err    error
	}{
		{"exactly fast enough, with the bytes so far", false, slowBody, errTurn},
		{"too slow", false, enough - 1, errSlow},
		{"no cache has failed", false, 9 * enough, errTurn},
		{"one has failed, and this one is half as fast as the best", true, 9 * enough / 2, nil},
		{"one has failed, and this one is less than half as fast", true, 9*enough/2 - 1, errTurn},
		{"one has failed, and this one is the best", true, 20 * enough, nil},
		{"that one has become slower", true, 9 * enough, errTurn},
		{"too slow again", true, 0, errSlow},
	} {
		p.failed = tt.failed
		if err := p.add(tt.bytes, turn, turn); !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.about, err)
		}
	}
	p = pace{failed: true}
	if err := p.add(enough, turn, turn); !errors.Is(err, errTurn) {
		t.Errorf("one has failed, and none has been fast: %v", err)
	}
}
