package registry

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	dto "github.com/prometheus/client_model/go"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func (i *instance) diagnostics(name string) client {
	c := i.plain()
	c.base = "http://" + i.addresses[name]
	return c
}

func (i *instance) metrics() string {
	i.t.Helper()
	return i.diagnostics("metrics").must(http.StatusOK, "GET", "/metrics", nil).body
}

// metric returns the value of a metric without labels.
func (i *instance) metric(name string) float64 {
	i.t.Helper()
	for line := range strings.Lines(i.metrics()) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			require.NoError(i.t, err, "metric", name)
			return value
		}
	}
	i.t.Fatalf("missing metric %s", name)
	return 0
}

func (i *instance) wantMetric(name string, want float64) {
	i.t.Helper()
	if got := i.metric(name); got != want {
		i.t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// loaded returns the report at /loaded.
func (i *instance) loaded() (report loaded.State) {
	i.t.Helper()
	a := i.diagnostics("metrics").must(http.StatusOK, "GET", loaded.Path, nil)
	if err := json.Unmarshal([]byte(a.body), &report); err != nil || a.Header.Get("Content-Type") != "application/json" {
		i.t.Fatalf("%v, %s: %s", err, a.Header.Get("Content-Type"), a.body)
	}
	return report
}

// inFlight returns how many requests a listener serves, also after the server has stopped.
func (i *instance) inFlight(listener string) float64 {
	i.t.Helper()
	var m dto.Metric
	require.NoError(i.t, i.server.metrics.inFlight.WithLabelValues(listener).Write(&m))
	return m.GetGauge().GetValue()
}

func (i *instance) waitReady() {
	i.t.Helper()
	eventually(i.t, "the registry is ready", func() bool {
		a, err := i.diagnostics("health").send("GET", "/readyz", nil)
		return err == nil && a.StatusCode == http.StatusOK
	})
}

func TestHealthAndMetricsServeNothingElse(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	i.waitReady()
	for name, served := range map[string][]string{"health": {"/healthz", "/readyz"}, "metrics": {"/metrics", "/loaded"}} {
		c := i.diagnostics(name)
		for _, path := range served {
			c.must(http.StatusOK, "GET", path, nil)
			c.must(http.StatusOK, "HEAD", path, nil)
			c.must(http.StatusMethodNotAllowed, "POST", path, nil)
			c.must(http.StatusNotFound, "GET", path+"/", nil)
		}
		for _, path := range []string{"/", "/v2/", "/v2/_catalog", "/debug/pprof/", "/debug/vars", "/debug/health",
			"/metrics/x", "/healthz/x", "/loaded/x"} {
			c.must(http.StatusNotFound, "GET", path, nil)
		}
	}
	i.diagnostics("health").must(http.StatusNotFound, "GET", "/metrics", nil)
	i.diagnostics("metrics").must(http.StatusNotFound, "GET", "/healthz", nil)
	i.diagnostics("health").must(http.StatusNotFound, "GET", "/loaded", nil)
	i.node().must(http.StatusNotFound, "GET", "/loaded", nil)
}

func TestReloadReport(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t), newTestCA(t)
	i := open(t, ca, t.TempDir())
	i.server.credentials.Interval = time.Millisecond
	i.run()
	sum := func(path string) string {
		t.Helper()
		return digest.FromBytes(require.Value(os.ReadFile(path))(t)).Encoded()
	}
	fingerprints := func(certificates []loaded.Certificate) (sums []string) {
		for _, certificate := range certificates {
			sums = append(sums, certificate.SHA256)
		}
		return sums
	}

	report := i.loaded()
	if got, want := report.Certificates.Leaf.SHA256, pki.Fingerprint(i.server.certificates.Current().Leaf); got != want ||
		report.Certificates.Generation != 1 {
		t.Errorf("leaf %s, want %s, generation %d", got, want, report.Certificates.Generation)
	}
	if got := fingerprints(report.Certificates.TrustedCAs); !slices.Equal(got,
		[]string{pki.Fingerprint(ca.Certificate())}) {
		t.Errorf("authorities %v", got)
	}
	if *report.Credentials != (loaded.Credentials{Push: sum(i.htpasswd), Pull: sum(i.pull)}) {
		t.Errorf("credentials %+v", report.Credentials)
	}

	i.replaceCertificates(ca.serverFiles(t, other))
	if report := i.loaded(); report.Certificates.Generation != 2 || len(report.Certificates.TrustedCAs) != 2 {
		t.Errorf("after a reload: %+v", report.Certificates)
	}
	require.NoError(t, os.Remove(i.pull))
	next := htpasswd(t, pushUser, "another")
	writeFile(t, i.htpasswd+".new", next)
	require.NoError(t, os.Rename(i.htpasswd+".new", i.htpasswd))
	eventually(t, "the report has the new credentials", func() bool {
		return *i.loaded().Credentials == loaded.Credentials{Push: digest.FromBytes(next).Encoded()}
	})
	// The report describes the users in force, not the file.
	writeFile(t, i.htpasswd, []byte("rubbish"))
	eventually(t, "the failure is counted", func() bool { return i.server.credentials.ReloadErrors.Load() > 0 })
	if got := i.loaded().Credentials.Push; got != digest.FromBytes(next).Encoded() {
		t.Errorf("push %s", got)
	}
	for _, secret := range []string{"PRIVATE", "$2", pushPassword} {
		if body := i.diagnostics("metrics").must(http.StatusOK, "GET", loaded.Path, nil).body; strings.Contains(body,
			secret) {
			t.Errorf("%s holds %q", body, secret)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	i.waitReady()
	blob := i.pusher().pushBlob("a", strings.Repeat("x", 1000))
	sent := `zarf_registry_http_sent_bytes_total{listener="tls"}`
	before := i.metric(sent)
	i.node().must(http.StatusOK, "GET", "/v2/a/blobs/"+blob.String(), nil)
	eventually(t, "the bytes sent are counted", func() bool { return i.metric(sent) == before+1000 })
	i.node().must(http.StatusForbidden, "PUT", "/v2/a/manifests/v1", nil)
	i.node().must(http.StatusForbidden, "BREW", "/v2/", nil)
	text := i.metrics()
	for _, want := range []string{
		`zarf_registry_http_requests_total{code="202",listener="tls",method="POST"} 1`,
		`zarf_registry_http_requests_total{code="201",listener="tls",method="PUT"} 1`,
		`zarf_registry_http_requests_total{code="403",listener="tls",method="PUT"} 1`,
		`zarf_registry_http_requests_total{code="403",listener="tls",method="other"} 1`,
		`zarf_registry_http_requests_in_flight{listener="tls"} 0`,
		`zarf_registry_http_connections{listener="tls"} 4`, `zarf_registry_http_connections{listener="plain"} 0`,
		`zarf_registry_http_connections_dropped_total{listener="tls"} 0`,
		`zarf_registry_http_request_duration_seconds_count{listener="tls",method="POST"} 1`,
		`zarf_registry_http_request_duration_seconds_count{listener="tls",method="PUT"} 2`,
		`zarf_registry_http_received_bytes_total{listener="tls"} 1000`,
		`zarf_registry_credential_checks_total{result="matched"} 1`,
		`zarf_registry_credential_checks_total{result="cached"} 1`,
		`zarf_registry_tls_generation 1`,
		`zarf_registry_tls_reload_errors_total 0`,
		`zarf_registry_storage_healthy 1`,
		`zarf_registry_build_info{version="1.2.3"} 1`,
		`registry_storage_action_seconds_count{action="PutContent",driver="filesystem"}`,
		`go_goroutines`,
		`process_resident_memory_bytes`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s", want)
		}
	}
	leaf := i.server.certificates.Current().Leaf
	i.server.credentials.ReloadErrors.Store(3)
	for name, want := range map[string]float64{
		"zarf_registry_credential_reload_errors_total":           3,
		"zarf_registry_tls_certificate_expiry_timestamp_seconds": float64(leaf.NotAfter.Unix()),
		"zarf_registry_tls_certificate_lifetime_seconds":         leaf.NotAfter.Sub(leaf.NotBefore).Seconds(),
		"zarf_registry_tls_ca_expiry_timestamp_seconds":          float64(i.ca.Certificate().NotAfter.Unix()),
	} {
		i.wantMetric(name, want)
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "storage")
	i := open(t, newTestCA(t), root, func(o *Options) {
		o.Config.Health.StorageDriver.Interval = time.Millisecond
		o.Config.Health.StorageDriver.Threshold = 5
	})
	i.run()
	health := i.diagnostics("health")
	i.waitReady()
	eventually(t, "nothing writes to the storage", i.server.source.Rebuilt.Load)
	require.NoError(t, os.Rename(root, root+".gone"))
	eventually(t, "a missing volume makes it unready", func() bool {
		a, err := health.send("GET", "/readyz", nil)
		// On a busy machine, there may be no response for so long before a check fails.
		return err == nil && a.StatusCode == http.StatusServiceUnavailable && strings.Contains(a.body, "storage: ") &&
			!strings.Contains(a.body, "no response")
	})
	health.must(http.StatusOK, "GET", "/healthz", nil)
	if !strings.Contains(i.metrics(), "zarf_registry_storage_healthy 0\n") {
		t.Error("the metrics do not show it")
	}
	require.NoError(t, os.Rename(root+".gone", root))
	i.waitReady()
}

func TestUploadsMoveBetweenReplicas(t *testing.T) {
	t.Parallel()
	ca, root := newTestCA(t), t.TempDir()
	secret := func(end string) string {
		return writeFile(t, filepath.Join(t.TempDir(), "secret"), []byte(strings.Repeat("s", minUploadSecret-1)+end))
	}
	for name, tt := range map[string]struct {
		second func(first *Options) func(*Options)
		status int
	}{
		"replicas with the same push users share a secret": {func(first *Options) func(*Options) {
			return func(o *Options) { o.Htpasswd = first.Htpasswd }
		}, http.StatusCreated},
		"replicas of which only one has pull users share a secret": {func(first *Options) func(*Options) {
			return func(o *Options) { o.Htpasswd, o.PullHtpasswd = first.Htpasswd, "" }
		}, http.StatusCreated},
		"replicas with the same http.secret share it": {func(first *Options) func(*Options) {
			return func(o *Options) { o.Config.HTTP.Secret = first.Config.HTTP.Secret }
		}, http.StatusCreated},
		"replicas with other push users do not": {func(*Options) func(*Options) { return func(*Options) {} }, http.StatusNotFound},
		"replicas with the same upload secret share it": {func(first *Options) func(*Options) {
			first.UploadSecret = secret("0")
			return func(o *Options) { o.UploadSecret = secret("0\n") }
		}, http.StatusCreated},
		"replicas with different upload secrets do not": {func(first *Options) func(*Options) {
			first.UploadSecret = secret("0")
			return func(o *Options) { o.UploadSecret = secret("1") }
		}, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			var second func(*Options)
			one := start(t, ca, root, func(o *Options) { second = tt.second(o) })
			two := start(t, ca, root, second)
			upload := one.pusher().begin("a")
			two.pusher().must(tt.status, "PUT", upload+"&digest="+digest.FromString(name).String(),
				strings.NewReader(name))
		})
	}
}

func TestShutdownLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	i := open(t, newTestCA(t), t.TempDir(), func(o *Options) {
		o.ShutdownDelay, o.DrainTimeout = 42*time.Second, time.Minute
	})
	delay := make(chan time.Time)
	i.server.after = func(d time.Duration) <-chan time.Time {
		if d != 42*time.Second {
			t.Errorf("the shutdown is delayed by %s", d)
		}
		return delay
	}
	i.run()
	i.waitReady()
	upload := i.slowUpload(i.pusher(), "tls", "slow and steady")
	stopped := make(chan error, 1)
	go func() { stopped <- i.stop() }()
	eventually(t, "/readyz reports the shutdown", func() bool {
		a, err := i.diagnostics("health").send("GET", "/readyz", nil)
		return err == nil && a.StatusCode == http.StatusServiceUnavailable && strings.Contains(a.body, "shutting down")
	})
	// It still serves, but keeps no connection open.
	if a := i.node().must(http.StatusOK, "GET", "/v2/", nil); !a.Close {
		t.Error("a connection is kept open during the shutdown delay")
	}
	close(delay)
	eventually(t, "new connections are refused", func() bool { return i.refuses("tls") })
	if err := upload.end("slow and steady"); err != nil {
		t.Errorf("the upload ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A pod's network namespace, with what is left in its send queues, ends with the last process.
func TestShutdownDeliversWhatWasWritten(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir(), func(o *Options) { o.DrainTimeout = time.Minute })
	content := random(100 << 10) // less than unsentSize
	path := "/v2/a/blobs/" + i.pusher().pushBlob("a", content).String()
	config := i.node().Transport.(*http.Transport).TLSClientConfig.Clone()
	tcp := require.Value(net.Dial("tcp", i.addresses["tls"]))(t)
	_ = tcp.(*net.TCPConn).SetReadBuffer(4 << 10)
	client := tls.Client(tcp, config)
	defer client.Close()
	fmt.Fprintf(client, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", path)
	response := require.Value(http.ReadResponse(bufio.NewReader(client), nil))(t)
	eventually(t, "everything is written", func() bool { return i.inFlight("tls") == 0 })
	stopped := make(chan error, 1)
	go func() { stopped <- i.stop() }()
	select {
	case err := <-stopped:
		t.Fatalf("Serve() = %v before the client has the response", err)
	case <-time.After(200 * time.Millisecond):
	}
	if got, err := io.ReadAll(response.Body); err != nil || string(got) != content {
		t.Errorf("the client got %d of %d bytes: %v", len(got), len(content), err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestServeNamesTheListenerThatFails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	i := open(t, newTestCA(t), t.TempDir(), func(o *Options) { o.MetricsListen = taken.Addr().String() })
	err = i.server.Serve(context.Background())
	if err == nil || !strings.Contains(err.Error(), "listening for metrics") ||
		!strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("Serve() = %v", err)
	}
}

func TestOpenRejects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), nil)
	good := func(t *testing.T) Options {
		options := loadConfig(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+t.TempDir()+"}}\n")
		options.PlainListen = "127.0.0.1:0"
		options.Htpasswd = writeFile(t, filepath.Join(t.TempDir(), "htpasswd"), htpasswd(t, "a", "b"))
		options.Log = slog.New(slog.DiscardHandler)
		return options
	}
	if _, err := Open(good(t)); err != nil {
		t.Fatalf("the base options are invalid: %v", err)
	}
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no listener": {func(o *Options) { o.PlainListen = "" },
			"set --listen, --plain-listen or --expose-listen"},
		"TLS without certificates": {func(o *Options) { o.Listen = ":0" }, "--tls-dir"},
		"a certificate directory missing": {func(o *Options) { o.Listen, o.TLSDir = ":0", filepath.Join(dir, "none") },
			filepath.Join(dir, "none")},
		"no users":                {func(o *Options) { o.Htpasswd = "" }, "--htpasswd is required"},
		"a missing file of users": {func(o *Options) { o.Htpasswd = filepath.Join(dir, "none") }, filepath.Join(dir, "none")},
		"an empty file of users":  {func(o *Options) { o.Htpasswd = file }, "no users"},
		"a short upload secret":   {func(o *Options) { o.UploadSecret = file }, "has 0 bytes: want at least 32"},
		"no upload secret":        {func(o *Options) { o.UploadSecret = dir }, "reading upload secret"},
		"pull users without a listener for them": {func(o *Options) {
			o.PullHtpasswd, o.PlainListen, o.Listen, o.TLSDir = file, "", ":0", dir
		}, "--pull-htpasswd"},
		"an exposed listener without a certificate": {func(o *Options) { o.ExposeListen = ":0" },
			"--expose-listen needs --expose-tls-dir"},
		"a certificate without an exposed listener":  {func(o *Options) { o.ExposeTLSDir = dir }, "need --expose-listen"},
		"users without an exposed listener":          {func(o *Options) { o.ExposeHtpasswd = file }, "need --expose-listen"},
		"anonymous pull without an exposed listener": {func(o *Options) { o.ExposeAnonymousPull = true }, "need --expose-listen"},
		"a negative time":                            {func(o *Options) { o.DrainTimeout = -1 }, "must not be negative"},
		"anonymous pull without a listener for it": {func(o *Options) {
			o.AnonymousPull, o.PlainListen, o.Listen, o.TLSDir = true, "", ":0", dir
		}, "--anonymous-pull"},
		"a root directory that is a file": {configured(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+file+"}}\n"),
			"storage.filesystem.rootdirectory " + file},
		"a read-only registry without its directory": {configured(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+
			filepath.Join(dir, "none")+"}, maintenance: {readonly: {enabled: true}}}\n"), "cannot read it"},
		"S3 without a bucket": {configured(t, "version: 0.1\nstorage: {s3: {region: us-east-1}}\n"),
			"storage.s3: no bucket parameter provided"},
		"a configuration that makes distribution panic": {configured(t,
			"version: 0.1\nstorage: {inmemory: {}, tag: {concurrencylimit: many}}\n"), "concurrency limit"},
	} {
		t.Run(name, func(t *testing.T) {
			options := good(t)
			tt.change(&options)
			_, err := Open(options)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open() = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestStorageWithoutTheProjectsImagesIsReported(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	is := func(when string, empty bool) {
		t.Helper()
		if got := i.loaded().StorageEmpty; got != empty {
			t.Errorf("%s: empty %t", when, got)
		}
	}
	i.waitReady()
	is("at first", true)
	i.pusher().pushPlatform("team/a", "layer")
	is("with an image of a user", true)
	i.pusher().pushPlatform(catalog.OwnRepositories+"/init-hook", "layer")
	is("with an image of the project", false)
	// Next to it, the registry writes in the background.
	require.NoError(t, os.RemoveAll(filepath.Join(root, storage.RepositoriesPath)))
	is("after its content was lost", true)
}

func TestUnavailableS3DelaysOnlyReadiness(t *testing.T) {
	t.Parallel()
	i := open(t, newTestCA(t), t.TempDir(), configured(t, `
version: 0.1
storage: {s3: {region: us-east-1, bucket: b, accesskey: a, secretkey: b, forcepathstyle: true, regionendpoint: "http://127.0.0.1:1"}}
health: {storagedriver: {interval: 20ms}}
`))
	i.run()
	eventually(t, "/readyz reports the error", func() bool {
		a, err := i.diagnostics("health").send("GET", "/readyz", nil)
		return err == nil && a.StatusCode == http.StatusServiceUnavailable && strings.Contains(a.body, "storage: ") &&
			!strings.Contains(a.body, "not checked")
	})
	i.node().must(http.StatusOK, "GET", "/v2/", nil)
	if a, err := i.diagnostics("metrics").send("GET", "/loaded", nil); err != nil || !strings.Contains(a.body,
		`"storageError":"storage: `) {
		t.Errorf("/loaded: %v, %s", err, a.body)
	}
}

// zeroBytes has any number of them.
type zeroBytes struct{}

func (zeroBytes) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// TestLargeBlobsAreStreamed uploads and downloads a blob that does not fit into the allowed memory.
func TestLargeBlobsAreStreamed(t *testing.T) { // not in parallel: the heap is everybody's
	const size, allowed = 128 << 20, 32 << 20
	i := start(t, newTestCA(t), t.TempDir())
	hash := digest.Canonical.Digester()
	zeros := func() io.Reader { return io.NewSectionReader(zeroBytes{}, 0, size) }
	if _, err := io.Copy(hash.Hash(), zeros()); err != nil {
		t.Fatal(err)
	}
	c, node := i.pusher(), i.node()

	before, peak := liveHeap(), watchHeap(t)
	upload := c.begin("a")
	streamed := c.must(http.StatusAccepted, "PATCH", upload, zeros()).Header.Get("Location")
	created := c.must(http.StatusCreated, "PUT", streamed+"&digest="+hash.Digest().String(), nil).Header.Get("Location")
	response := require.Value(node.Get(node.base + created))(t)
	n, err := io.Copy(io.Discard, response.Body)
	response.Body.Close()
	if err != nil || n != size {
		t.Errorf("downloaded %d bytes, %v", n, err)
	}
	if grown := peak() - before; grown > allowed {
		t.Errorf("the heap grew by %d MiB while a blob of %d MiB was uploaded and downloaded", grown>>20, size>>20)
	}
}

// Distribution itself allocates a buffer of 4 MiB for each blob that it serves.
func TestSmallBlobsNeedLittleMemory(t *testing.T) {
	const pulls, allowed = 20, 1 << 20
	i := start(t, newTestCA(t), t.TempDir())
	path, node := "/v2/a/blobs/"+i.pusher().pushBlob("a", "small").String(), i.node()
	node.must(http.StatusOK, "GET", path, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range pulls {
		node.must(http.StatusOK, "GET", path, nil)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / pulls; each > allowed {
		t.Errorf("each pull allocates %d KiB", each>>10)
	}
}

// On each listener, clients that send nothing, or do not read, hold connections up to its limit. A new
// client replaces one of them, and no upload in progress, although that is older.
//
// Claim (not reading): At their limit, the registry's ports drop clients that stall before others.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	e := openExposed(t, func(o *Options) { o.AnonymousPull, o.ExposeAnonymousPull = true, true })
	const limit = 4
	for name := range e.server.connections {
		e.server.connections[name] = connlimit.New(limit)
	}
	e.run()
	e.waitReady()
	path := "/v2/a/blobs/" + e.pusher().pushBlob("a", random(8<<20)).String()
	for name, c := range map[string]client{"tls": e.pusher(), "plain": e.plain(), "exposed": e.outsider()} {
		c = c.as(pushUser, pushPassword)
		c.Transport.(*http.Transport).DisableKeepAlives = true
		for what, stall := range map[string]func() net.Conn{
			"silent": func() net.Conn {
				return require.Value(net.Dial("tcp", e.addresses[name]))(t)
			},
			"not reading": func() net.Conn {
				conn := require.Value(net.Dial("tcp", e.addresses[name]))(t)
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
				if config := c.Transport.(*http.Transport).TLSClientConfig; config != nil {
					conn = tls.Client(conn, config)
				}
				fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
				return conn
			},
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				connections := e.server.connections[name]
				upload := c.begin("a")
				eventually(t, "previous requests have ended", func() bool { return e.inFlight(name) == 0 })
				body, content := io.Pipe()
				uploaded := make(chan error, 1)
				go func() {
					a, err := c.send("PATCH", upload, body)
					if err == nil && a.StatusCode != http.StatusAccepted {
						err = fmt.Errorf("status %d: %s", a.StatusCode, a.body)
					}
					uploaded <- err
				}()
				_, _ = io.WriteString(content, "a part")
				eventually(t, "the upload is in progress", func() bool { return e.inFlight(name) == 1 })
				for range limit + 1 {
					defer stall().Close()
				}
				eventually(t, "the limit is reached", func() bool { return connections.Open() == limit })
				before := connections.Dropped()
				for range 10 {
					eventually(t, "a new client is served", func() bool {
						a, err := c.send("GET", "/v2/", nil) // reset if nobody has been stalled for long enough
						return err == nil && a.StatusCode == http.StatusOK
					})
				}
				if connections.Dropped() == before || connections.Open() > limit {
					t.Errorf("%d dropped, %d open", connections.Dropped()-before, connections.Open())
				}
				_ = content.Close()
				if err := <-uploaded; err != nil {
					t.Errorf("the upload: %v", err)
				}
			})
		}
	}
}

// The kernel keeps little for a client that does not read.
func TestUnsentDataIsLimited(t *testing.T) {
	t.Parallel()
	e := newEndpoint("test", "127.0.0.1:0", http.NotFoundHandler(), connlimit.New(1), slog.New(slog.DiscardHandler))
	require.NoError(t, e.listen(t.Context()))
	defer e.listener.Close()
	c := require.Value(net.Dial("tcp", e.listener.Addr().String()))(t)
	defer c.Close()
	accepted := require.Value(e.listener.Accept())(t)
	defer accepted.Close()
	defer c.Close()
	_ = accepted.SetWriteDeadline(time.Now().Add(time.Second / 2))
	if n, _ := accepted.Write(make([]byte, 8<<20)); n > 1<<20 {
		t.Errorf("%d bytes were written for a client that does not read", n)
	}
}
