package registry

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/freeport"
	"github.com/zarf-dev/zarf-registry/internal/s3test"
)

// With the path of versitygw in [s3test.ProgramVariable], all tests of this package store in S3: directories for
// tests are in its bucket, so tests can still look at files, and change them.
var s3 *s3test.Server

// s3Requests is locked for reading during a request to S3. It guards s3Ended, the paths in S3 of registries that have
// stopped.
var (
	s3Requests sync.RWMutex
	s3Ended    []string
)

// runTests runs the tests, with S3 if it is available.
func runTests(m *testing.M) (code int, err error) {
	program := os.Getenv(s3test.ProgramVariable)
	if program == "" {
		return m.Run(), nil
	}
	root, err := os.MkdirTemp("", "zarf-registry-s3-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	bucket := filepath.Join(root, "bucket")
	if err := os.Mkdir(bucket, 0o700); err != nil {
		return 0, err
	}
	if err := os.Setenv("TMPDIR", bucket); err != nil {
		return 0, err
	}
	address, err := freeport.Find()
	if err != nil {
		return 0, err
	}
	if s3, err = s3test.Start(program, address, bucket); err != nil {
		return 0, err
	}
	defer s3.Stop()
	target, err := url.Parse(s3.Endpoint)
	if err != nil {
		return 0, err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s3Requests.RLock()
		defer s3Requests.RUnlock()
		if slices.ContainsFunc(s3Ended, func(path string) bool { return strings.HasPrefix(r.URL.Path, path) }) {
			http.Error(w, "the registry has stopped", http.StatusGone)
			return
		}
		// A context that nobody can cancel would make the proxy watch the connection instead.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		defer cancel()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	}))
	defer front.Close()
	s3.Endpoint = front.URL
	return m.Run(), nil
}

// storageAt returns the section storage of a configuration that stores in a directory for tests.
func storageAt(root string, more ...string) string {
	driver := fmt.Sprintf("filesystem: {rootdirectory: %s}", root)
	if s3 != nil {
		driver = s3.Driver(root)
	}
	return "storage: {" + strings.Join(append([]string{driver}, more...), ", ") + "}\n"
}

// settle waits until S3 has carried out all requests of a registry that has stopped, and refuses those that arrive later:
// they would make the removal of its directory fail.
func settle(root string) {
	if s3 == nil {
		return
	}
	s3Requests.Lock()
	defer s3Requests.Unlock()
	bucket := os.TempDir()
	s3Ended = append(s3Ended, "/"+filepath.Base(bucket)+strings.TrimPrefix(root, bucket)+"/")
}

// older waits until what is stored is older than what will be stored: S3 tells some times in whole seconds only.
func older() {
	if s3 != nil {
		time.Sleep(time.Second)
	}
}

// filesystemOnly skips a test of the filesystem driver if the tests use S3.
func filesystemOnly(t *testing.T) {
	t.Helper()
	if s3 != nil {
		t.Skip("it tests storage in a directory")
	}
}
