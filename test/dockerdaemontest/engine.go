package dockerdaemontest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Engine answers as a Docker engine does.
type Engine struct {
	// Version is that of the API; 1.47 where it is empty.
	Version string
	// Images are the IDs of the images that it has, by name with tag.
	Images map[string]string
	// Size is that of each image, in bytes.
	Size int64
	// Stream writes the save stream of the images. It may break off with the
	// functions of this package. One that returns an error is answered as the
	// engine does it: as an error where nothing was written, else within the stream.
	Stream func(w io.Writer, names []string) error

	mu       sync.Mutex
	requests []string
}

// Requests are the requests so far: method, path and query.
func (e *Engine) Requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.requests...)
}

// ListenUnix starts the engine at a socket, and sets the environment so that it is
// the one that is found.
func (e *Engine) ListenUnix(t *testing.T) {
	t.Helper()
	// Not t.TempDir: its names may be longer than a socket's may be.
	dir := shortTempDir(t)
	path := filepath.Join(dir, "docker.sock")
	listener := require.Value(net.Listen("unix", path))(t)
	server := httptest.NewUnstartedServer(e)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	ClearEnvironment(t)
	t.Setenv("DOCKER_HOST", "unix://"+path)
}

// ClearEnvironment makes a test independent of the user's docker configuration. It returns an empty directory for
// the configuration.
func ClearEnvironment(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
		"DOCKER_API_VERSION"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	return dir
}

var versioned = regexp.MustCompile(`^/v1\.[0-9]+/`)

// ServeHTTP implements [http.Handler].
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.requests = append(e.requests, r.Method+" "+r.URL.RequestURI())
	e.mu.Unlock()
	version := cmp.Or(e.Version, "1.47")
	w.Header().Set("Api-Version", version)
	w.Header().Set("Ostype", "linux")
	w.Header().Set("Server", "Docker/27.5.1 (linux)")
	path := versioned.ReplaceAllString(r.URL.Path, "/")
	name, isInspect := strings.CutSuffix(strings.TrimPrefix(path, "/images/"), "/json")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		fail(w, http.StatusMethodNotAllowed, "method not allowed")
	case path == "/_ping":
		_, _ = io.WriteString(w, "OK")
	case path == "/version":
		answer(w, http.StatusOK, map[string]string{"ApiVersion": version, "MinAPIVersion": "1.24"})
	case path == "/images/get":
		e.save(w, r.URL.Query()["names"])
	case isInspect:
		id, ok := e.find(name)
		if !ok {
			fail(w, http.StatusNotFound, "No such image: "+name)
			return
		}
		answer(w, http.StatusOK, map[string]any{"Id": id, "RepoTags": []string{name}, "Size": e.Size})
	default:
		fail(w, http.StatusNotFound, "page not found")
	}
}

// find finds an image as the engine does: by its name, or by its ID or the
// beginning of that.
func (e *Engine) find(name string) (id string, ok bool) {
	if !strings.Contains(name, ":") {
		if id, ok := e.Images[name+":latest"]; ok {
			return id, true
		}
	}
	if id, ok := e.Images[name]; ok {
		return id, true
	}
	for _, id := range e.Images {
		if strings.HasPrefix(id, "sha256:"+strings.TrimPrefix(name, "sha256:")) {
			return id, true
		}
	}
	return "", false
}

func (e *Engine) save(w http.ResponseWriter, names []string) {
	w.Header().Set("Content-Type", "application/x-tar")
	out := &counted{w: w}
	if err := e.Stream(out, names); err != nil {
		if out.n == 0 {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		// An engine writes the message into the stream.
		_, _ = fmt.Fprintf(w, "{\"errorDetail\":{\"message\":%s},\"error\":%[1]s}\r\n", toJSON(err.Error()))
	}
}

type counted struct {
	w http.ResponseWriter
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Flush implements [http.Flusher].
func (c *counted) Flush() { c.w.(http.Flusher).Flush() }

// Reset resets the connection of a stream.
func Reset(w io.Writer) {
	conn, _, err := w.(*counted).w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err) // of a handler that this package started
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

func fail(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"message": message})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// shortTempDir is a directory whose name is short enough for a socket in it.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir := require.Value(os.MkdirTemp("", "engine"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
