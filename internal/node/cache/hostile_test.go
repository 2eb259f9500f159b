package cache

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// One repository whose requests fail, or take too long, does not make a cache serve stale content of the others.
//
// Claim (503 of the registry; no response): Requests and pushes of one client do not make caches serve stale
// content to others.
func TestErrorsOfOneRepository(t *testing.T) {
	const tag = "/v2/team/app/manifests/latest"
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, respond := range map[string]http.HandlerFunc{
		"503 of the registry": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		"503 of its front": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		"500 of the registry": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
			w.WriteHeader(http.StatusInternalServerError)
		},
		"a broken connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"no response":         func(http.ResponseWriter, *http.Request) { <-hang },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) { c.StaleFor = time.Hour })
			first, second := []byte(`{"n":1}`), []byte(`{"n":2}`)
			mine := "/v2/tenant/app/manifests/latest"
			f.add(first, tag, "/v2/team/app/manifests/"+digest.FromBytes(first).String(), mine,
				"/v2/tenant/app/manifests/"+digest.FromBytes(first).String())
			f.get(t, tag, first)
			f.get(t, mine, first)
			var asked atomic.Int64
			f.override(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/v2/tenant/") {
					asked.Add(1)
					respond(w, r)
					return
				}
				f.serve(w, r)
			})
			f.status(t, "/v2/tenant/app/manifests/other", http.StatusServiceUnavailable)
			if asked.Load() == 0 {
				t.Fatal("the registry was not asked")
			}
			f.add(second, tag, "/v2/team/app/manifests/"+digest.FromBytes(second).String())
			f.get(t, tag, second)
			// What fails itself is served as it was.
			if response := f.status(t, mine, http.StatusOK); response.Header.Get("Warning") == "" {
				t.Errorf("without a warning: %v", response.Header)
			}
		})
	}
}

// An intermediary that responds for the registry does not reach it.
func TestGatewayErrorsAreOfTheRegistry(t *testing.T) {
	const tag = "/v2/team/app/manifests/latest"
	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		f := start(t, func(c *Config) { c.StaleFor = time.Hour })
		f.add([]byte("{}"), tag, "/v2/team/app/manifests/"+digest.FromString("{}").String())
		f.status(t, tag, http.StatusOK)
		f.override(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		f.status(t, "/v2/team/app/manifests/other", http.StatusServiceUnavailable)
		if f.retryAt.Load() == 0 {
			t.Errorf("%d: it counts as reachable", status)
		}
		f.retryAt.Store(time.Now().Add(time.Hour).UnixNano())
		asked := f.count("HEAD", tag)
		if response := f.status(t, tag, http.StatusOK); response.Header.Get("Warning") == "" || f.count("HEAD", tag) != asked {
			t.Errorf("%d: %v", status, response.Header)
		}
	}
}

// A response that is passed on must not take forever, in either direction.
func TestRelayedResponsesStall(t *testing.T) {
	f := start(t)
	f.override(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "01234")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v2/", nil)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	func() {
		defer func() {
			if recovered := recover(); recovered != http.ErrAbortHandler {
				t.Errorf("recovered %v", recovered)
			}
		}()
		t.Errorf("relay() = %v", f.relay(w, r))
	}()
	if ctx.Err() != nil {
		t.Error("the registry may stall a response")
	}
	if until := time.Until(w.last); until < writeTimeout-longest || until > writeTimeout {
		t.Errorf("the client's deadline is in %s", until)
	}
}

// deadlines is a response whose deadline is recorded.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last = t
	return nil
}
