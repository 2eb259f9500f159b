package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// counter counts the concurrent requests that a registry gets.
type counter struct {
	*httptest.Server
	mu            sync.Mutex
	current, most int
}

// newCounter stands before a registry and counts the requests whose path contains part. It keeps each for a
// while, until there were want at once.
func newCounter(t *testing.T, registry testRegistry, part string, want int) *counter {
	t.Helper()
	c := &counter{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, part) {
			registry.Config.Handler.ServeHTTP(w, r)
			return
		}
		c.add(1)
		answer := httptest.NewRecorder() // the client must not go on before the request is counted as done
		registry.Config.Handler.ServeHTTP(answer, r)
		for end := time.Now().Add(50 * time.Second); c.peak() < want && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
		c.add(-1)
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current += n
	c.most = max(c.most, c.current)
}

func (c *counter) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

func (c *counter) Host() string { return strings.TrimPrefix(c.URL, "http://") }

func TestTransfersAreLimited(t *testing.T) {
	from := newTestRegistry(t, false, "", "")
	refs := []string{"one:1", "two:1", "three:1", "four:1"}
	for _, ref := range refs {
		from.put(t, ref, "amd64")
	}
	for _, limit := range []int{1, 3} {
		t.Run(fmt.Sprint("at most ", limit), func(t *testing.T) {
			c := newImageCommand(t, nil)
			run := func(counting *counter, command string, args ...string) {
				t.Helper()
				plain := map[string]string{"copy": "--to-plain-http"}
				c.run(append([]string{command, cmp.Or(plain[command], "--plain-http"), "--oci-concurrency", fmt.Sprint(limit)}, args...)...)
				if most := counting.peak(); most != limit {
					t.Errorf("images %s: %d requests at once, want %d", command, most, limit)
				}
			}
			transfer := []string{"--no-store", "--platform", "linux/amd64"}
			at := func(counting *counter) (images []string) {
				for _, ref := range refs {
					images = append(images, counting.Host()+"/"+ref)
				}
				return images
			}
			archive := filepath.Join(c.home, "images.tar")
			source := newCounter(t, from, "/blobs/", limit)
			run(source, "pull", append(append(transfer, at(source)...), "--out", archive)...)

			target := newCounter(t, newTestRegistry(t, false, "", ""), "/blobs/", limit)
			run(target, "push", archive, "--to", target.Host())

			source = newCounter(t, from, "/blobs/", limit)
			target = newCounter(t, newTestRegistry(t, false, "", ""), "/blobs/", limit)
			run(target, "copy", append(append(transfer, at(source)...), "--from-plain-http", "--to", target.Host())...)
			if most := source.peak(); most > limit {
				t.Errorf("images copy: %d downloads at once, want %d", most, limit)
			}

			listed := newCounter(t, from, "/tags/", limit)
			run(listed, "list", "--from", listed.Host(), "--no-store")
		})
	}
}
