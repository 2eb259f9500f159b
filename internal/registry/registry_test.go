package registry

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Repositories that are served over one path only.
const (
	probesOfProxies  = "zarf-registry/probe-proxy"
	probesOfNodePort = "zarf-registry/probe-nodeport"
)

const (
	serverName   = "zarf-registry.zarf.svc"
	pushUser     = "push"
	pushPassword = "correct horse battery staple"
	pullUser     = "pull"
	pullPassword = "may only pull"
)

func TestMain(m *testing.M) {
	RouteLogs(slog.New(slog.DiscardHandler))
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// testCA is a CA for tests.
type testCA struct{ *pki.CA }

func newTestCA(t testing.TB) testCA {
	t.Helper()
	return testCA{require.Value(pki.NewCA("test", time.Now(), 0))(t)}
}

func (a testCA) issue(t testing.TB, leaf pki.Leaf, now time.Time) pki.KeyPair {
	t.Helper()
	return require.Value(a.Issue(leaf, now))(t)
}

func (a testCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate())
	return pool
}

// serverFiles returns a certificate directory for the server that trusts a and others.
func (a testCA) serverFiles(t testing.TB, others ...testCA) tlsfilestest.Files {
	t.Helper()
	pair := a.issue(t, pki.Leaf{
		CommonName: "registry", Organization: pki.OrganizationServer, DNSNames: []string{serverName},
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Now())
	bundle := append([]byte(nil), a.KeyPair().Certificate...)
	for _, other := range others {
		bundle = append(bundle, other.KeyPair().Certificate...)
	}
	return tlsfilestest.Files{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": bundle}
}

// client returns a certificate for a client of the given organization.
func (a testCA) client(t testing.TB, organization string) *tls.Certificate {
	t.Helper()
	return certificate(t, a.issue(t, pki.Leaf{
		CommonName: "client", Organization: organization, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, time.Now()))
}

func certificate(t testing.TB, pair pki.KeyPair) *tls.Certificate {
	t.Helper()
	c := require.Value(tls.X509KeyPair(pair.Certificate, pair.Key))(t)
	return &c
}

func htpasswd(t testing.TB, user, password string) []byte {
	t.Helper()
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	return []byte(user + ":" + string(hash) + "\n")
}

func writeFile(t testing.TB, path string, data []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func loadConfig(t testing.TB, text string) (options Options) {
	t.Helper()
	config := require.Value(LoadConfig(writeFile(t, filepath.Join(t.TempDir(), "config.yml"), []byte(text))))(t)
	return Options{Config: config}
}

// configured sets the configuration.
func configured(t testing.TB, text string) func(*Options) {
	t.Helper()
	config := loadConfig(t, text).Config
	return func(o *Options) { o.Config = config }
}

// instance is a running registry.
type instance struct {
	t         testing.TB
	server    *Server
	ca        testCA
	root      string // of the filesystem driver
	tlsDir    string
	htpasswd  string
	pull      string            // opens the plain listener
	addresses map[string]string // by listener
	stop      func() error
	logs      *lockedBuffer
	roleCA    *tlsfilestest.CA // see holder
}

// start opens and runs a registry until the test ends.
func start(t testing.TB, ca testCA, root string, changes ...func(*Options)) *instance {
	t.Helper()
	i := open(t, ca, root, changes...)
	i.run()
	return i
}

// open opens a registry with all listeners, storage in root and certificates of ca.
func open(t testing.TB, ca testCA, root string, changes ...func(*Options)) *instance {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(useS3(root))
	i := &instance{t: t, ca: ca, root: root, tlsDir: filepath.Join(dir, "tls"), logs: &lockedBuffer{}}
	require.NoError(t, os.Mkdir(i.tlsDir, 0o700))
	tlsfilestest.WriteSecret(t, i.tlsDir, ca.serverFiles(t))
	i.htpasswd = writeFile(t, filepath.Join(dir, "htpasswd"), htpasswd(t, pushUser, pushPassword))

	options := loadConfig(t, "version: 0.1\n"+storageAt(root))
	options.Version = "1.2.3"
	options.Listen, options.PlainListen, options.LoopbackListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	options.HealthListen, options.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	options.TLSDir = i.tlsDir
	options.Htpasswd = i.htpasswd
	options.PullHtpasswd = writeFile(t, filepath.Join(dir, "pull"), htpasswd(t, pullUser, pullPassword))
	options.DrainTimeout = 10 * time.Second
	options.Log = slog.New(slog.NewJSONHandler(i.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, change := range changes {
		change(&options)
	}
	i.pull = options.PullHtpasswd
	i.server = require.Value(Open(options))(t)
	i.server.writeTimeout = time.Minute // the directory is removed after it
	return i
}

func (i *instance) run() {
	registry, diagnostics := i.server.endpoints()
	all := slices.Concat(registry, diagnostics)
	require.NoError(i.t, listen(context.Background(), all))
	i.addresses = map[string]string{}
	for _, e := range all {
		i.addresses[e.name] = e.listener.Addr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	if i.server.plain != nil {
		i.addresses["plain"] = i.server.options.PlainListen
	}
	ended := make(chan error, 1)
	go func() { ended <- i.server.serve(ctx, registry, diagnostics) }()
	i.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	i.t.Cleanup(func() {
		if err := i.stop(); err != nil {
			i.t.Errorf("server: %v", err)
		}
	})
	if i.server.plain != nil {
		if _, err := os.Stat(i.pull); err == nil {
			i.waitOpen()
		}
	}
}

// waitOpen waits until the plain listener is open, and stores its address.
func (i *instance) waitOpen() {
	i.t.Helper()
	eventually(i.t, "the plain listener opens", func() bool {
		address := i.server.plain.address()
		if address == nil {
			return false
		}
		i.addresses["plain"] = address.String()
		return true
	})
}

// client is an HTTP client with a certificate (or none) and a credential (or none).
type client struct {
	*http.Client
	t              testing.TB
	base           string
	user, password string
}

func (i *instance) client(certificate *tls.Certificate) client {
	config := &tls.Config{RootCAs: i.ca.pool(), ServerName: serverName}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	transport := &http.Transport{TLSClientConfig: config}
	i.t.Cleanup(transport.CloseIdleConnections)
	return client{Client: &http.Client{Transport: transport}, t: i.t, base: "https://" + i.addresses["tls"]}
}

func (i *instance) plain() client {
	transport := &http.Transport{}
	i.t.Cleanup(transport.CloseIdleConnections)
	return client{Client: &http.Client{Transport: transport}, t: i.t, base: "http://" + i.addresses["plain"]}
}

// pusher returns a client that may read and write.
func (i *instance) pusher() client {
	return i.client(i.ca.client(i.t, pki.OrganizationPush)).as(pushUser, pushPassword)
}

func (i *instance) node() client {
	return i.client(i.ca.client(i.t, pki.OrganizationNode))
}

func (c client) as(user, password string) client {
	c.user, c.password = user, password
	return c
}

// answer is a response with its body.
type answer struct {
	*http.Response
	body string
}

// code returns the OCI error code of the body, or "".
func (a answer) code() string {
	var body struct{ Errors []struct{ Code string } }
	if json.Unmarshal([]byte(a.body), &body) != nil || len(body.Errors) == 0 {
		return ""
	}
	return body.Errors[0].Code
}

// stream sends a request without a body until the context ends, and returns before the whole response is there.
func (c client) stream(ctx context.Context, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(c.user, c.password)
	return c.Do(request)
}

// background sends a POST request until stop is called.
func (c client) background(path string) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if response, err := c.stream(ctx, "POST", path); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (c client) send(method, path string, body io.Reader, headers ...string) (answer, error) {
	c.t.Helper()
	if !strings.Contains(path, "://") {
		path = c.base + path
	}
	request, err := http.NewRequestWithContext(context.Background(), method, path, body)
	require.NoError(c.t, err)
	for n := 0; n < len(headers); n += 2 {
		request.Header.Set(headers[n], headers[n+1])
	}
	if c.user != "" {
		request.SetBasicAuth(c.user, c.password)
	}
	response, err := c.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return answer{response, string(data)}, err
}

// must sends a request and fails the test unless the status is as given.
func (c client) must(status int, method, path string, body io.Reader, headers ...string) answer {
	c.t.Helper()
	a, err := c.send(method, path, body, headers...)
	require.NoError(c.t, err, method, path)
	if a.StatusCode != status {
		c.t.Fatalf("%s %s: status %d, want %d: %s", method, path, a.StatusCode, status, a.body)
	}
	return a
}

// begin begins an upload and returns its location.
func (c client) begin(repository string) string {
	c.t.Helper()
	return c.must(http.StatusAccepted, "POST", "/v2/"+repository+"/blobs/uploads/", nil).Header.Get("Location")
}

// pushBlob uploads content in one piece and returns its digest.
func (c client) pushBlob(repository, content string) digest.Digest {
	c.t.Helper()
	d := digest.FromString(content)
	c.pushAs(repository, d, content)
	return d
}

// pushImage pushes an image with one layer and returns the manifest's digest and text.
func (c client) pushImage(repository, tag, layer string) (digest.Digest, string) {
	c.t.Helper()
	c.pushBlob(repository, "{}")
	c.pushBlob(repository, layer)
	manifest := encode(c.t, ociManifest, imageOf(layer))
	return c.pushManifest(repository, tag, manifest), manifest
}

func (c client) pushManifest(repository, name, manifest string) digest.Digest {
	c.t.Helper()
	var m struct{ MediaType string }
	require.NoError(c.t, json.Unmarshal([]byte(manifest), &m))
	c.must(http.StatusCreated, "PUT", "/v2/"+repository+"/manifests/"+name, strings.NewReader(manifest), "Content-Type",
		m.MediaType)
	return digest.FromString(manifest)
}

// pushIndex pushes an index of manifests.
func (c client) pushIndex(repository, tag string, children ...digest.Digest) (digest.Digest, string) {
	c.t.Helper()
	index := encode(c.t, ociIndex, indexOf(children...))
	return c.pushManifest(repository, tag, index), index
}

func describe(mediaType string, d digest.Digest, size int) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": d, "size": size}
}

// imageOf is a manifest of an image. The repository must have its layers, and the blob {}.
func imageOf(layers ...string) map[string]any {
	described := []any{}
	for _, layer := range layers {
		described = append(described, describe(v1.MediaTypeImageLayer, digest.FromString(layer), len(layer)))
	}
	return map[string]any{"config": describe(v1.MediaTypeImageConfig, digest.FromString("{}"), 2), "layers": described}
}

// indexOf is an index of images.
func indexOf(children ...digest.Digest) map[string]any {
	described := []any{}
	for _, child := range children {
		d := describe(ociManifest, child, 1)
		d["platform"] = map[string]any{"os": "linux", "architecture": "amd64"}
		described = append(described, d)
	}
	return map[string]any{"manifests": described}
}

// encode completes a manifest and returns its text.
func encode(t testing.TB, mediaType string, manifest map[string]any) string {
	t.Helper()
	manifest["schemaVersion"], manifest["mediaType"] = 2, mediaType
	return string(require.Value(json.Marshal(manifest))(t))
}

func random(n int) string {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return string(data)
}

type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// repeatedly runs n loops until stop is called, or do returns false.
func repeatedly(n int, do func() (again bool)) (stop func()) {
	ended := make(chan struct{})
	var loops sync.WaitGroup
	for range n {
		loops.Go(func() {
			for do() {
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	return func() {
		close(ended)
		loops.Wait()
	}
}

// eventually polls until a condition of other goroutines is true.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}
