// Package distributiontest runs distribution's registry, or something in its place, for tests. It knows nothing of
// the project, so that tests of any package can use it.
package distributiontest

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // of the registry
	"github.com/sirupsen/logrus"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Username and Password are what writing to a [Registry] needs.
const Username, Password = "push", "a-long-secret"

// Registry is a server that records its requests.
type Registry struct {
	*httptest.Server
	App http.Handler

	mu       sync.Mutex
	allows   func(*http.Request) bool
	requests []string // method and path with query
	front    func(w http.ResponseWriter, r *http.Request) (handled bool)
}

// NewApp returns an empty registry of distribution.
func NewApp(t testing.TB) http.Handler {
	t.Helper()
	// Not in memory: that driver takes a lock for as long as it copies all there is.
	config := &configuration.Configuration{Storage: configuration.Storage{"filesystem": {"rootdirectory": t.TempDir()}}}
	config.HTTP.RelativeURLs = true
	config.Catalog.MaxEntries = 1000
	logrus.SetOutput(io.Discard) // distribution logs each request
	app := handlers.NewApp(t.Context(), config)
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return app
}

// New starts a server for app, with TLS if secure. Reading is free; writing needs the credential.
func New(t testing.TB, secure bool, app http.Handler) *Registry {
	t.Helper()
	reg := &Registry{App: app, allows: func(r *http.Request) bool {
		return r.Method == http.MethodGet || r.Method == http.MethodHead || hasCredential(r, Username, Password)
	}}
	reg.Server = httptest.NewUnstartedServer(http.HandlerFunc(reg.serve))
	reg.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		reg.StartTLS()
	} else {
		reg.Start()
	}
	t.Cleanup(reg.Close)
	return reg
}

func hasCredential(r *http.Request, username, password string) bool {
	u, p, _ := r.BasicAuth()
	return u == username && p == password
}

// Require makes all requests need another credential, or none if username is empty.
func (r *Registry) Require(username, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allows = func(r *http.Request) bool { return username == "" || hasCredential(r, username, password) }
}

func (r *Registry) serve(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	allowed, front := r.allows(request), r.front
	if allowed {
		r.requests = append(r.requests, request.Method+" "+request.URL.RequestURI())
	}
	r.mu.Unlock()
	switch {
	case !allowed:
		w.Header().Set("WWW-Authenticate", `Basic realm="zarf-registry"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
	case front == nil || !front(w, request):
		r.App.ServeHTTP(w, request)
	}
}

// Host returns the registry's host name and port.
func (r *Registry) Host() string {
	_, host, _ := strings.Cut(r.URL, "://")
	return host
}

// SetFront lets a function handle requests first, unless it is nil.
func (r *Registry) SetFront(front func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.front = front
}

// Count returns how many recorded requests begin with the prefix.
func (r *Registry) Count(prefix string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, request := range r.requests {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	return n
}

// Requests returns the recorded requests, and resets the record.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := r.requests
	r.requests = nil
	return requests
}

// CAFile returns a file with the CA of the registry's certificate.
func (r *Registry) CAFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	require.NoError(t, os.WriteFile(path, ca, 0o600))
	return path
}
