package spec

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// shortTimes are a hundredth of the real ones, except for those of a dead collector.
var shortTimes = collect.Times{
	PollInterval: 5 * time.Millisecond, Validity: 100 * time.Millisecond, DrainPeriod: 200 * time.Millisecond,
	WaitTimeout: 5 * time.Second,
	Heartbeat:   50 * time.Millisecond, RenewDeadline: 5 * time.Minute, LeaseDuration: 10 * time.Minute,
}

// openInMemory returns a registry with its storage in memory.
func openInMemory(t *testing.T) *Registry {
	t.Helper()
	return open(t, "inmemory: {}")
}

func open(t *testing.T, section string) *Registry {
	t.Helper()
	config, err := configuration.Parse(strings.NewReader("version: 0.1\nstorage: {" + section + ", delete: {enabled: true}}\n"))
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	driver := require.Value(storage.Open(t.Context(), config.Storage))(t)
	s := require.Value(Open(config, driver, log))(t)
	t.Cleanup(func() { _ = s.Shutdown() })
	s.Rebuilt.Store(true)
	c := collect.New(s.Store, "")
	c.Times = shortTimes
	s.Use(c, volume.New("", log))
	return s
}

// request sends a request and fails the test unless the status is as given.
func (s *Registry) request(t *testing.T, status int, method, path string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := s.send(method, path, body, append([]string{"Content-Type", manifestType}, header...)...)
	if w.Code != status {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, w.Code, status, w.Body)
	}
	return w
}

func (s *Registry) send(method, path string, body io.Reader, header ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(context.Background(), method, path, body)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	s.ServeHTTP(w, r)
	return w
}

// image pushes the blobs of an image with one layer, and returns its manifest.
func (s *Registry) image(t *testing.T, layer string) string {
	t.Helper()
	for _, blob := range []string{"{}", layer} {
		path := "/v2/a/blobs/uploads/?digest=" + digest.FromString(blob).String()
		s.request(t, http.StatusCreated, "POST", path, strings.NewReader(blob))
	}
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":2},`+
		`"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, manifestType, "application/vnd.oci.image.config.v1+json",
		digest.FromString("{}"), "application/vnd.oci.image.layer.v1.tar", digest.FromString(layer), len(layer))
}

// collectInAnotherProcess begins a collection and ends it before anything is removed.
func (s *Registry) collectInAnotherProcess(t *testing.T) {
	t.Helper()
	other := collect.New(&content.Store{Driver: s.Driver}, "")
	other.Times = shortTimes
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := other.Collect(ctx, gc.Request{Timeout: time.Minute}, func(e gc.Event) {
		if e.Phase == gc.Sweeping {
			cancel()
		}
	})
	if err == nil {
		t.Error("there was no garbage")
	}
}

// A process hangs before it writes, and a collection begins meanwhile.
func TestARefusedManifestDoesNotMoveItsTag(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	other := openAt(t, root, unchanged)
	before := other.image(t, "one")
	other.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/v1", strings.NewReader(before))
	after := other.image(t, "two")
	s := openHooked(t, root, &hookedDriver{beforeGet: storage.LayerPath("a", digest.FromString("two")), hook: func() {
		other.collectInAnotherProcess(t)
		time.Sleep(2 * shortTimes.PollInterval)
	}})
	w := s.request(t, http.StatusServiceUnavailable, "PUT", "/v2/a/manifests/v1", strings.NewReader(after))
	if !strings.Contains(w.Body.String(), "push it again") {
		t.Errorf("%s", w.Body)
	}
	if now := s.request(t, http.StatusOK, "GET", "/v2/a/manifests/v1", nil); now.Body.String() != before {
		t.Errorf("the tag has moved to %s", now.Body)
	}
}

// onRead is a body that runs a function when it is read.
type onRead func([]byte) (int, error)

func (f onRead) Read(p []byte) (int, error) { return f(p) }

func TestSlowlySentManifestIsAccepted(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	manifest := s.image(t, "garbage until then")
	sent := strings.NewReader(manifest)
	var once sync.Once
	body := onRead(func(p []byte) (int, error) {
		once.Do(func() {
			s.collectInAnotherProcess(t)
			time.Sleep(2 * shortTimes.Validity)
		})
		return sent.Read(p)
	})
	s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/v1", body)
}
