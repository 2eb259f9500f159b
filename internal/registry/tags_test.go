package registry

import (
	"net/http"
	"testing"
)

func TestDeletingAManifestDeletesItsTags(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "one", "layer")
	c.pushImage("a", "two", "layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+d.String(), nil)
	if s3 != nil { // the repository is gone
		c.must(http.StatusNotFound, "GET", "/v2/a/tags/list", nil)
		return
	}
	if a := c.must(http.StatusOK, "GET", "/v2/a/tags/list", nil); a.body != `{"name":"a","tags":[]}`+"\n" {
		t.Errorf("%s", a.body)
	}
}
