package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestErrorsAreNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		status int
		want   string
	}{
		{denied("no"), http.StatusForbidden, `"DENIED","message":"no"`},
		{fmt.Errorf("waiting: %w", context.Canceled), http.StatusServiceUnavailable, "the request was canceled"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "the request was canceled"},
		{errors.New("disk gone"), http.StatusInternalServerError, `"UNKNOWN","message":"disk gone"`},
	} {
		w := httptest.NewRecorder()
		writeError(w, tt.err)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%v: status %d, %s", tt.err, w.Code, w.Body)
		}
	}
}

// A registry that shuts down closes connections also if a handler replaces the response.
func TestReplacedResponsesCloseTheConnection(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "v1", "layer")
	i.server.draining.Store(true)
	defer i.server.draining.Store(false)
	a := c.must(http.StatusPreconditionFailed, "DELETE", "/v2/a/manifests/"+d.String(), nil, "If-Unmodified-Since",
		"Thu, 01 Jan 1970 00:00:00 GMT")
	if !a.Close {
		t.Errorf("the connection stays open: %v", a.Header)
	}
	header := http.Header{"Connection": {"close"}, "Content-Type": {"text/plain"}, "Etag": {"x"}}
	clearHeader(header)
	if len(header) != 1 || header.Get("Connection") != "close" {
		t.Errorf("%v", header)
	}
}

// A deletion waits for pushes to its own repository only.
func TestDeletionsWaitForTheirRepository(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	locks := &i.server.source.linking
	other := "b"
	for n := 0; locks.forRepository(other) == locks.forRepository("a"); n++ {
		other = fmt.Sprint("b", n)
	}
	d, _ := c.pushImage(other, "v1", "layer")
	locks.forRepository("a").RLock() // as a push does that takes long
	defer locks.forRepository("a").RUnlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.must(http.StatusAccepted, "DELETE", "/v2/"+other+"/manifests/"+d.String(), nil)
	}()
	<-done
	c.must(http.StatusNotFound, "GET", "/v2/"+other+"/manifests/"+digest.FromString("").String(), nil)
}
