package registry

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/opencontainers/go-digest"
)

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
}

// A deletion waits for pushes to its own repository only.
func TestDeletionsWaitForTheirRepository(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	linking := i.server.source.Linking
	other := "b"
	for n := 0; linking(other) == linking("a"); n++ {
		other = fmt.Sprint("b", n)
	}
	d, _ := c.pushImage(other, "v1", "layer")
	linking("a").RLock() // as a push does that takes long
	defer linking("a").RUnlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.must(http.StatusAccepted, "DELETE", "/v2/"+other+"/manifests/"+d.String(), nil)
	}()
	<-done
	c.must(http.StatusNotFound, "GET", "/v2/"+other+"/manifests/"+digest.FromString("").String(), nil)
}
