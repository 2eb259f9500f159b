package cli

import (
	"context"
	"encoding/json"
	"errors"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/settings"
)

// fakeWay reaches a server of the test instead of a pod.
type fakeWay struct {
	podWay
	dial func(ctx context.Context) (net.Conn, error)
	port int // that was dialled last
}

func (w *fakeWay) dialPod(ctx context.Context, _ *corev1.Pod, port int) (net.Conn, error) {
	w.port = port
	conn, err := w.dial(ctx)
	if err != nil {
		return nil, err
	}
	return noDeadlines{conn}, nil
}

// noDeadlines is a connection that knows none, as a tunnel.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error      { return nil }
func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }

func askablePod(annotation string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "p", Annotations: map[string]string{names.AnnotationMetricsPort: annotation}}}
}

func sampleReport() *reloadstatus.Report {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	certificate := func(subject, digit string) reloadstatus.Certificate {
		return reloadstatus.Certificate{Subject: subject, Serial: "1f", SHA256: strings.Repeat(digit, 64), NotBefore: at, NotAfter: at.Add(time.Hour)}
	}
	return &reloadstatus.Report{
		Certificates: reloadstatus.Certificates{Generation: 3, LoadedAt: at, Leaf: certificate("CN=leaf", "a"), Authorities: []reloadstatus.Certificate{certificate("CN=ca", "b")}, ReloadErrors: 2, Problem: "broken"},
		Credentials:  &reloadstatus.Credentials{Push: strings.Repeat("c", 64)},
	}
}

func TestAPodSaysWhatItHasLoaded(t *testing.T) {
	want := sampleReport()
	content, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(edit func(*reloadstatus.Report)) string {
		r := sampleReport()
		edit(r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, c := range map[string]struct {
		status int
		answer string
		want   string // "" is a report
	}{
		"an answer":                          {200, string(content), ""},
		"one of a newer release":             {200, `{"more": 1, ` + string(content[1:]), ""},
		"no such page":                       {404, "404 page not found", "runs a release that cannot be asked"},
		"no answer yet":                      {503, "starting", "it answers 503 Service Unavailable"},
		"no JSON":                            {200, "# metrics", "invalid character"},
		"more than the report":               {200, string(content) + "{}", "after top-level value"},
		"more than anybody needs":            {200, `{"certificates": "` + strings.Repeat("x", maxLoaded) + `"}`, "has more than 1048576 bytes"},
		"nothing":                            {200, `{}`, "names no generation"},
		"a leaf without a fingerprint":       {200, edited(func(r *reloadstatus.Report) { r.Certificates.Leaf.SHA256 = "AA:BB" }), `leaf has the SHA-256 "AA:BB"`},
		"no authority":                       {200, edited(func(r *reloadstatus.Report) { r.Certificates.Authorities = nil }), "names no authority"},
		"an authority without a fingerprint": {200, edited(func(r *reloadstatus.Report) { r.Certificates.Authorities[0].SHA256 = "" }), `authority "CN=ca" has the SHA-256 ""`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != reloadstatus.Path {
					t.Errorf("it asked %s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			}))
			defer server.Close()
			way := &fakeWay{dial: func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
			}}
			r := &hookRegistry{way: way}
			got, err := r.Loaded(t.Context(), askablePod("9100"))
			if way.port != 9100 {
				t.Errorf("it dialled port %d", way.port)
			}
			if c.want == "" {
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("error is %v (-want +got):\n%s", err, diff)
				}
				return
			}
			if err == nil || got != nil || !strings.HasPrefix(err.Error(), "asking port 9100 of pod zarf/p what it has loaded: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestAPodThatCannotBeAskedIsNamed(t *testing.T) {
	refused := errors.New("port 9100 of pod zarf/p: failed to execute portforward: connect: connection refused")
	without := askablePod("9100")
	without.Annotations = nil
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		conn net.Conn
		err  error
		want string
	}{
		"of a former release":     {without, nil, nil, "asking pod zarf/p what it has loaded: it runs a release that cannot be asked"},
		"with no port":            {askablePod("metrics"), nil, nil, `asking pod zarf/p what it has loaded: its annotation zarf-registry/metrics-port is "metrics", which is no port`},
		"with an impossible port": {askablePod("65536"), nil, nil, `is "65536", which is no port`},
		"without a tunnel":        {askablePod("9100"), nil, errors.New("pods \"p\" is forbidden"), `asking port 9100 of pod zarf/p what it has loaded: pods "p" is forbidden`},
		"nobody listens":          {askablePod("9100"), failing{err: refused}, nil, "connection refused"},
	} {
		r := &hookRegistry{way: &fakeWay{dial: func(context.Context) (net.Conn, error) { return c.conn, c.err }}}
		if report, err := r.Loaded(t.Context(), c.pod); err == nil || report != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestAPodThatDoesNotAnswerHoldsNobodyUp(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"that says nothing": func(server net.Conn) { _, _ = io.Copy(io.Discard, server) },
		"that stops halfway": func(server net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, server) }()
			_, _ = fmt.Fprint(server, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		},
	} {
		client, server := net.Pipe()
		go serve(server)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("the test's time is over"))
		r := &hookRegistry{way: &fakeWay{dial: func(context.Context) (net.Conn, error) { return client, nil }}}
		_, err := r.Loaded(ctx, askablePod("9100"))
		if err == nil || !strings.Contains(err.Error(), "asking port 9100 of pod zarf/p what it has loaded: the test's time is over") {
			t.Errorf("a pod %s: error is %v", name, err)
		}
		if _, err := client.Write([]byte("x")); err == nil {
			t.Errorf("a pod %s: the connection stays open", name)
		}
		cancel()
		server.Close()
	}
}

func TestWhoDoesNotPushNeedsNoNodes(t *testing.T) {
	client := fake.NewClientset()
	for _, inside := range []string{"", "10.0.0.1"} {
		t.Setenv("KUBERNETES_SERVICE_HOST", inside)
		t.Setenv("KUBECONFIG", "")
		r, err := newHookRegistry(t.Context(), settings.Settings{Namespace: "zarf"}, connection{client: client, config: &rest.Config{}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if r.HookImage() != nil || len(client.Actions()) != 0 {
			t.Errorf("its image is %v, and it asked for %v", r.HookImage(), client.Actions())
		}
	}
}
