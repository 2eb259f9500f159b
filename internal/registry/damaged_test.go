package registry

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Damaged links and tags are named by every command, and prevent none. What a damaged tag may refer to is kept.
func TestDamagedLinksPreventNothing(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	root := t.TempDir()
	i := startQuick(t, newTestCA(t), root)
	c := i.pusher()
	kept, _ := c.pushImage("a", "v1", "layer")
	untagged, _ := c.pushImage("b", "v1", "old layer")
	c.pushImage("b", "v1", "new layer")
	layer := digest.SHA512.FromString("another layer")
	c.pushAs("a", layer, "another layer")
	manifest := encode(t, ociManifest, imageOf("layer"))
	named := digest.SHA512.FromString(manifest)
	c.must(http.StatusCreated, "PUT", "/v2/a/manifests/"+named.String(), strings.NewReader(manifest), "Content-Type",
		ociManifest)
	for _, path := range []string{storage.TagPath("a", "v1"), storage.LayerPath("a", layer), storage.DigestLinkPath(layer),
		storage.RevisionPath("a", named)} {
		if err := os.WriteFile(filepath.Join(root, path), []byte("sha512:damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	events := c.collect(gc.Request{DeleteUntagged: true})
	if last := events[len(events)-1]; last.Result == nil || last.Result.Manifests != 1 {
		t.Errorf("the collection ends with %+v", last)
	}
	body := c.must(http.StatusOK, "GET", catalog.Path, nil).body
	mentions(t, body, `"end"`, "a:v1 is damaged", "a@"+named.String()+" is damaged", layer.String()+" is damaged",
		"it may have a tag")
	c.must(http.StatusOK, "GET", "/v2/a/manifests/"+kept.String(), nil, "Accept", ociManifest)
	c.must(http.StatusNotFound, "GET", "/v2/b/manifests/"+untagged.String(), nil, "Accept", ociManifest)
	problems, _ := c.scrub()
	mentions(t, strings.Join(problems, "\n"), "a:v1", named.String())
}
