package pull

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeCache serves blobs of some bytes. Each takes a second.
type fakeCache struct {
	mu       sync.Mutex
	requests map[string]int
	now      int
	most     int
	received int64 // bytes of bodies
}

func (c *fakeCache) RoundTrip(r *http.Request) (*http.Response, error) {
	path := r.URL.Path
	c.mu.Lock()
	c.requests[path]++
	n := c.requests[path]
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	switch {
	case strings.HasSuffix(path, "/breaks") && n < 3:
		return nil, errors.New("connection reset")
	case strings.HasSuffix(path, "/full"):
		http.Error(w, "no space", http.StatusServiceUnavailable)
	case strings.HasSuffix(path, "/gone"):
		http.Error(w, "blob unknown", http.StatusNotFound)
	case strings.Contains(path, "/manifests/"):
		if r.Header.Get("Range") != "" || r.Header.Get("Accept") == "" {
			return nil, errors.New("a manifest is requested as a blob")
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("{}"))
	case strings.HasSuffix(path, "/ignores"):
		r.Header.Del("Range")
		fallthrough
	case strings.HasSuffix(path, "/large"):
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, 1<<20)))
	case strings.HasSuffix(path, "/empty"):
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(nil))
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader([]byte("some")))
	}
	response := w.Result()
	c.mu.Lock()
	defer c.mu.Unlock()
	if response.StatusCode < 300 && !strings.HasSuffix(path, "/ignores") {
		c.received += int64(w.Body.Len())
	}
	return response, nil
}

func fill(t *testing.T, ctx context.Context, images ...Image) ([]Result, *fakeCache) {
	t.Helper()
	c := &fakeCache{requests: map[string]int{}}
	return Fill(ctx, []Cache{{Pod: "c1", Object: "pod zarf/c1", Transport: c, Host: "r-cache.zarf.svc:5000"}}, images,
		slog.New(slog.DiscardHandler)), c
}

func TestCachesAreFilled(t *testing.T) {
	for name, c := range map[string]struct {
		want     Result
		message  string
		requests int
	}{
		"large":   {Result{Outcome: Filled, Seconds: 1}, "", 1},
		"empty":   {Result{Outcome: Filled, Seconds: 1}, "", 1},
		"breaks":  {Result{Outcome: Filled, Seconds: 9}, "", 3},
		"gone":    {Result{Outcome: Failed, Seconds: 1}, "/v2/a/blobs/gone: refused: response 404 Not Found: ", 1},
		"ignores": {Result{Outcome: Failed, Seconds: 1}, "not the last byte", 1},
		"full":    {Result{Outcome: Failed, Seconds: 37}, "response 503 Service Unavailable: no space", 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := "/v2/a/blobs/" + name
				results, cache := fill(t, t.Context(), Image{"a:1", []string{"/v2/a/manifests/m", path}},
					Image{"b:1", []string{"/v2/b/blobs/b"}})
				if len(results) != 2 || results[1].Outcome != Filled || results[1].Image != "b:1" {
					t.Fatalf("%+v", results)
				}
				got := results[0]
				if got.Name != "c1" || got.Outcome != c.want.Outcome || got.Seconds != c.want.Seconds ||
					!strings.Contains(got.Message, c.message) || (got.Remedy == "") != (c.message == "") {
					t.Errorf("%+v, want %+v %q", got, c.want, c.message)
				}
				if cache.requests[path] != c.requests {
					t.Errorf("%d requests, want %d", cache.requests[path], c.requests)
				}
				if cache.received > 4 { // a manifest, and a byte of each blob
					t.Errorf("%d bytes were transferred", cache.received)
				}
			})
		})
	}
}

func TestCachesAreFilledWithBoundedConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		image := Image{Reference: "a:1", Paths: slices.Repeat([]string{"/v2/a/blobs/x"}, 20)}
		_, cache := fill(t, t.Context(), image, image)
		if took := time.Since(begin); cache.most != RequestsPerCache || took != 5*time.Second {
			t.Errorf("%d requests at once, %s", cache.most, took)
		}
	})
}

func TestFillingEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, errors.New("too slow"))
		defer cancel()
		results, _ := fill(t, ctx, Image{"a:1", []string{"/v2/a/blobs/full"}})
		if len(results) != 1 || results[0].Seconds != 5 || !strings.Contains(results[0].Message, "too slow") {
			t.Errorf("%+v", results)
		}
	})
}
