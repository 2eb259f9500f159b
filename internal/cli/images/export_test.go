package images

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
)

// What cannot be read is named, and does not keep the rest from being exported.
func TestExportedImages(t *testing.T) {
	d := digest.FromString
	content := &catalog.Catalog{Manifests: []*catalog.Manifest{
		{Repository: "app", Digest: d("index"), Tags: []string{"1", "2"}, Needs: []digest.Digest{d("member"), d("damaged")}},
		{Repository: "app", Digest: d("member")},
		{Repository: "app", Digest: d("damaged"), Problem: "does not match its digest"},
		{Repository: "app", Digest: d("gone"), Tags: []string{"old"}, Problem: "is empty"},
		{Repository: "zarf-registry/registry", Digest: d("own"), Problem: "is empty"},
	}}
	refs, err := exported(content, "127.0.0.1:31999")
	clitest.Same(t, "references", strings.Join(refs, " "), "127.0.0.1:31999/app:1 127.0.0.1:31999/app:2")
	clitest.Same(t, "error", err.Error(), "manifest 127.0.0.1:31999/app@"+d("damaged").String()+
		": does not match its digest: push its image again\nmanifest 127.0.0.1:31999/app:old: is empty: push its image again")
}
