package registry

import (
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

func TestSparseIndexes(t *testing.T) {
	t.Parallel()
	const settings = "validation: {manifests: {indexes: {platforms: none}}}\n"
	for name, tt := range map[string]struct {
		settings string
		want     int
	}{
		"are rejected by default":    {"", http.StatusBadRequest},
		"are accepted if configured": {settings, http.StatusCreated},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			i := start(t, newTestCA(t), root, configured(t, "version: 0.1\n"+storageAt(root)+tt.settings))
			c := i.pusher()
			present, _ := c.pushImage("a", "image", "layer")
			missing := digest.FromString("missing")
			index := encode(t, ociIndex, indexOf(present, missing))
			got := c.must(tt.want, "PUT", "/v2/a/manifests/v1", strings.NewReader(index), "Content-Type", ociIndex)
			if tt.want != http.StatusCreated {
				if got.code() != "MANIFEST_BLOB_UNKNOWN" {
					t.Errorf("%s", got.body)
				}
				return
			}
			c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/image", nil)
			collectNow(t, root, gc.Request{DeleteUntagged: true})
			i.node().must(http.StatusOK, "GET", "/v2/a/manifests/v1", nil)
			i.node().must(http.StatusOK, "GET", "/v2/a/manifests/"+present.String(), nil)
			i.node().must(http.StatusNotFound, "GET", "/v2/a/manifests/"+missing.String(), nil)
		})
	}
}
