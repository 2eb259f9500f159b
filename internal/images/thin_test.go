package images

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// thin writes an archive of an image that leaves out what omit selects.
func thin(t *testing.T, store *graph.Store, image graph.Image, omit func(digest.Digest) bool) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "thin.tar")
	results := pullToArchive(t, path, graph.Items(store, image), func(a *output.Archive) { a.Omit(omit) })
	if len(results) != 1 || results[0].BytesReceived != 0 {
		t.Errorf("results %+v", results)
	}
	return path
}

func all(digest.Digest) bool { return true }

func TestThinArchives(t *testing.T) {
	registry := startRegistry(t)
	store := &graph.Store{}
	previous := imagestest.Index(t, store, "docker.io/team/app:1", 100_000, "amd64", "arm64")
	mustPush(t, graph.Items(store, previous), registry, Options{})
	next := imagestest.Index(t, store, "docker.io/other/app:2", 100_000, "amd64", "arm64", "riscv64")
	has := map[digest.Digest]bool{}
	for _, node := range imagestest.Nodes(t, store, previous.Descriptor) {
		has[node.Digest] = true
	}

	source := imagestest.Open(t, source.Open, thin(t, store, next, func(d digest.Digest) bool { return has[d] }))
	listed := source.Images()
	if len(listed) != 1 || len(listed[0].Missing) != 5 || len(listed[0].Platforms) != 3 || listed[0].Size < 300_000 {
		t.Fatalf("the archive has %+v", listed)
	}
	items := mustItems(t, source, "")
	results := mustPush(t, items, registry, Options{})
	// The layer and the configuration for riscv64, three manifests and the index; the layers and configurations of the other
	// repository.
	if r := results[0]; r.BlobsSent != 6 || r.BlobsMounted != 5 {
		t.Errorf("result %+v", r)
	}
	repository := require.Value(registry.Repository("other/app"))(t)
	for _, node := range imagestest.Nodes(t, store, next.Descriptor) {
		if ok, err := repository.Exists(t.Context(), node); !ok || err != nil {
			t.Errorf("%s: exists %t, error %v", node.Digest, ok, err)
		}
	}
	if tagged, err := repository.Resolve(t.Context(), "2"); err != nil || tagged.Digest != next.Descriptor.Digest {
		t.Errorf("the tag is %s, error %v", tagged.Digest, err)
	}
}

// On a slow link, requests are what a push of many unchanged images takes.
func TestThinArchiveOfAStoredImage(t *testing.T) {
	registry := imagestest.NewRegistry(t)
	client := registry.NewClient(t, nil)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "docker.io/team/app:1", 100_000, "amd64")
	mustPush(t, graph.Items(store, image), client, Options{})
	source := imagestest.Open(t, source.Open, thin(t, store, image, all))
	if listed := source.Images(); len(listed[0].Missing) != 3 {
		t.Errorf("the archive has %+v", listed)
	}
	for tag, requests := range map[string]int{"1": 1, "again": 0} {
		items := mustItems(t, source, "docker.io/team/app:"+tag)
		registry.Requests()
		if results := mustPush(t, items, client, Options{}); results[0].BytesSent > image.Descriptor.Size {
			t.Errorf("%s: %+v", tag, results)
		}
		if n := registry.Count("HEAD /v2/team/app/manifests/1"); n != requests {
			t.Errorf("%s: %d requests", tag, n)
		}
	}
}

// A false match in the inventory, or a blob that was removed since.
func TestPushNamesWhatAThinArchiveLacks(t *testing.T) {
	registry := startRegistry(t)
	store := &graph.Store{}
	there := imagestest.Index(t, store, "docker.io/team/there:1", 1000, "amd64")
	mustPush(t, graph.Items(store, there), registry, Options{})
	lacking := imagestest.Index(t, store, "docker.io/team/lacking:1", 100_000, "riscv64")
	items := graph.Items(imagestest.Open(t, source.Open, thin(t, store, there, all)), there)
	source := imagestest.Open(t, source.Open, thin(t, store, lacking, all))
	list := mustItems(t, source, "")
	results, err := Push(t.Context(), append(items, list...), registry, Options{})
	if err == nil || !strings.Contains(err.Error(), "image "+lacking.Reference) ||
		!strings.Contains(err.Error(), "does not have 3 blobs (125.") || len(results) != 1 {
		t.Fatalf("error %v; results %+v", err, results)
	}
	repository := require.Value(registry.Repository("team/lacking"))(t)
	if _, err := repository.Resolve(t.Context(), "1"); err == nil {
		t.Error("an incomplete image was pushed")
	}
	for _, m := range list[0].Missing {
		if oci.IsManifestOrIndex(m.MediaType) {
			t.Errorf("manifest %s is omitted", m.Digest)
		}
	}
}

// An archive that was truncated is not thin.
func TestTruncatedThinArchivesAreRejected(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "docker.io/team/app:1", 100_000, "amd64")
	content := read(t, thin(t, store, image, all))
	for _, size := range []int{len(content) / 2, len(content) - 1024} {
		if s, err := source.Open(t.Context(), imagestest.Temp(t, "thin.tar", content[:size])); err == nil {
			s.Close()
			t.Errorf("the first %d of %d bytes are accepted", size, len(content))
		}
	}
}
