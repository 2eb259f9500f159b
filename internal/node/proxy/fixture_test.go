package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	registryName = "zarf-registry.zarf.svc"
	organization = "test"
)

// longest bounds waiting for what must happen. No test passes because it expires.
const longest = 30 * time.Second

// registry is an HTTP server behind mutual TLS on 127.0.0.1 that can be killed and restarted on the
// same port.
type registry struct {
	t       testing.TB
	source  *tlsfiles.Source
	dir     string
	address string
	handler atomic.Pointer[http.Handler]
	config  *tls.Config // from the files in dir unless a test replaces it

	connections atomic.Int64 // open ones

	mu     sync.Mutex
	server *http.Server
	ended  chan struct{}
}

func newRegistry(t testing.TB, ca *tlsfilestest.CA, handler http.Handler) *registry {
	t.Helper()
	r := &registry{t: t, dir: t.TempDir(), address: freeport.Loopback(t)}
	tlsfilestest.WriteSecret(t, r.dir, ca.Files(t, organization, []string{registryName}))
	r.source = openSource(t, r.dir)
	r.config = tlsfiles.ServerConfig(r.source, tls.RequireAndVerifyClientCert)
	r.handle(handler)
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *registry) handle(handler http.Handler) { r.handler.Store(&handler) }

func (r *registry) port() string {
	_, port, _ := net.SplitHostPort(r.address)
	return port
}

func (r *registry) start() {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Error(err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.address = listener.Addr().String()
	r.server = &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { (*r.handler.Load()).ServeHTTP(w, req) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				r.connections.Add(1)
			case http.StateClosed:
				r.connections.Add(-1)
			}
		},
	}
	r.ended = make(chan struct{})
	go func(server *http.Server, ended chan struct{}) {
		defer close(ended)
		_ = server.Serve(tls.NewListener(listener, r.config))
	}(r.server, r.ended)
}

// kill ends the registry like a killed pod: all connections break.
func (r *registry) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.server.Close()
	<-r.ended
}

func openSource(t testing.TB, dir string) *tlsfiles.Source {
	t.Helper()
	return require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(quiet)))(t)
}

var quiet = slog.New(slog.DiscardHandler)

// firstThen answers the first request with first, and all others with then.
func firstThen(first, then http.HandlerFunc) http.Handler {
	var asked atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			first(w, r)
			return
		}
		then(w, r)
	})
}

// fixture is a registry with a proxy in front of it.
type fixture struct {
	*registry
	ca     *tlsfilestest.CA
	dir    string // with the proxy's certificates
	source *tlsfiles.Source
	proxy  *Proxy
	log    *bytes.Buffer // read after stop only
	stop   func() error
}

// start starts a registry and a proxy. change may modify the proxy before it listens.
func start(t testing.TB, handler http.Handler, change ...func(*Proxy)) *fixture {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "ca")
	return startBefore(t, newRegistry(t, ca, handler), ca, ca.Files(t, organization, loopback), change...)
}

var loopback = []string{"127.0.0.1", "::1", "localhost"}

// startBefore starts a proxy with these files in front of registry.
func startBefore(
	t testing.TB, registry *registry, ca *tlsfilestest.CA, files tlsfilestest.Files, change ...func(*Proxy),
) *fixture {
	t.Helper()
	f := &fixture{registry: registry, ca: ca, dir: t.TempDir(), log: new(bytes.Buffer)}
	tlsfilestest.WriteSecret(t, f.dir, files)
	f.source = openSource(t, f.dir)
	proxy, err := New(Config{
		Version:       "1.2.3",
		Listen:        []string{"127.0.0.1:0"},
		MetricsListen: "127.0.0.1:0",
		Registry:      registryName + ":" + f.port(),
		Source:        f.source,
		ServeTLS:      true,
		RetryTimeout:  longest,
		DrainTimeout:  longest,
		Logger:        slog.New(slog.NewTextHandler(f.log, nil)),
		Getenv:        environment{"ZARF_REGISTRY_SERVICE_HOST": "127.0.0.1"}.get,
	})
	require.NoError(t, err)
	proxy.upstream.lookupHost = nil // no test asks the machine's DNS
	for _, change := range change {
		change(proxy)
	}
	f.proxy = proxy
	f.stop = run(t, proxy)
	return f
}

type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// run starts a proxy, waits until it is ready, and returns a function that stops it.
func run(t testing.TB, proxy *Proxy) (stop func() error) {
	t.Helper()
	require.NoError(t, proxy.Listen(t.Context()))
	ready := make(chan struct{})
	proxy.config.Ready = sync.OnceFunc(func() { close(ready) })
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		result <- proxy.Run(ctx)
		proxy.config.Ready() // an error before it was ready
	}()
	<-ready
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(2 * longest):
			return errors.New("the proxy does not end")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

func retryFor(d time.Duration) func(*Proxy) { return func(p *Proxy) { p.config.RetryTimeout = d } }

func (f *fixture) address() string { return f.proxy.Addrs()[0].String() }

// dial opens a connection to the proxy, which the caller closes.
func (f *fixture) dial(t testing.TB) net.Conn {
	t.Helper()
	return require.Value(net.Dial("tcp", f.address()))(t)
}

func (f *fixture) url(path string) string { return "http://" + f.address() + path }

// get pulls on a new connection, as a runtime does. The body must be complete.
func (f *fixture) get(path string) (*http.Response, []byte, error) {
	request, err := http.NewRequest(http.MethodGet, f.url(path), nil)
	if err != nil {
		return nil, nil, err
	}
	return do(request)
}

// pull expects the whole blob.
func (f *fixture) pull(t testing.TB, b blob) {
	t.Helper()
	response, body, err := f.get(b.path())
	require.NoError(t, b.check(response, body, err))
}

func do(request *http.Request) (*http.Response, []byte, error) {
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(request.Context(), 2*longest)
	defer cancel()
	response, err := transport.RoundTrip(request.WithContext(ctx))
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// direct returns a transport that bypasses the proxy.
func (f *fixture) direct() *http.Transport {
	config := tlsfiles.ClientConfig(f.source.Current(), registryName)
	return &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true}
}

// metric returns the value of a metric of the proxy.
func (f *fixture) metric(name string) float64 {
	f.t.Helper()
	var text bytes.Buffer
	f.proxy.metrics.set.WritePrometheus(&text)
	for line := range strings.SplitSeq(text.String(), "\n") {
		if value, ok := strings.CutPrefix(line, prefix+name+" "); ok {
			number := require.Value(strconv.ParseFloat(value, 64))(f.t)
			return number
		}
	}
	f.t.Fatalf("no metric %s%s in\n%s", prefix, name, text.String())
	return 0
}

// eventually waits until condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(longest); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// blob is content and its digest.
type blob struct {
	data   []byte
	digest string
}

func newBlob(size int) blob {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(size >> 16)})
	_, _ = random.Read(data)
	return blob{data, digestOf(data)}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (b blob) path() string { return "/v2/repository/blobs/" + b.digest }

// setHeader sets the headers that distribution sets for a blob.
func (b blob) setHeader(w http.ResponseWriter) {
	h := w.Header()
	h.Set(oci.HeaderAPIVersion, "registry/2.0")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "max-age=31536000")
	h.Set("Etag", `"`+b.digest+`"`)
	h.Set(oci.HeaderDigest, b.digest)
}

// store serves blobs as distribution does, including ranges and conditions.
type store []blob

func (s store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, b := range s {
		if r.URL.Path == b.path() {
			b.setHeader(w)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.data))
			return
		}
	}
	w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry","detail":%q}]}`+"\n",
		r.URL.Path)
}

// check returns an error unless the response is the whole blob.
func (b blob) check(r *http.Response, body []byte, err error) error {
	switch {
	case err != nil:
		return err
	case r.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", r.Status, body)
	case digestOf(body) != b.digest:
		return fmt.Errorf("got %d bytes with digest %s, want %d with %s", len(body), digestOf(body), len(b.data), b.digest)
	}
	return nil
}
