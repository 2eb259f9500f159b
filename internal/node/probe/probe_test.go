package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const imageDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// registry has one image, zarf/agent:1.
func registry(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	switch r.URL.Path {
	case "/v2/":
	case "/v2/zarf/agent/manifests/1", "/v2/zarf/agent/manifests/latest", "/v2/zarf/agent/manifests/" + imageDigest:
		w.Header().Set("Docker-Content-Digest", imageDigest)
	default:
		ociAnswer(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
	}
}

func ociAnswer(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
}

func TestRun(t *testing.T) {
	answer := func(status int, code, message string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { ociAnswer(w, status, code, message) }
	}
	for description, tt := range map[string]struct {
		handler http.HandlerFunc
		image   string
		reason  Reason
		says    []string
		steps   []string // method, path, status
	}{
		"a registry": {registry, "", "", nil, []string{"GET /v2/ 200"}},
		"a registry that has the image": {
			registry, "zarf/agent:1", "", nil, []string{"GET /v2/ 200", "HEAD /v2/zarf/agent/manifests/1 200"}},
		"an image without a tag": {
			registry, "zarf/agent", "", nil, []string{"GET /v2/ 200", "HEAD /v2/zarf/agent/manifests/latest 200"}},
		"an image with a digest": {
			registry, "zarf/agent@" + imageDigest, "", nil, []string{"GET /v2/ 200",
				"HEAD /v2/zarf/agent/manifests/" + imageDigest + " 200"}},
		"an image with the address before it": {
			registry, "ADDRESS/zarf/agent:1", "", nil, []string{"GET /v2/ 200", "HEAD /v2/zarf/agent/manifests/1 200"}},
		"a registry that does not have the image": {
			registry, "zarf/other:2", ReasonUnknownImage, []string{"zarf/other:2", "MANIFEST_UNKNOWN: manifest unknown",
				"images push"},
			[]string{"GET /v2/ 200", "HEAD /v2/zarf/other/manifests/2 404", "GET /v2/zarf/other/manifests/2 404"}},
		"a proxy whose registry is away": {
			answer(503, "UNAVAILABLE", "the registry r:5000 does not answer: connection refused"), "zarf/agent:1",
			ReasonUnavailable, []string{"the registry r:5000 does not answer: connection refused", "Service"},
			[]string{"GET /v2/ 503"}},
		"a gateway without a registry": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", 502) }, "",
			ReasonUnavailable, []string{"502 Bad Gateway"}, []string{"GET /v2/ 502"}},
		"a registry that wants a login": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Www-Authenticate", `Basic realm="zarf-registry"`)
				ociAnswer(w, 401, "UNAUTHORIZED", "authentication required")
			}, "", ReasonUnauthorized, []string{`Basic realm="zarf-registry"`, "UNAUTHORIZED: authentication required",
				"imagePullSecrets"}, []string{"GET /v2/ 401"}},
		"a registry that denies": {
			answer(403, "DENIED", "not for you"), "", ReasonDenied, []string{"DENIED: not for you"}, []string{"GET /v2/ 403"}},
		"a registry that is broken": {
			answer(500, "UNKNOWN", "disk full"), "", ReasonUnexpectedHTTP, []string{"500", "disk full"},
			[]string{"GET /v2/ 500"}},
		"a web server": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello") }, "",
			ReasonNotARegistry, []string{"not a registry"}, []string{"GET /v2/ 200"}},
		"a web server without such a page": {
			http.NotFound, "", ReasonNotARegistry, []string{"404"}, []string{"GET /v2/ 404"}},
		"a web server that redirects": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", 302) }, "",
			ReasonUnexpectedHTTP, []string{"302"}, []string{"GET /v2/ 302"}},
		"a server that breaks off": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "",
			ReasonBroken, []string{"did not respond in HTTP", "EOF"}, []string{"GET /v2/ 0"}},
		"a server that says nothing": {
			func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "",
			ReasonTimeout, []string{"within 2s"}, []string{"GET /v2/ 0"}},
	} {
		t.Run(description, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.handler)
			defer server.Close()
			address := server.Listener.Addr().String()
			config := Config{Address: address, Image: strings.Replace(tt.image, "ADDRESS", address, 1)}
			if tt.reason == ReasonTimeout {
				config.Timeout = 2 * time.Second
			}
			result := run(t, config)
			expect(t, result, tt.reason, tt.says...)
			var steps []string
			for _, step := range result.Steps {
				steps = append(steps, fmt.Sprintf("%s %s %d", step.Method, strings.TrimPrefix(step.URL, "http://"+address),
					step.Status))
			}
			if diff := cmp.Diff(tt.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func run(t *testing.T, config Config) Result {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = time.Minute
	}
	return require.Value(Run(context.Background(), config))(t)
}

func expect(t *testing.T, result Result, reason Reason, says ...string) {
	t.Helper()
	if result.Reason != reason || result.OK != (reason == "") || (result.Problem == "") != result.OK ||
		(result.Advice == "") != result.OK {
		t.Errorf("result = %+v, want reason %q", result, reason)
	}
	for _, want := range says {
		if !strings.Contains(result.Problem+"\n"+result.Advice, want) {
			t.Errorf("%q, %q does not say %q", result.Problem, result.Advice, want)
		}
	}
}

func TestNothingListens(t *testing.T) {
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	_ = listener.Close()
	expect(t, run(t, Config{Address: address}), ReasonRefused, "nothing listens on "+address, "hostPort",
		"kube-proxy", "registryProxy=true")
}

func TestAddressThatIsNone(t *testing.T) {
	expect(t, run(t, Config{Address: "127.0.0.1:99999"}), ReasonUnreachable, "127.0.0.1, or [::1]")
}

func TestTLS(t *testing.T) {
	ca, other := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "other")
	certificate, key := ca.Issue(t, "node", "127.0.0.1")
	pair := require.Value(tls.X509KeyPair(certificate, key))(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(registry))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.StartTLS()
	defer server.Close()
	address := server.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	plain := httptest.NewServer(http.HandlerFunc(registry))
	defer plain.Close()
	alerting := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer alerting.Close()
	go func() {
		if c, err := alerting.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 4<<10))
			_, _ = io.WriteString(c, "\x15\x03\x01\x00\x02\x02\x0a") // fatal: unexpected message, as OpenSSL answers
			_ = c.Close()
		}
	}()
	pool := func(ca *tlsfilestest.CA) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(ca.Certificate)
		return pool
	}
	for description, tt := range map[string]struct {
		config Config
		reason Reason
		says   string
	}{
		"the right CA":          {Config{Address: address, TLS: true, RootCAs: pool(ca), Image: "zarf/agent:1"}, "", ""},
		"another CA":            {Config{Address: address, TLS: true, RootCAs: pool(other)}, ReasonCertificate, "--ca-file"},
		"another address":       {Config{Address: "127.0.0.2:" + port, TLS: true, RootCAs: pool(ca)}, ReasonRefused, ""},
		"HTTP to an HTTPS port": {Config{Address: address}, ReasonWantsTLS, "--tls"},
		"HTTP to a TLS port":    {Config{Address: alerting.Addr().String()}, ReasonWantsTLS, "--tls"},
		"HTTPS to an HTTP port": {Config{Address: plain.Listener.Addr().String(), TLS: true, RootCAs: pool(ca)}, ReasonNoTLS,
			"plain HTTP"},
		"a name that is not its": {Config{Address: "localhost:" + port, TLS: true, RootCAs: pool(ca)}, ReasonCertificate,
			"another address"},
	} {
		t.Run(description, func(t *testing.T) { expect(t, run(t, tt.config), tt.reason, tt.says) })
	}
}

func TestRunRefuses(t *testing.T) {
	for description, config := range map[string]Config{
		"no address":                   {},
		"an address without a port":    {Address: "127.0.0.1"},
		"an IPv6 address unbracketed":  {Address: "::1:31999"},
		"a URL":                        {Address: "http://127.0.0.1:31999"},
		"an address with a user":       {Address: "u@127.0.0.1:31999"},
		"an image with a space":        {Address: "127.0.0.1:1", Image: "a b"},
		"an image with an escape":      {Address: "127.0.0.1:1", Image: "a%2f:1"},
		"an image without a name":      {Address: "127.0.0.1:1", Image: ":1"},
		"an image without a tag":       {Address: "127.0.0.1:1", Image: "a:"},
		"an image of another registry": {Address: "127.0.0.1:1", Image: "127.0.0.1:2/a:1"},
		"a digest with a slash":        {Address: "127.0.0.1:1", Image: "a@b/c"},
		"a timeout in the past":        {Address: "127.0.0.1:1", Timeout: -1},
	} {
		t.Run(description, func(t *testing.T) {
			if config.Timeout == 0 {
				config.Timeout = time.Second
			}
			if result, err := Run(context.Background(), config); err == nil {
				t.Errorf("Run() = %+v, want an error", result)
			}
		})
	}
}

func TestOCIError(t *testing.T) {
	for body, want := range map[string]string{
		`{"errors":[{"code":"DENIED","message":"a \"b\" c","detail":null}]}`:    `DENIED: a "b" c`,
		`{"errors": [{"code": "DENIED", "message": "a"}, {"code": "UNKNOWN"}]}`: "DENIED: a",
		`{"errors":[{"code":"DENIED"}]}`:                                        "DENIED",
		`{"errors":[]}`:                                                         "",
		`<html>`:                                                                "",
		`{"code":`:                                                              "",
		`{"code":5,"message":"a`:                                                "",
		"":                                                                      "",
	} {
		if _, message := ociError([]byte(body)); message != want {
			t.Errorf("ociError(%s) = %q, want %q", body, message, want)
		}
	}
}

func TestResultAsJSON(t *testing.T) {
	result := Result{Steps: []Step{{Method: "GET", URL: "http://a/v2/", Milliseconds: 5}}, Reason: ReasonRefused,
		Problem: "p", Advice: "a"}
	got := require.Value(json.Marshal(result))(t)
	want := `{"ok":false,"steps":[{"method":"GET","url":"http://a/v2/","milliseconds":5}],"reason":"refused","problem":"p","advice":"a"}`
	if string(got) != want {
		t.Errorf("JSON = %s, want %s", got, want)
	}
}
