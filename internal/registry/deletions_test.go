package registry

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
)

// deleteAll deletes manifests of the repository a, and returns why some were kept.
func (c client) deleteAll(since time.Time, digests ...digest.Digest) map[digest.Digest]string {
	c.t.Helper()
	query, err := json.Marshal(deletion.Request{Since: since, Manifests: map[string][]digest.Digest{"a": digests}})
	if err != nil {
		c.t.Fatal(err)
	}
	kept, ended := map[digest.Digest]string{}, false
	body := c.must(http.StatusOK, "POST", deletion.Path, strings.NewReader(string(query))).body
	for line := range strings.Lines(body) {
		var e deletion.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Error != "" {
			c.t.Fatalf("%v in %s", err, line)
		}
		ended = ended || e.End
		if e.Kept != "" {
			kept[e.Digest] = e.Kept
		}
	}
	if !ended {
		c.t.Errorf("the response does not end: %s", body)
	}
	return kept
}

// An index is deleted before what it contains, in whatever order they are named, and what an index contains that is kept
// is kept with it.
func TestDeletionsOfManyManifests(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	image, _ := c.pushImage("a", "image", "layer")
	child := c.pushPlatform("a", "layer of an index")
	index, _ := c.pushIndex("a", "multi", child)
	keptChild := c.pushPlatform("a", "layer of an index that is kept")
	c.pushIndex("a", "kept", keptChild)
	time.Sleep(1100 * time.Millisecond) // S3 tells times in seconds
	since := c.contents().At
	time.Sleep(1100 * time.Millisecond)
	again, _ := c.pushImage("a", "again", "another layer")

	kept := c.deleteAll(since, child, index, image, keptChild, again, digest.FromString("missing"))
	if len(kept) != 2 || !strings.Contains(kept[keptChild], "refers to") || !strings.Contains(kept[again], "pushed again") {
		t.Errorf("kept: %v", kept)
	}
	for _, d := range []digest.Digest{image, child, index} {
		c.must(http.StatusNotFound, "GET", "/v2/a/manifests/"+d.String(), nil)
	}
	if tags := c.must(http.StatusOK, "GET", "/v2/a/tags/list", nil).body; !strings.Contains(tags, `["again","kept"]`) {
		t.Errorf("tags: %s", tags)
	}
	c.must(http.StatusBadRequest, "POST", deletion.Path, strings.NewReader(`{"manifests":{"a":["x"]}}`))
}
