package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The registry's name resolves, but the address in the environment is dead.
func TestDNSFallback(t *testing.T) {
	content := newBlob(100)
	var lookups atomic.Int32
	f := start(t, store{content}, func(p *Proxy) {
		p.upstream.address.ClusterIP = netip.MustParseAddrPort("127.0.0.2:" + strconv.Itoa(int(p.upstream.address.Port)))
		p.upstream.lookupHost = func(_ context.Context, network, host string) ([]netip.Addr, error) {
			lookups.Add(1)
			if network != "ip" || host != registryName {
				return nil, fmt.Errorf("lookup of %s %s", network, host)
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::ffff:127.0.0.1")}, nil
		}
	})
	for range 3 {
		f.pull(t, content)
		f.proxy.upstream.closeIdle()
	}
	if got := lookups.Load(); got != 1 {
		t.Errorf("the name was looked up %d times, want once: the address that worked must be tried first", got)
	}
}

// While the registry is down, cluster DNS is not queried for every request.
func TestLookupsAreRateLimited(t *testing.T) {
	var lookups atomic.Int32
	f := start(t, store{}, retryFor(time.Second/2), func(p *Proxy) {
		p.upstream.lookupHost = func(context.Context, string, string) ([]netip.Addr, error) {
			lookups.Add(1)
			return nil, errors.New("no DNS")
		}
	})
	f.kill()
	began := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _, _ = f.get("/v2/") })
	}
	wg.Wait()
	if got, most := lookups.Load(), 2+int32(time.Since(began)/lookupInterval); got < 1 || got > most {
		t.Errorf("the name was looked up %d times, want 1 to %d", got, most)
	}
}

func TestConnectionsArePooled(t *testing.T) {
	content := newBlob(20_000)
	f := start(t, store{content})
	for _, path := range []string{content.path(), "/v2/unknown", content.path()} {
		if _, _, err := f.get(path); err != nil {
			t.Fatal(err)
		}
		request, _ := http.NewRequest(http.MethodHead, f.url(path), nil)
		if _, _, err := do(request); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.metric(`upstream_dials_total{result="ok"}`); got != 1 {
		t.Errorf("%v connections for 6 requests, want 1", got)
	}
	t.Run("closed by the registry in the meantime", func(t *testing.T) {
		f.kill()
		f.start()
		f.pull(t, content)
		if got := f.metric("upstream_retries_total"); got != 0 {
			t.Errorf("%v retries, want none: a new connection is enough", got)
		}
	})
	t.Run("idle for too long", func(t *testing.T) {
		u := f.proxy.upstream
		u.mu.Lock()
		if len(u.idle) != 1 {
			t.Fatalf("%d idle connections, want 1", len(u.idle))
		}
		u.idle[0].idleSince = u.idle[0].idleSince.Add(-idleLifetime)
		u.mu.Unlock()
		u.expire()
		if len(u.idle) != 0 {
			t.Error("the connection is still pooled")
		}
	})
	t.Run("at most maxIdle are kept", func(t *testing.T) {
		u := f.proxy.upstream
		var conns []*conn
		for range maxIdle + 2 {
			c, _, err := u.get(t.Context())
			require.NoError(t, err)
			conns = append(conns, c)
		}
		for _, c := range conns {
			u.put(c)
		}
		if got := len(u.idle); got != maxIdle {
			t.Errorf("%d idle connections are pooled, want %d", got, maxIdle)
		}
		eventually(t, "the registry sees that the others are closed", func() bool { return f.connections.Load() == maxIdle })
	})
}

func TestRequestThatCannotBeWritten(t *testing.T) {
	f := start(t, store{})
	c, _, err := f.proxy.upstream.get(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/", nil)
	if response, err := f.proxy.upstream.exchange(c, newRequest(r), time.Now()); err == nil {
		t.Errorf("got %v and no error", response)
	}
	if got := f.metric("upstream_connections_in_use"); got != 0 {
		t.Errorf("%v connections are in use", got)
	}
}

// CA and certificates are replaced step by step, as in a rotation, during continuous pulls.
func TestRotationUnderLoad(t *testing.T) {
	content := newBlob(200_000)
	f := start(t, store{content})
	load := pullInALoop(t, f, content)
	old := f.ca
	step := func(dir string, source *tlsfiles.Source, files tlsfilestest.Files) {
		t.Helper()
		before, generation := load.count(), source.Current().Generation
		tlsfilestest.WriteSecret(t, dir, files)
		// The proxy may have noticed the change by itself.
		if _, err := source.Reload(); err != nil || source.Current().Generation != generation+1 {
			t.Fatalf("reload: %v, generation %d after %d", err, source.Current().Generation, generation)
		}
		eventually(t, "pulls continue", func() bool { return load.count() >= before+20 })
	}
	server := func(ca *tlsfilestest.CA, others ...*tlsfilestest.CA) {
		t.Helper()
		step(f.registry.dir, f.registry.source, ca.Files(t, organization, []string{registryName}, others...))
	}
	node := func(ca *tlsfilestest.CA, others ...*tlsfilestest.CA) {
		t.Helper()
		step(f.dir, f.source, ca.Files(t, organization, []string{"127.0.0.1"}, others...))
	}
	for i := range 3 {
		ca := tlsfilestest.NewCA(t, fmt.Sprintf("ca %d", i))
		server(old, ca)
		node(old, ca)
		node(ca, old)
		server(ca, old)
		server(ca)
		node(ca)
		old = ca
	}
	load.end()
	if got := f.metric("certificate_generation"); got != 10 {
		t.Errorf("generation = %v, want 10", got)
	}
	if got := f.metric("upstream_retries_total"); got != 0 {
		t.Errorf("%v retries: with overlapping trust none is needed", got)
	}
	u := f.proxy.upstream
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.idle {
		if c.generation != f.source.Current() {
			t.Error("an idle connection of a previous generation is pooled")
		}
	}
}

// A rotation without overlap: the registry gets the new certificate first. Pulls wait until the
// proxy has it too.
func TestRotationWithoutOverlap(t *testing.T) {
	content := newBlob(1000)
	f := start(t, store{content})
	load := pullInALoop(t, f, content)
	ca := tlsfilestest.NewCA(t, "new")
	tlsfilestest.WriteSecret(t, f.registry.dir, ca.Files(t, organization, []string{registryName}))
	require.Value(f.registry.source.Reload())(t)
	f.kill() // the new certificate takes effect in a new process
	f.start()
	eventually(t, "requests wait", func() bool { return f.metric("requests_waiting") > 0 })
	before := load.count()
	tlsfilestest.WriteSecret(t, f.dir, ca.Files(t, organization, nil))
	require.Value(f.source.Reload())(t)
	eventually(t, "pulls continue", func() bool { return load.count() > before+10 })
	load.end()
}

// load pulls continuously in several goroutines.
type load struct {
	pulls atomic.Int64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func pullInALoop(t *testing.T, f *fixture, contents ...blob) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	t.Cleanup(l.end)
	for i := range 4 {
		l.wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				content := contents[n%len(contents)]
				response, body, err := f.get(content.path())
				if err := content.check(response, body, err); err != nil {
					t.Errorf("pull %d: %v", n, err)
					return
				}
				l.pulls.Add(1)
			}
		})
	}
	return l
}

func (l *load) count() int64 { return l.pulls.Load() }

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// The registry is killed and restarted repeatedly during pulls. None may fail.
func TestRegistryRestarts(t *testing.T) {
	large, small := newBlob(2<<20), newBlob(1000)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		store{large, small}.ServeHTTP(slowWriter{w}, r)
	}))
	load := pullInALoop(t, f, large, small)
	for range 15 {
		before := load.count()
		eventually(t, "pulls continue", func() bool { return load.count() > before+2 })
		time.Sleep(rand.N(20 * time.Millisecond)) // at any point of a pull
		f.kill()
		time.Sleep(rand.N(50 * time.Millisecond))
		f.start()
	}
	load.end()
	t.Logf("%d pulls, %v retries, %v resumed bodies", load.count(), f.metric("upstream_retries_total"),
		f.metric(`upstream_resumes_total{result="ok"}`))
	if f.metric(`upstream_resumes_total{result="ok"}`) == 0 {
		t.Error("no body was cut: the test did not check resuming")
	}
}

// slowWriter makes a body of some MiB last long enough to be killed halfway.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Millisecond / 2)
	return w.ResponseWriter.Write(p)
}

// askAs requests a path as a client with this User-Agent.
func (f *fixture) askAs(t *testing.T, agent, path string) (*http.Response, []byte) {
	t.Helper()
	request := require.Value(http.NewRequest(http.MethodGet, f.url(path), nil))(t)
	request.Header.Set("User-Agent", agent)
	response, body, err := do(request)
	require.NoError(t, err)
	return response, body
}

// Container runtimes repeat a request that was answered with 429. containerd gives up on one that is not answered within
// 30 s, CRI-O on one that was answered with 503.
func TestRuntimesAreAskedToRepeatTheirRequest(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, f *fixture, agent string) *http.Response {
		t.Helper()
		response, body := f.askAs(t, agent, "/v2/a/manifests/1")
		if response.StatusCode >= 400 {
			checkOCIError(t, response, body, "UNAVAILABLE", registryName+":"+f.port())
		}
		return response
	}
	for agent, want := range map[string]int{
		"containerd/v2.4.2": http.StatusTooManyRequests, "containerd/1.7.29": http.StatusTooManyRequests,
		"cri-o/1.34.0 go/go1.24.6 os/linux arch/amd64":    http.StatusTooManyRequests,
		"containers/5.23.1 (github.com/containers/image)": http.StatusTooManyRequests,
		"skopeo/1.9.3": http.StatusTooManyRequests, "Buildah/1.28.2": http.StatusTooManyRequests,
		"docker/29.0": http.StatusServiceUnavailable, "": http.StatusServiceUnavailable,
	} {
		t.Run("a registry that is away: "+agent, func(t *testing.T) {
			f := start(t, store{}, retryFor(time.Second/2))
			f.kill()
			got, pause := ask(t, f, agent), "10"
			if want == http.StatusTooManyRequests {
				pause = "1"
			}
			if got.StatusCode != want || got.Header.Get("Retry-After") != pause {
				t.Errorf("%s, Retry-After %s, want %d", got.Status, got.Header.Get("Retry-After"), want)
			}
			if f.metric("upstream_retries_total") == 0 || f.metric("requests_waiting") != 0 {
				t.Errorf("%v retries, %v waiting", f.metric("upstream_retries_total"), f.metric("requests_waiting"))
			}
		})
	}
	t.Run("without waiting", func(t *testing.T) {
		f := start(t, store{}, retryFor(0))
		f.kill()
		if got := ask(t, f, "containerd/v2.4.2"); got.StatusCode != http.StatusServiceUnavailable {
			t.Error(got.Status)
		}
	})
	t.Run("too many requests wait", func(t *testing.T) {
		f := start(t, store{}, retryFor(time.Hour), func(p *Proxy) { p.limits.maxWaiting = 0 })
		f.kill()
		if got := ask(t, f, "containerd/v2.4.2"); got.StatusCode != http.StatusServiceUnavailable {
			t.Error(got.Status)
		}
	})
	t.Run("a registry that is silent", func(t *testing.T) {
		end := make(chan struct{})
		silent := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end })
		f := start(t, silent, func(p *Proxy) { p.limits.waitTimeout = 100 * time.Millisecond })
		t.Cleanup(func() { close(end) })
		if got := ask(t, f, "containerd/v2.4.2"); got.StatusCode != http.StatusTooManyRequests {
			t.Error(got.Status)
		}
	})
	for name, change := range map[string]func(*Proxy){
		"a registry without a handshake": noHandshake(t), "no slot": limitSlots(0),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, store{}, change, func(p *Proxy) { p.limits.waitTimeout = 100 * time.Millisecond })
			if got := ask(t, f, "containerd/v2.4.2"); got.StatusCode != http.StatusTooManyRequests {
				t.Error(got.Status)
			}
		})
	}
}

// noHandshake replaces the registry with one that never answers a ClientHello.
func noHandshake(t *testing.T) func(*Proxy) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return func(p *Proxy) { p.upstream.address.ClusterIP = l.Addr().(*net.TCPAddr).AddrPort() }
}

// Docker gives up on a ping that is not answered within 15 s, but waits for the image.
func TestDockersPingIsAnswered(t *testing.T) {
	const docker = "docker/20.10.24 go/go1.19.8 os/linux arch/amd64 UpstreamClient(Docker-Client/20.10.24 \\(linux\\))"
	end := make(chan struct{})
	silent := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }), func(p *Proxy) {
		p.limits.ping, p.limits.waitTimeout = 100*time.Millisecond, time.Hour
	})
	t.Cleanup(func() { close(end) })
	stuck := start(t, store{}, noHandshake(t), func(p *Proxy) { p.limits.ping = 100 * time.Millisecond })
	away := start(t, store{}, retryFor(time.Second/2))
	away.kill()
	never := start(t, store{}, retryFor(0))
	never.kill()
	for name, tt := range map[string]struct {
		f           *fixture
		path, agent string
		want        int
	}{
		"silent": {silent, "/v2/", docker, http.StatusOK}, "stuck": {stuck, "/v2/", docker, http.StatusOK},
		"away":           {away, "/v2/", docker, http.StatusOK},
		"an image":       {away, "/v2/a/manifests/1", docker, http.StatusServiceUnavailable},
		"another client": {away, "/v2/", "curl/8", http.StatusServiceUnavailable},
		"no waiting":     {never, "/v2/", docker, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			response, _ := tt.f.askAs(t, tt.agent, tt.path)
			if got := response.StatusCode; got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestIntermediaryResponses(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(w http.ResponseWriter)
		want   int // status at the client
	}{
		"retries a 502 of an intermediary":  {func(w http.ResponseWriter) { http.Error(w, "bad gateway", 502) }, 200},
		"retries a 503 of an intermediary":  {func(w http.ResponseWriter) { http.Error(w, "no healthy upstream", 503) }, 200},
		"retries a 504 of an intermediary":  {func(w http.ResponseWriter) { http.Error(w, "timeout", 504) }, 200},
		"retries after a broken connection": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 200},
		"forwards the registry's 503": {
			func(w http.ResponseWriter) { w.Header().Set(oci.HeaderAPIVersion, "registry/2.0"); w.WriteHeader(503) }, 503,
		},
		"forwards an OCI error": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"errors":[{"code":"UNAVAILABLE"}]}`)
		}, 503},
		"forwards any 500": {func(w http.ResponseWriter) { http.Error(w, "", 500) }, 500},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) <= 2 {
					tt.broken(w)
				}
			}))
			response, _, err := f.get("/v2/")
			require.NoError(t, err)
			if response.StatusCode != tt.want {
				t.Errorf("status = %s, want %d", response.Status, tt.want)
			}
		})
	}
}

func TestWaitingIsBounded(t *testing.T) {
	f := start(t, store{}, func(p *Proxy) { p.limits.maxWaiting = 5 })
	f.kill()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, f.url("/v2/"), nil)
			_, _, _ = do(request)
		})
	}
	eventually(t, "five requests wait", func() bool { return f.metric("requests_waiting") == 5 })
	for range 3 {
		response, body, err := f.get("/v2/")
		require.NoError(t, err)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
			t.Errorf("%s, Retry-After %q", response.Status, response.Header.Get("Retry-After"))
		}
		checkOCIError(t, response, body, "UNAVAILABLE", "too many waiting requests")
	}
	cancel()
	wg.Wait()
	eventually(t, "no request waits after its client has disconnected",
		func() bool { return f.metric("requests_waiting") == 0 })
}

// A registry that accepts connections but does not respond is given up, and its other connections
// are dropped too.
func TestRegistryHangs(t *testing.T) {
	var asked atomic.Int32
	f := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			<-r.Context().Done()
		}
	}), func(p *Proxy) { p.limits.head = time.Second / 2 })
	response, body, err := f.get("/v2/")
	require.NoError(t, err)
	if response.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", response.Status, body)
	}
}

func TestBackoff(t *testing.T) {
	var total time.Duration
	for attempt := range 100 {
		d := backoff(attempt)
		longest := min(firstDelay<<min(attempt, 20), lastDelay)
		if d <= longest/2-1 || d > longest {
			t.Errorf("backoff(%d) = %s, want between %s and %s", attempt, d, longest/2, longest)
		}
		if attempt < 7 {
			total += longest
		}
	}
	if total > 6*time.Second {
		t.Errorf("the first attempts take %s, too long to notice a restart quickly", total)
	}
}

// raw responds to requests with arbitrary bytes, so that the registry can violate the protocol.
func raw(t *testing.T, answer string) *fixture {
	t.Helper()
	return start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, answer)
		_ = c.Close()
	}), retryFor(0))
}

func TestInvalidResponses(t *testing.T) {
	for name, tt := range map[string]struct{ answer, want string }{
		"rubbish":            {"rubbish\r\n\r\n", "malformed HTTP response"},
		"nothing":            {"", "unexpected EOF"},
		"a truncated header": {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n", "unexpected EOF"},
		"an endless header": {
			"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxHeadBytes), "exceeds 65536 bytes",
		},
		"endless interim responses": {
			strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHeadBytes/20), "exceeds 65536 bytes",
		},
		"a protocol switch": {
			"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "switches protocols",
		},
		"a body that ends with the connection": {"HTTP/1.1 200 OK\r\n\r\nbody", "unknown length"},
		"two lengths": {
			"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "Content-Length",
		},
		"an unsolicited transfer encoding": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer encoding"},
	} {
		t.Run(name, func(t *testing.T) {
			response, body, err := raw(t, tt.answer).get("/v2/")
			require.NoError(t, err)
			if response.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status = %s", response.Status)
			}
			checkOCIError(t, response, body, "UNAVAILABLE", tt.want)
		})
	}
	t.Run("two responses to one request", func(t *testing.T) {
		one := "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
		f := raw(t, one+"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb")
		for range 3 {
			_, body, err := f.get("/v2/")
			if err != nil || !bytes.Equal(body, []byte("a")) {
				t.Errorf("body = %q, %v, want that of the first response", body, err)
			}
		}
		if got := f.metric(`upstream_dials_total{result="ok"}`); got != 3 {
			t.Errorf("%v connections for 3 requests: one with unsolicited data was reused", got)
		}
	})
}

// What the registry sends without a request is not taken for the response to the next one.
//
// Claim (when the connection is idle): Unsolicited data of a registry reaches no client.
func TestUnsolicitedResponses(t *testing.T) {
	const unsolicited = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned"
	// The proxy reads such a body directly into its buffer, so TLS keeps what follows it.
	long := strings.Repeat("x", 3*smallBufferSize/2)
	for name, tt := range map[string]struct {
		body   string
		before []string // parts that are sent before the client has the response
		after  string
	}{
		"with a short body":           {"good", []string{"good" + unsolicited}, ""},
		"with a long body":            {long, []string{long + unsolicited}, ""},
		"in the record after a body":  {long, []string{long, unsolicited}, ""},
		"when the connection is idle": {"good", []string{"good"}, unsolicited},
		"a part of a response":        {"good", []string{"good"}, unsolicited[:10]},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			received, idle := make(chan struct{}), make(chan struct{})
			f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if requests.Add(1) > 1 {
					_, _ = io.WriteString(w, "the second")
					return
				}
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(tt.body))
				for i, part := range tt.before {
					if i == 0 {
						part = head + part
					}
					_, _ = io.WriteString(c, part)
				}
				<-received
				_, _ = io.WriteString(c, tt.after)
				close(idle)
				_, _ = c.Read(make([]byte, 1)) // until the proxy closes it
			}))
			_, body, err := f.get("/v2/")
			if err != nil || string(body) != tt.body {
				t.Fatalf("got %d bytes, %v", len(body), err)
			}
			close(received)
			<-idle
			eventually(t, "the response has arrived", func() bool {
				u := f.proxy.upstream
				u.mu.Lock()
				defer u.mu.Unlock()
				return tt.after == "" || len(u.idle) == 1 && readable(u.idle[0].raw)
			})
			if _, body, err = f.get("/v2/"); err != nil || string(body) != "the second" {
				t.Errorf("the second response is %.100q, %v", body, err)
			}
		})
	}
}
