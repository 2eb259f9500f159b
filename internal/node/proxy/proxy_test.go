package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestNewRejects(t *testing.T) {
	f := start(t, store{})
	for name, tt := range map[string]struct {
		want   string
		change func(*Config)
	}{
		"no certificates": {"no certificates", func(c *Config) { c.Source = nil }},
		"a negative retry timeout": {
			"retry timeout -1s: must not be negative", func(c *Config) { c.RetryTimeout = -time.Second },
		},
		"a negative drain timeout": {
			"drain timeout -1s: must not be negative", func(c *Config) { c.DrainTimeout = -time.Second },
		},
		"no registry": {`registry ""`, func(c *Config) { c.Registry = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			config := f.proxy.config
			tt.change(&config)
			if _, err := New(config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New() error = %v, want one that contains %q", err, tt.want)
			}
		})
	}
}

// getAdmin requests a path from the metrics port.
func (f *fixture) getAdmin(t *testing.T, path string) (int, string) {
	t.Helper()
	request, _ := http.NewRequest(http.MethodGet, "http://"+f.proxy.MetricsAddr().String()+path, nil)
	response, body, err := do(request)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestDrain(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.Header().Set("Content-Length", "8")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			begun <- struct{}{}
			<-goOn
		}
		_, _ = io.WriteString(w, "half")
	}))
	if code, body := f.getAdmin(t, "/readyz"); code != http.StatusOK {
		t.Fatalf("readyz = %d %s", code, body)
	}

	idle := f.dial(t)
	defer idle.Close()
	fmt.Fprint(idle, "GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n")
	reader := bufio.NewReader(idle)
	if response, err := http.ReadResponse(reader, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}

	result := make(chan error, 1)
	go func() {
		_, body, err := f.get("/slow")
		if string(body) != "halfhalf" && err == nil {
			err = fmt.Errorf("body = %q", body)
		}
		result <- err
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()

	eventually(t, "the proxy drains", func() bool { return f.proxy.draining.Load() })
	if code, body := f.getAdmin(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "draining\n") {
		t.Errorf("readyz = %d %s", code, body)
	}
	// The node's port has no other listener while a request is in flight.
	if response, body, err := f.get("/quick"); err != nil || string(body) != "half" || !response.Close {
		t.Errorf("a new request: %+v, %q, %v, want a response that closes the connection", response, body, err)
	}
	if code, _ := f.getAdmin(t, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz = %d: a restart would not help", code)
	}
	_ = idle.SetDeadline(time.Now().Add(longest))
	if _, err := reader.ReadByte(); err != io.EOF {
		t.Errorf("an idle connection was left open: %v", err)
	}
	select {
	case err := <-stopped:
		t.Fatalf("Run() = %v with a request in flight", err)
	default:
	}
	close(goOn)
	if err := <-result; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if c, err := net.Dial("tcp", f.proxy.MetricsAddr().String()); err == nil {
		_ = c.Close()
		t.Error("the metrics port is still open")
	}
}

// A pod's network namespace, with what is left in its send queues, ends with the last process.
func TestDrainDeliversWhatWasWritten(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 6<<10)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	}), func(p *Proxy) { p.config.DrainTimeout = 10 * time.Second }) // half of it is waited for, below
	client := f.dial(t)
	defer client.Close()
	_ = client.(*net.TCPConn).SetReadBuffer(32 << 10)
	fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	eventually(t, "everything is written", func() bool {
		return f.metric("requests_in_flight") == 0 && f.proxy.deliveries.Pending() == 1
	})
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	eventually(t, "the proxy drains", func() bool { return f.proxy.draining.Load() })
	select {
	case err := <-stopped:
		t.Fatalf("Run() = %v before the client has the response", err)
	case <-time.After(100 * time.Millisecond):
	}
	if _, body, err := f.get("/"); err != nil || !bytes.Equal(body, content) {
		t.Errorf("meanwhile, another client got %d of %d bytes: %v", len(body), len(content), err)
	}
	eventually(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", f.address())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("Run() = %v before the client has the response", err)
	case <-time.After(100 * time.Millisecond):
	}
	_ = client.SetDeadline(time.Now().Add(longest))
	response := require.Value(http.ReadResponse(bufio.NewReader(client), nil))(t)
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the client got %d of %d bytes: %v", len(got), len(content), err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestDrainEnds(t *testing.T) {
	for name, handler := range map[string]http.Handler{
		"a body that does not end": endless,
		"a response that never starts": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}),
		"an unavailable registry": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, handler, func(p *Proxy) { p.config.DrainTimeout = time.Second / 5 })
			result := make(chan error, 1)
			go func() {
				_, _, err := f.get("/")
				result <- err
			}()
			eventually(t, "the request is in flight", func() bool { return f.metric("requests_in_flight") == 1 })
			if err := f.stop(); err != nil {
				t.Errorf("Run() = %v", err)
			}
			if err := <-result; err == nil {
				t.Error("the request was not cut off")
			}
		})
	}
}

// A busy node may accept a connection long before it reads the request.
func TestDrainAnswersAcceptedConnections(t *testing.T) {
	content := newBlob(1000)
	f := start(t, store{content}, func(p *Proxy) { p.limits.silent = longest })
	c := f.dial(t)
	defer c.Close()
	eventually(t, "the connection is accepted", func() bool { return f.proxy.connections.Open() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	eventually(t, "the listener is closed", func() bool {
		other, err := net.Dial("tcp", f.address())
		if err == nil {
			_ = other.Close()
		}
		return err != nil
	})
	time.Sleep(100 * time.Millisecond) // by now, the server has looked at its connections several times
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", content.path())
	_ = c.SetDeadline(time.Now().Add(longest))
	response := require.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, content.data) || !response.Close {
		t.Errorf("%d bytes, %v, close: %t", len(got), err, response.Close)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestListenerFailure(t *testing.T) {
	f := start(t, store{})
	config := f.proxy.config
	config.MetricsListen = ""
	p := require.Value(New(config))(t)
	require.NoError(t, p.Listen(t.Context()))
	_ = p.listeners[0].Close()
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), p.Addrs()[0].String()) {
		t.Errorf("Run() = %v, want an error that names the address", err)
	}
}

func TestMetrics(t *testing.T) {
	content := newBlob(1000)
	f := start(t, store{content}, retryFor(0))
	code, body := f.getAdmin(t, "/readyz?verbose")
	if code != http.StatusOK || !strings.Contains(body, "last response: never\nlast error: none\n") {
		t.Errorf("readyz = %d %s", code, body)
	}
	for _, path := range []string{content.path(), content.path(), "/v2/unknown"} {
		if _, _, err := f.get(path); err != nil {
			t.Fatal(err)
		}
	}
	request, _ := http.NewRequest(http.MethodHead, f.url(content.path()), nil)
	if _, _, err := do(request); err != nil {
		t.Fatal(err)
	}
	broken := f.ca.Files(t, organization, nil)
	broken["tls.key"] = []byte("rubbish")
	tlsfilestest.WriteSecret(t, f.dir, broken)
	if _, err := f.source.Reload(); err == nil {
		t.Fatal("a broken key was accepted")
	}
	f.kill()
	if _, _, err := f.get("/v2/"); err != nil {
		t.Fatal(err)
	}

	code, text := f.getAdmin(t, "/metrics")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	for _, want := range []string{
		`zarf_registry_proxy_requests_total{method="GET",code="200"} 2`,
		`zarf_registry_proxy_requests_total{method="GET",code="404"} 1`,
		`zarf_registry_proxy_requests_total{method="HEAD",code="200"} 1`,
		`zarf_registry_proxy_requests_total{method="GET",code="503"} 1`,
		`zarf_registry_proxy_requests_in_flight 0`,
		`zarf_registry_proxy_requests_waiting 0`,
		`zarf_registry_proxy_upstream_dials_total{result="ok"} 1`,
		`zarf_registry_proxy_upstream_dials_total{result="error"} 1`,
		`zarf_registry_proxy_upstream_retries_total 0`,
		`zarf_registry_proxy_upstream_resumes_total{result="ok"} 0`,
		`zarf_registry_proxy_upstream_response_seconds_bucket{le="30"} 4`,
		`zarf_registry_proxy_upstream_response_seconds_bucket{le="+Inf"} 4`,
		`zarf_registry_proxy_upstream_response_seconds_count 4`,
		`zarf_registry_proxy_certificate_generation 1`,
		`zarf_registry_proxy_certificate_reload_errors_total 1`,
		fmt.Sprintf("zarf_registry_proxy_certificate_expiry_timestamp_seconds %d\n", f.source.Current().Leaf.NotAfter.Unix()),
		fmt.Sprintf(
			"zarf_registry_proxy_certificate_lifetime_seconds %g\n",
			f.source.Current().Leaf.NotAfter.Sub(f.source.Current().Leaf.NotBefore).Seconds(),
		),
		fmt.Sprintf("zarf_registry_proxy_ca_expiry_timestamp_seconds %d\n", f.ca.Certificate.NotAfter.Unix()),
		`zarf_registry_proxy_build_info{version="1.2.3",goversion="go`,
		"process_resident_memory_bytes ",
		"go_goroutines ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing metric %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	last := time.Duration(f.metric("upstream_last_success_timestamp_seconds") * float64(time.Second))
	if age := time.Duration(time.Now().UnixNano()) - last; age < 0 || age > time.Minute {
		t.Errorf("the last success was %s ago", age)
	}
	if got := f.metric("response_bytes_total"); got < 2000 || got > 3000 {
		t.Errorf("%v bytes were counted", got)
	}

	code, body = f.getAdmin(t, "/readyz?verbose")
	if code != http.StatusOK {
		t.Errorf("readyz = %d: an unavailable registry must not make the proxy unready", code)
	}
	for _, want := range []string{"ok\n", "generation 1", "1 failed reloads", registryName, "connection refused"} {
		if !strings.Contains(body, want) {
			t.Errorf("readyz lacks %q:\n%s", want, body)
		}
	}
	for _, path := range []string{"/", "/debug/pprof/", "/v2/", "/metrics/x", "/loaded/x"} {
		if code, _ := f.getAdmin(t, path); code != http.StatusNotFound {
			t.Errorf("%s on the metrics port = %d", path, code)
		}
	}
}

// A repeated failure must not flood the log.
func TestLogIsLimited(t *testing.T) {
	f := start(t, store{}, retryFor(0))
	f.kill()
	began := time.Now()
	for range 50 {
		if _, _, err := f.get("/v2/secret-path"); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, f.stop())
	got := strings.Count(f.log.String(), "giving up")
	if most := 1 + int(time.Since(began)/(10*time.Second)); got < 1 || got > most { // logging.Limited
		t.Errorf("one failure was logged %d times, want 1 to %d:\n%s", got, most, f.log)
	}
	if strings.Contains(f.log.String(), "secret-path") {
		t.Error("requests are logged above the debug level")
	}
}
