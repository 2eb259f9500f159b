package cache

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// longest bounds waiting for what must happen. No test passes because it expires.
const longest = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// registry is a registry with some content.
type registry struct {
	tls      *tls.Config
	address  string
	server   *http.Server
	requests sync.Map // counts by method and path, *atomic.Int64

	mu      sync.Mutex
	content map[string][]byte // by path
	handler http.HandlerFunc  // if set, instead
}

func (r *registry) add(data []byte, paths ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range paths {
		r.content[path] = data
	}
}

func (r *registry) remove(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.content, path)
}

func (r *registry) count(method, path string) int64 {
	n, _ := r.requests.LoadOrStore(method+" "+path, new(atomic.Int64))
	return n.(*atomic.Int64).Load()
}

func (r *registry) override(handler http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handler = handler
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	n, _ := r.requests.LoadOrStore(req.Method+" "+req.URL.Path, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	r.mu.Lock()
	handler := r.handler
	r.mu.Unlock()
	if handler != nil {
		handler(w, req)
		return
	}
	r.serve(w, req)
}

func (r *registry) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	data, ok := r.content[req.URL.Path]
	r.mu.Unlock()
	w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`)
		return
	}
	d := digest.FromBytes(data).String()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(oci.HeaderDigest, d)
	w.Header().Set("Etag", `"`+d+`"`)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
}

func (r *registry) listen(t *testing.T) {
	t.Helper()
	r.address = freeport.Loopback(t)
	l := require.Value(net.Listen("tcp", r.address))(t)
	r.server = &http.Server{Handler: r, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	go func() { _ = r.server.Serve(tls.NewListener(l, r.tls)) }()
	t.Cleanup(r.kill)
}

func (r *registry) kill() { _ = r.server.Close() }

type fixture struct {
	*registry
	*Cache
	dir    string
	client *http.Client
	ca     *tlsfilestest.CA
	stop   func()
}

func source(t *testing.T, ca *tlsfilestest.CA, role string, names ...string) *tlsfiles.Source {
	t.Helper()
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, ca.Files(t, role, names))
	return require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(quiet)))(t)
}

// start starts a registry and a cache of it, whose client has the role of a node.
func start(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "ca")
	f := &fixture{ca: ca, dir: t.TempDir(), registry: &registry{
		tls:     tlsfiles.ServerConfig(source(t, ca, pki.OrganizationServer, "registry.zarf.svc"), tls.RequireAndVerifyClientCert),
		content: map[string][]byte{},
	}}
	f.listen(t)
	f.client = f.as(t, pki.OrganizationNode)
	f.run(t, change...)
	return f
}

// run starts the cache, also for another time with the same directory.
func (f *fixture) run(t *testing.T, change ...func(*Config)) {
	t.Helper()
	config := Config{
		Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", Registry: "registry.zarf.svc:" + port(f.address),
		Source: source(t, f.ca, pki.OrganizationCache, "cache.zarf.svc"), Dir: f.dir, Size: 64 << 20, Logger: quiet,
		Getenv: func(name string) string { return map[string]string{"REGISTRY_SERVICE_HOST": "127.0.0.1"}[name] },
	}
	for _, change := range change {
		change(&config)
	}
	c := require.Value(New(config))(t)
	require.NoError(t, c.Listen(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	f.Cache = c
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

func (f *fixture) as(t *testing.T, role string) *http.Client {
	t.Helper()
	certificate, key := f.ca.Issue(t, role, "client")
	pair := require.Value(tls.X509KeyPair(certificate, key))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.ca.Files(t, role, nil)["ca.crt"])
	client := &http.Client{Timeout: longest, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "cache.zarf.svc",
	}, DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// do sends a request to the cache. The body ends with err if it is not complete.
func (f *fixture) do(t *testing.T, method, path string, headers ...string) (response *http.Response, body []byte, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+f.Addr().String()+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err = f.client.Do(request)
	require.NoError(t, err, method, path)
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// get expects the whole of data.
func (f *fixture) get(t *testing.T, path string, data []byte) {
	t.Helper()
	if response, body, err := f.do(t, "GET", path); err != nil || response.StatusCode != http.StatusOK || !bytes.Equal(body, data) {
		t.Fatalf("GET %s: %v, %s, %d bytes: %.100s", path, err, response.Status, len(body), body)
	}
}

func (f *fixture) status(t *testing.T, path string, want int) *http.Response {
	t.Helper()
	response, body, err := f.do(t, "GET", path)
	if err != nil || response.StatusCode != want {
		t.Fatalf("GET %s: %v, %s, want %d: %.200s", path, err, response.Status, want, body)
	}
	return response
}

func random(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(size >> 16)}).Read(data)
	return data
}

func blobPath(data []byte) string { return "/v2/team/app/blobs/" + digest.FromBytes(data).String() }

// Whole bodies, ranges, conditions and errors look as those of the registry do.
func TestResponsesAreTheRegistrys(t *testing.T) {
	f := start(t)
	large, empty, manifest := random(3*chunkSize+17), []byte{}, []byte(`{"schemaVersion":2}`)
	byDigest := "/v2/team/app/manifests/" + digest.FromBytes(manifest).String()
	f.add(large, blobPath(large))
	f.add(empty, blobPath(empty))
	f.add(manifest, byDigest, "/v2/team/app/manifests/1.0")
	direct := &fixture{registry: f.registry, Cache: &Cache{listener: f.listener}, client: f.as(t, pki.OrganizationNode)}
	direct.client.Transport.(*http.Transport).TLSClientConfig.ServerName = "registry.zarf.svc"
	direct.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", f.address)
	}
	etag := `"` + digest.FromBytes(large).String() + `"`
	for _, path := range []string{
		blobPath(large), blobPath(empty), byDigest, "/v2/team/app/manifests/1.0", "/v2/team/app/manifests/none", blobPath([]byte("none")),
	} {
		for _, headers := range [][]string{
			nil, {"Range", "bytes=0-0"}, {"Range", "bytes=65535-65537"}, {"Range", "bytes=150000-"}, {"Range", "bytes=-1"},
			{"Range", "bytes=9999999-"}, {"Range", "bytes=5-10", "If-Range", etag}, {"Range", "bytes=5-10", "If-Range", `"other"`},
			{"If-None-Match", etag},
		} {
			for _, method := range []string{"GET", "HEAD"} {
				want, wantBody, wantErr := direct.do(t, method, path, headers...)
				for range 2 { // fetched, and stored
					got, gotBody, gotErr := f.do(t, method, path, headers...)
					if method == "HEAD" && len(headers) > 0 {
						continue // a cache does not evaluate conditions of HEAD, which nobody sends
					}
					got.Header.Del("Date")
					want.Header.Del("Date")
					if got.StatusCode != want.StatusCode || !bytes.Equal(gotBody, wantBody) || gotErr != nil || wantErr != nil ||
						fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
						t.Errorf("%s %s %q: got %s %v %d bytes %v\nwant %s %v %d bytes %v", method, path, headers,
							got.Status, got.Header, len(gotBody), gotErr, want.Status, want.Header, len(wantBody), wantErr)
					}
				}
			}
		}
	}
}

// Fifty clients request a blob while the registry sends it slowly: it is fetched once, and all follow.
func TestContentIsFetchedOnce(t *testing.T) {
	f := start(t)
	f.origin.progressTimeout = longest
	data := random(5*chunkSize + 1)
	f.add(data, blobPath(data))
	half, following := make(chan struct{}), make(chan struct{})
	f.override(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			f.serve(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:3*chunkSize])
		_ = http.NewResponseController(w).Flush()
		close(half)
		<-following
		_, _ = w.Write(data[3*chunkSize:])
	})
	var clients, first sync.WaitGroup
	for range 50 {
		first.Add(1)
		clients.Go(func() {
			response, err := f.client.Get("https://" + f.Addr().String() + blobPath(data))
			if err != nil {
				t.Error(err)
				first.Done()
				return
			}
			defer response.Body.Close()
			got := make([]byte, 3*chunkSize)
			_, err = io.ReadFull(response.Body, got)
			first.Done() // before the registry has sent the rest
			rest, restErr := io.ReadAll(response.Body)
			got = slices.Concat(got, rest)
			if err != nil || restErr != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, %v, %d bytes", err, restErr, len(got))
			}
		})
	}
	<-half
	first.Wait()
	close(following)
	clients.Wait()
	if n := f.count("GET", blobPath(data)); n != 1 {
		t.Errorf("%d requests for the blob", n)
	}
	if f.metrics.misses.Get() != 1 || f.metrics.hits.Get() != 49 || f.metrics.saved.Get() != uint64(49*len(data)) {
		t.Errorf("misses %d, hits %d, saved %d bytes", f.metrics.misses.Get(), f.metrics.hits.Get(), f.metrics.saved.Get())
	}
}

// TestDeadlinesBeginWithAChunk reads the last byte of a blob while it is being fetched: the time
// that a client has to take a chunk must not pass while the registry sends it.
func TestDeadlinesBeginWithAChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := require.Value(openStore(t.TempDir(), 1<<20, nil))(t)
		data := random(chunkSize + 1)
		b, _, err := s.get(digest.FromBytes(data), int64(len(data)))
		require.NoError(t, err)
		sent, content := io.Pipe()
		go func() { _ = s.write(b, func() (io.ReadCloser, error) { return sent, nil }) }()
		deadlines := 0
		r := s.reader(t.Context(), b, func() { deadlines++ })
		var last []byte
		go func() {
			defer r.Close()
			_, _ = r.Seek(-1, io.SeekEnd)
			last, _ = io.ReadAll(r)
		}()
		_, _ = content.Write(data[:chunkSize])
		synctest.Wait()
		if deadlines != 0 {
			t.Error("the deadline is set before the chunk is there")
		}
		_, _ = content.Write(data[chunkSize:])
		synctest.Wait()
		if deadlines != 1 || !bytes.Equal(last, data[chunkSize:]) {
			t.Errorf("%d deadlines, %d bytes", deadlines, len(last))
		}
	})
}

// Wrong content never becomes complete, and is not kept.
func TestWrongContentIsNotKept(t *testing.T) {
	for _, size := range []int{100, 4*chunkSize + 5} {
		f := start(t)
		data := random(size)
		f.add(data, blobPath(data))
		f.override(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				f.serve(w, r)
				return
			}
			wrong := bytes.Clone(data)
			wrong[0]++
			_, _ = w.Write(wrong)
		})
		if response, body, err := f.do(t, "GET", blobPath(data)); response.StatusCode == http.StatusOK && err == nil {
			t.Errorf("%d bytes of wrong content were served", len(body))
		}
		f.override(nil)
		f.get(t, blobPath(data), data)
	}
}

// A byte on disk flips: the client gets no wrong byte, and the next request fetches the content again.
func TestFlippedByteOnDisk(t *testing.T) {
	f := start(t)
	data := random(4*chunkSize + 5)
	f.add(data, blobPath(data))
	f.get(t, blobPath(data), data)
	flip(t, f.store.path(digest.FromBytes(data)), 2*chunkSize+7)
	response, body, err := f.do(t, "GET", blobPath(data))
	if err == nil || response.StatusCode != http.StatusOK || !bytes.HasPrefix(data, body) || len(body) != 2*chunkSize {
		t.Errorf("%v, %s, %d bytes, a beginning: %t", err, response.Status, len(body), bytes.HasPrefix(data, body))
	}
	if f.metrics.corrupt.Get() != 1 {
		t.Errorf("corrupt: %d", f.metrics.corrupt.Get())
	}
	f.get(t, blobPath(data), data)
	if n := f.count("GET", blobPath(data)); n != 2 {
		t.Errorf("%d requests for the blob", n)
	}
}

func flip(t *testing.T, file string, offset int64) {
	t.Helper()
	content := require.Value(os.ReadFile(file))(t)
	content[offset] ^= 1
	require.NoError(t, os.WriteFile(file, content, 0o600))
}

// A cache that starts again uses complete content, and deletes everything else.
func TestRestart(t *testing.T) {
	f := start(t)
	kept, damaged := random(2*chunkSize+5), random(chunkSize+9)
	f.add(kept, blobPath(kept))
	f.add(damaged, blobPath(damaged))
	f.get(t, blobPath(kept), kept)
	f.get(t, blobPath(damaged), damaged)
	f.stop()
	for name, content := range map[string]string{
		filepath.Base(f.store.path(digest.FromBytes(damaged))) + sumsSuffix: "12",
		"sha256-" + strings.Repeat("a", 64) + partSuffix:                    "part",
		"sha256-" + strings.Repeat("b", 64):                                 "no sums",
		"other":                                                             "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "lost+found"), 0o700))
	f.run(t)
	entries, err := os.ReadDir(f.dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v: %v", err, entries)
	}
	f.get(t, blobPath(kept), kept)
	f.get(t, blobPath(damaged), damaged)
	if n, m := f.count("GET", blobPath(kept)), f.count("GET", blobPath(damaged)); n != 1 || m != 2 {
		t.Errorf("requests for the kept blob: %d, for the damaged one: %d", n, m)
	}
}

// The least recently used content makes room, and what cannot be stored is left to the registry.
func TestBound(t *testing.T) {
	f := start(t, func(c *Config) { c.Size = 10 * chunkSize })
	var blobs [][]byte
	for i := range 3 {
		blobs = append(blobs, random(4*chunkSize+i))
		f.add(blobs[i], blobPath(blobs[i]))
	}
	for _, i := range []int{0, 1, 0, 2} {
		f.get(t, blobPath(blobs[i]), blobs[i])
	}
	for i, want := range []int64{1, 1, 1} {
		if n := f.count("GET", blobPath(blobs[i])); n != want {
			t.Errorf("blob %d was fetched %d times", i, n)
		}
	}
	f.get(t, blobPath(blobs[0]), blobs[0])
	f.get(t, blobPath(blobs[1]), blobs[1]) // evicted for 2
	if n := f.count("GET", blobPath(blobs[1])); n != 2 {
		t.Errorf("the least recently used blob was fetched %d times", n)
	}
	if used, n := f.store.usage(); used > 10*chunkSize || n != 2 {
		t.Errorf("%d bytes of %d blobs", used, n)
	}
	large := random(11 * chunkSize)
	f.add(large, blobPath(large))
	if response := f.status(t, blobPath(large), http.StatusServiceUnavailable); response.Header.Get(oci.HeaderAPIVersion) != "" {
		t.Error("the response looks like the registry's")
	}
	// Blobs in use stay.
	b, _, err := f.store.get(digest.FromBytes(blobs[1]), int64(len(blobs[1])))
	require.NoError(t, err)
	defer f.store.release(b)
	seven := random(7 * chunkSize)
	f.add(seven, blobPath(seven))
	f.status(t, blobPath(seven), http.StatusServiceUnavailable)
}

// A file of another size than the registry's content was damaged. It is fetched again.
func TestBlobsOfAnotherSizeAreDropped(t *testing.T) {
	f := start(t)
	content := random(chunkSize)
	f.add(content, blobPath(content))
	f.get(t, blobPath(content), content)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the response may still use it
		if _, _, err := f.store.get(digest.FromBytes(content), chunkSize+1); err == nil {
			t.Fatal("another size is accepted")
		}
		if _, n := f.store.usage(); n == 0 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("it is not dropped")
		}
	}
	f.get(t, blobPath(content), content)
	if n := f.count("GET", blobPath(content)); n != 2 {
		t.Errorf("it was fetched %d times", n)
	}
}

// A full file system is noticed before anything is sent, and content is stored again when there is space.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	mountSmall(t, dir, 8*chunkSize)
	f := start(t, func(c *Config) { c.Dir = dir })
	small, large := random(chunkSize), random(9*chunkSize)
	f.add(small, blobPath(small))
	f.add(large, blobPath(large))
	f.status(t, blobPath(large), http.StatusServiceUnavailable)
	f.status(t, blobPath(small), http.StatusServiceUnavailable) // nothing is stored for a while
	f.store.fullUntil = time.Time{}
	f.get(t, blobPath(small), small)
}

// A tag is asked of the registry each time. Content under a digest is asked for when the last answer is too old.
func TestRegistryDecides(t *testing.T) {
	f := start(t)
	f.confirmFor = time.Hour
	first, second := []byte(`{"first":true}`), []byte(`{"second":true}`)
	const tag = "/v2/team/app/manifests/latest"
	byDigest := "/v2/team/app/manifests/" + digest.FromBytes(first).String()
	f.add(first, tag, byDigest)
	f.add(second, "/v2/team/app/manifests/"+digest.FromBytes(second).String())
	f.get(t, tag, first)
	f.add(second, tag)
	f.get(t, tag, second)
	f.remove(tag)
	f.status(t, tag, http.StatusNotFound)

	f.get(t, byDigest, first)
	f.remove(byDigest)
	f.get(t, byDigest, first) // confirmed a moment ago
	f.confirmFor = 0
	response := f.status(t, byDigest, http.StatusNotFound)
	if response.Header.Get(oci.HeaderAPIVersion) == "" {
		t.Error("the response is not the registry's")
	}
	// Content is served in the repositories in which the registry serves it.
	f.status(t, strings.Replace(byDigest, "team/app", "team/other", 1), http.StatusNotFound)
}

// The registry decides by the types that a client accepts, also about content that it has just confirmed to others.
func TestTypesDecide(t *testing.T) {
	f := start(t, func(c *Config) { c.StaleFor = time.Hour })
	index := []byte(`{"manifests":[]}`)
	path := "/v2/team/app/manifests/" + digest.FromBytes(index).String()
	f.add(index, path)
	f.override(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "" {
			w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		f.serve(w, r)
	})
	for range 2 {
		if response, _, err := f.do(t, "GET", path, "Accept", "index"); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("with the type: %v, %s", err, response.Status)
		}
		f.status(t, path, http.StatusNotFound)
	}
}

// They would take more memory than the pod has.
func TestLongTypesAreNotRemembered(t *testing.T) {
	f := start(t)
	f.confirmFor = time.Hour
	index := []byte(`{"manifests":[]}`)
	path := "/v2/team/app/manifests/" + digest.FromBytes(index).String()
	f.add(index, path)
	for i := range 3 {
		types := strings.Repeat("x/y,", 2<<10) + strings.Repeat("z", i)
		if response, _, err := f.do(t, "GET", path, "Accept", types); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", response, err)
		}
	}
	if n := f.confirmations.Len(); n != 0 {
		t.Errorf("%d are remembered", n)
	}
}

// While the registry is unreachable, caches serve what it served last, for a limited time.
func TestStale(t *testing.T) {
	const tag = "/v2/team/app/manifests/latest"
	manifest, layer := []byte(`{"layer":true}`), random(2*chunkSize)
	byDigest := "/v2/team/app/manifests/" + digest.FromBytes(manifest).String()
	for _, staleFor := range []time.Duration{0, time.Hour} {
		f := start(t, func(c *Config) { c.StaleFor = staleFor })
		f.add(manifest, tag, byDigest)
		f.add(layer, blobPath(layer))
		f.add(nil, "/v2/")
		for _, path := range []string{tag, byDigest, blobPath(layer), "/v2/"} {
			f.status(t, path, http.StatusOK)
		}
		f.confirmFor = 0
		accept := []string{"Accept", "application/vnd.oci.image.index.v1+json"} // others than above
		away := map[string]func(){
			"killed": f.kill,
			"not ready": func() {
				f.override(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
			},
			"responding": func() { f.override(nil) },
		}
		for _, how := range []string{"not ready", "responding", "killed"} {
			away[how]()
			f.retryAt.Store(0)
			for _, path := range []string{tag, byDigest, blobPath(layer), "/v2/"} {
				if how != "responding" && staleFor == 0 {
					f.status(t, path, http.StatusServiceUnavailable)
					continue
				}
				response := f.status(t, path, http.StatusOK)
				stale := response.Header.Get("Warning") != ""
				if response.Header.Get(oci.HeaderAPIVersion) == "" || path != "/v2/" && stale != (how != "responding") {
					t.Errorf("%s, %s: %v", how, path, response.Header)
				}
			}
			if response, _, _ := f.do(t, "GET", tag, accept...); (response.StatusCode == http.StatusOK) != (staleFor > 0 || how == "responding") {
				t.Errorf("%s, with other types: %s", how, response.Status)
			}
			if how == "killed" {
				f.status(t, "/v2/team/app/manifests/never-asked", http.StatusServiceUnavailable)
			}
		}
		f.staleFor = min(staleFor, time.Nanosecond)
		f.status(t, tag, http.StatusServiceUnavailable)
	}
}

// A body of the registry that breaks off is resumed.
func TestRegistryBreaksOff(t *testing.T) {
	f := start(t)
	data := random(6*chunkSize + 3)
	f.add(data, blobPath(data))
	var ranges []string
	f.override(func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Method+r.Header.Get("Range"))
		if r.Method == http.MethodHead || len(ranges) > 3 {
			f.serve(w, r)
			return
		}
		f.serve(&broken{ResponseWriter: w, left: 2 * chunkSize}, r)
	})
	f.get(t, blobPath(data), data)
	if want := "[HEAD GET GETbytes=131072- GETbytes=262144-]"; fmt.Sprint(ranges) != want {
		t.Errorf("requests %q, want %s", ranges, want)
	}
}

// broken breaks the connection after some bytes.
type broken struct {
	http.ResponseWriter
	left int
}

func (b *broken) Write(p []byte) (int, error) {
	if b.left < len(p) {
		_, _ = b.ResponseWriter.Write(p[:b.left])
		_ = http.NewResponseController(b.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// A fetch that fails breaks the connections of all who follow it.
func TestFetchFails(t *testing.T) {
	f := start(t)
	data := random(6 * chunkSize)
	f.add(data, blobPath(data))
	f.override(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodHead:
			f.serve(w, r)
		case r.Header.Get("Range") == "":
			f.serve(&broken{ResponseWriter: w, left: 2 * chunkSize}, r)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	if response, body, err := f.do(t, "GET", blobPath(data)); err == nil || response.StatusCode != http.StatusOK ||
		!bytes.Equal(body, data[:2*chunkSize]) {
		t.Errorf("%v, %s, %d bytes", err, response.Status, len(body))
	}
	if used, n := f.store.usage(); used != 0 || n != 0 {
		t.Errorf("%d bytes of %d blobs are left", used, n)
	}
	f.override(nil)
	f.get(t, blobPath(data), data)
}

func TestAccess(t *testing.T) {
	f := start(t)
	data := random(10)
	f.add(data, blobPath(data))
	for role, want := range map[string]int{
		pki.OrganizationNode: 200, pki.OrganizationPush: 403, pki.OrganizationCache: 403, pki.OrganizationClient: 403, "other": 403,
	} {
		f.client = f.as(t, role)
		f.status(t, blobPath(data), want)
	}
	f.client = f.as(t, pki.OrganizationNode)
	if response, _, _ := f.do(t, "PUT", blobPath(data)); response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %s", response.Status)
	}
	f.client.Transport.(*http.Transport).TLSClientConfig.Certificates = nil
	f.client.CloseIdleConnections()
	if response, err := f.client.Get("https://" + f.Addr().String() + blobPath(data)); err == nil {
		t.Errorf("without a certificate: %s", response.Status)
	}
}

func TestAdmin(t *testing.T) {
	f := start(t, func(c *Config) { c.Version, c.Program = "1.2.3", "abc" })
	data := random(chunkSize)
	f.add(data, blobPath(data))
	f.get(t, blobPath(data), data)
	f.get(t, blobPath(data), data)
	for path, want := range map[string][]string{
		"/healthz": {"ok"}, "/readyz": {"ok"},
		"/loaded": {`"program":"abc"`, `"cache":{"size":67108864,"used":65536,"hits":1,"misses":1,"stale":0}`},
		"/metrics": {
			prefix + "hits_total 1", prefix + "misses_total 1", prefix + "saved_bytes_total 65536", prefix + "used_bytes 65536",
			prefix + `build_info{version="1.2.3"`, prefix + "stale_responses_total 0",
		},
	} {
		response := require.Value(http.Get("http://" + f.MetricsAddr().String() + path))(t)
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		for _, text := range want {
			if response.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
				t.Errorf("%s: %s, lacks %s: %s", path, response.Status, text, body)
			}
		}
	}
}

func TestNewRejects(t *testing.T) {
	valid := source(t, tlsfilestest.NewCA(t, "ca"), pki.OrganizationCache, "cache")
	for want, change := range map[string]func(*Config){
		"no certificates": func(c *Config) { c.Source = nil },
		"no directory":    func(c *Config) { c.Dir = "" },
		"invalid size":    func(c *Config) { c.Size = 0 },
		"stale":           func(c *Config) { c.StaleFor = -1 },
		"drain timeout":   func(c *Config) { c.DrainTimeout = -1 },
		"registry":        func(c *Config) { c.Registry = "" },
	} {
		config := Config{Source: valid, Dir: t.TempDir(), Size: 1, Registry: "r:1", Getenv: func(string) string { return "" }}
		change(&config)
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %s", err, want)
		}
	}
}

// A successor listens, and opens the directory, once its predecessor does not listen any more.
func TestSuccessor(t *testing.T) {
	f := start(t)
	data := random(chunkSize)
	f.add(data, blobPath(data))
	f.get(t, blobPath(data), data)
	before, address := f.stop, f.Addr().String()
	taken := make(chan struct{})
	go func() {
		time.Sleep(10 * time.Millisecond) // until run waits for the port; passes without
		before()
		close(taken)
	}()
	f.run(t, func(c *Config) { c.Listen = address })
	<-taken
	f.get(t, blobPath(data), data)
	if n := f.count("GET", blobPath(data)); n != 1 {
		t.Errorf("%d requests for the blob", n)
	}
	f.config.Dir = "/dev/null"
	f.stop()
	if err := f.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("Listen() = %v", err)
	}
}

// hook is a writer of a log.
type hook func()

func (h hook) Write(p []byte) (int, error) {
	h()
	return len(p), nil
}

// While a successor waits for the metrics port, the other one refuses connections: nobody would accept them.
func TestTheMetricsPortIsOpenedFirst(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	config := f.config
	config.Listen, config.MetricsListen = freeport.Loopback(t), f.MetricsAddr().String()
	config.Logger = slog.New(slog.NewTextHandler(hook(func() { // it waits
		if c, err := net.Dial("tcp", config.Listen); err == nil {
			_ = c.Close()
			t.Error("the port is open")
		}
		cancel()
	}), nil))
	c := require.Value(New(config))(t)
	if err := c.Listen(ctx); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
}

func TestPaths(t *testing.T) {
	d := "sha256:" + strings.Repeat("a", 64)
	for path, want := range map[string]*target{
		"/v2/":                               {},
		"/v2/a/b/blobs/" + d:                 {"a/b", true, d},
		"/v2/a/manifests/" + d:               {"a", false, d},
		"/v2/a/manifests/latest":             {"a", false, "latest"},
		"/v2/blobs/blobs/" + d:               {"blobs", true, d},
		"/v2/a/manifests/manifests/x":        {"a/manifests", false, "x"},
		"/v2":                                nil,
		"/":                                  nil,
		"/v2/_catalog":                       nil,
		"/v2/a/tags/list":                    nil,
		"/v2/a/referrers/" + d:               nil,
		"/v2/a/blobs/latest":                 nil,
		"/v2/a/blobs/uploads/":               nil,
		"/v2/a/blobs/sha256:a":               nil,
		"/v2/manifests/x":                    nil,
		"/v2/a/manifests/":                   nil,
		"/zarf-registry/v1/catalog/a/blobs/": nil,
	} {
		got, ok := parsePath(path)
		if ok != (want != nil) || ok && got != *want || Serves(path) != ok {
			t.Errorf("parsePath(%q) = %+v, %t, want %+v", path, got, ok, want)
		}
	}
}

// New connections are served while /readyz fails, and requests in flight are completed.
func TestDrain(t *testing.T) {
	f := start(t, func(c *Config) { c.DrainTimeout = longest })
	f.lameDuck, f.origin.progressTimeout = longest/3, longest
	data := random(4 * chunkSize)
	f.add(data, blobPath(data))
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.override(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			once.Do(func() { close(held) })
			<-release
		}
		f.serve(w, r)
	})
	result := make(chan error, 1)
	go func() {
		_, body, err := f.do(t, "GET", blobPath(data))
		if err == nil && !bytes.Equal(body, data) {
			err = errors.New("other content")
		}
		result <- err
	}()
	<-held
	go f.stop()
	for f.draining.Load() == false {
		time.Sleep(time.Millisecond)
	}
	if response, err := http.Get("http://" + f.MetricsAddr().String() + "/readyz"); err != nil ||
		response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %v, %v", response, err)
	}
	f.client.CloseIdleConnections()
	if response, _, err := f.do(t, "HEAD", blobPath(data)); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", response, err)
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
}
