package registry

import (
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// A client that has its content refused cannot have other content accepted as that.
func TestRefusedUploadsVouchForNothing(t *testing.T) {
	t.Parallel()
	if s3 != nil {
		t.Skip("about file systems")
	}
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	const content, other = "the content", "the attack!"
	d := digest.FromString(content)
	begun := c.begin("a")
	sent := c.must(http.StatusAccepted, "PATCH", begun, strings.NewReader(content)).Header.Get("Location")
	c.must(http.StatusBadRequest, "PUT", sent+"&digest="+digest.FromString(other).String(), nil)
	for _, step := range []struct{ method, path, body string }{
		{"PATCH", begun, other}, {"PUT", sent + "&digest=" + d.String(), ""},
	} {
		a, err := c.send(step.method, step.path, strings.NewReader(step.body))
		if err != nil || a.StatusCode < http.StatusBadRequest {
			t.Errorf("%s: %v, status %d", step.method, err, a.StatusCode)
		}
	}
	c.must(http.StatusNotFound, "GET", "/v2/a/blobs/"+d.String(), nil)
}
