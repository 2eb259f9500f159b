package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// noDeadlines is a connection without deadlines, like a forwarded one.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error      { return nil }
func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }

func podWithPort(annotation string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "p",
		Annotations: map[string]string{names.AnnotationMetricsPort: annotation}}}
}

// serving returns a Registry whose pods respond with the handler on port 9100.
func serving(t *testing.T, handler http.HandlerFunc) *Registry {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &Registry{Forward: func(ctx context.Context, _ *corev1.Pod, port int) (net.Conn, error) {
		if port != 9100 {
			t.Errorf("dialed port %d", port)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
		return noDeadlines{conn}, err
	}}
}

func sampleReport() *loaded.State {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	certificate := func(subject, digit string) loaded.Certificate {
		return loaded.Certificate{Subject: subject, Serial: "1f", SHA256: strings.Repeat(digit, 64), NotBefore: at,
			NotAfter: at.Add(time.Hour)}
	}
	return &loaded.State{
		Certificates: loaded.Certificates{Generation: 3, LoadedAt: at, Leaf: certificate("CN=leaf", "a"),
			TrustedCAs: []loaded.Certificate{certificate("CN=ca", "b")}, ReloadErrors: 2, Problem: "broken"},
		Credentials: &loaded.Credentials{Push: strings.Repeat("c", 64)},
	}
}

func TestLoaded(t *testing.T) {
	want := sampleReport()
	content := require.Value(json.Marshal(want))(t)
	edited := func(edit func(*loaded.State)) string {
		r := sampleReport()
		edit(r)
		return string(require.Value(json.Marshal(r))(t))
	}
	for name, c := range map[string]struct {
		status int
		answer string
		want   string // "" is a report
	}{
		"a report":                 {200, string(content), ""},
		"a newer release's report": {200, `{"more": 1, ` + string(content[1:]), ""},
		"not found":                {404, "404 page not found", "response 404 Not Found"},
		"not ready":                {503, "starting", "response 503 Service Unavailable"},
		"no JSON":                  {200, "# metrics", "invalid character"},
		"trailing data":            {200, string(content) + "{}", "after top-level value"},
		"too large": {200, `{"certificates": "` + strings.Repeat("x", maxLoaded) + `"}`,
			"more than 1048576 bytes"},
		"empty": {200, `{}`, "no generation"},
		"a leaf without a fingerprint": {200, edited(func(r *loaded.State) { r.Certificates.Leaf.SHA256 = "AA:BB" }),
			`leaf: invalid SHA-256 "AA:BB"`},
		"no CA": {200, edited(func(r *loaded.State) { r.Certificates.TrustedCAs = nil }),
			"no CA"},
		"a CA without a fingerprint": {200,
			edited(func(r *loaded.State) { r.Certificates.TrustedCAs[0].SHA256 = "" }),
			`CA "CN=ca": invalid SHA-256 ""`},
	} {
		t.Run(name, func(t *testing.T) {
			r := serving(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != loaded.Path {
					t.Errorf("requested %s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			})
			got, err := r.Loaded(t.Context(), podWithPort("9100"))
			if c.want == "" {
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("error is %v (-want +got):\n%s", err, diff)
				}
				return
			}
			if err == nil || got != nil || !strings.HasPrefix(err.Error(),
				"reading what pod zarf/p has loaded: port 9100: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestPlainOpen(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		open   *bool
		status int
		err    string
	}{
		"open":                            {&yes, 200, ""},
		"closed":                          {&no, 200, ""},
		"a registry that has none":        {nil, 200, ""},
		"a registry that does not answer": {&yes, 503, "response 503"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serving(t, func(w http.ResponseWriter, _ *http.Request) {
				report := sampleReport()
				report.PlainListenerOpen = c.open
				w.WriteHeader(c.status)
				_ = json.NewEncoder(w).Encode(report) // the client may have disconnected
			})
			got, err := r.PlainOpen(t.Context(), podWithPort("9100"))
			if got != (c.open == &yes && c.err == "") || (err == nil) != (c.err == "") ||
				err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("PlainOpen() = %t, %v", got, err)
			}
		})
	}
}

func TestLoadedNamesThePod(t *testing.T) {
	refused := errors.New("port 9100 of pod zarf/p: failed to execute portforward: connect: connection refused")
	without := podWithPort("9100")
	without.Annotations = nil
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		conn net.Conn
		err  error
		want string
	}{
		"without a port": {without, nil, nil,
			"reading what pod zarf/p has loaded: annotation zarf-registry/metrics-port is missing"},
		"with a word for a port": {podWithPort("metrics"), nil, nil,
			`reading what pod zarf/p has loaded: annotation zarf-registry/metrics-port: invalid port "metrics"`},
		"with an impossible port": {podWithPort("65536"), nil, nil, `invalid port "65536"`},
		"without a connection": {podWithPort("9100"), nil, errors.New("pods \"p\" is forbidden"),
			`reading what pod zarf/p has loaded: port 9100: pods "p" is forbidden`},
		"without a listener": {podWithPort("9100"), failing{err: refused}, nil, "connection refused"},
	} {
		r := &Registry{Forward: func(context.Context, *corev1.Pod, int) (net.Conn, error) { return c.conn, c.err }}
		if report, err := r.Loaded(t.Context(), c.pod); err == nil || report != nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestLoadedTimesOut(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"that says nothing": func(server net.Conn) { _, _ = io.Copy(io.Discard, server) },
		"that stops halfway": func(server net.Conn) {
			// net/http rejects a response that comes before its request.
			if _, err := http.ReadRequest(bufio.NewReader(server)); err != nil {
				t.Error(err)
			}
			_, _ = fmt.Fprint(server, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			defer server.Close()
			go serve(server)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the test's time is over"))
			defer cancel()
			r := &Registry{Forward: func(context.Context, *corev1.Pod, int) (net.Conn, error) { return noDeadlines{client}, nil }}
			_, err := r.Loaded(ctx, podWithPort("9100"))
			if err == nil || !strings.Contains(err.Error(),
				"reading what pod zarf/p has loaded: port 9100: the test's time is over") {
				t.Errorf("a pod %s: error is %v", name, err)
			}
			if _, err := client.Write([]byte("x")); err == nil {
				t.Errorf("a pod %s: the connection stays open", name)
			}
		})
	}
}

func TestFetch(t *testing.T) {
	r := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "metric 1\n")
	})
	for name, c := range map[string]struct{ port, path, want, fail string }{
		"a response":      {"9100", "/metrics", "metric 1\n", ""},
		"an unknown path": {"9100", "/loaded", "", "response 404 Not Found"},
		"an invalid port": {"http", "/metrics", "", `invalid port "http"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := r.Fetch(t.Context(), podWithPort(c.port), c.path, &out)
			if out.String() != c.want || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%q, error %v", out.String(), err)
			}
		})
	}
}
