package registry

import (
	"net/http"
	"testing"
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
