package images

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// limitedDir returns a directory in a file system of its own.
func limitedDir(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("SKIPPED: mounting a file system needs root:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// largeImage is an image of three layers of a size, without a copy of them.
func largeImage(t *testing.T, store *graph.Store, size int64) graph.Image {
	t.Helper()
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: imagestest.AddJSON(t, store, ocispec.MediaTypeImageConfig, ocispec.Image{}),
	}
	for i := range 3 {
		layer := blob.Blob{Size: size, Open: func() (io.ReadCloser, error) {
			return io.NopCloser(io.LimitReader(&repeated{imagestest.Noise(uint64(i), 1<<20+i), 0}, size)), nil
		}}
		rc, _ := layer.Open()
		d := require.Value(digest.FromReader(rc))(t)
		store.Put(d, layer)
		manifest.Layers = append(manifest.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d,
			Size: size})
	}
	return graph.Image{Reference: "large:1", Descriptor: imagestest.AddJSON(t, store, ocispec.MediaTypeImageManifest, manifest)}
}

type repeated struct {
	piece []byte
	at    int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.piece[r.at:])
	r.at = (r.at + n) % len(r.piece)
	return n, nil
}

// TestTransfersLargerThanTheStoresDisk copies and pulls more than the file system of the local store holds. An archive
// needs its own size and nothing more.
func TestTransfersLargerThanTheStoresDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: needs a minute, for 900 MB: run it without -short")
	}
	const size = 300 << 20
	local := limitedDir(t, "200m")
	cache, err := blobstore.Open(filepath.Join(local, "store"), blobstore.Options{Cache: true, MaxSize: 20e9})
	require.NoError(t, err)
	defer cache.Close()
	from, to := newOrigin(t), imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := largeImage(t, store, size)
	refs := from.fill(t, store, image)
	items := from.resolve(t, func(o *source.ResolveOptions) { o.Store = cache }, refs...)
	mustPush(t, items, to.NewClient(t, nil), Options{})
	to.CheckWhole(t, store, image)

	disk := limitedDir(t, fmt.Sprint(3*size+1<<20))
	archive := require.Value(output.CreateArchive(filepath.Join(disk, "large.tar")))(t)
	mustPull(t, items, archive, Options{})
	source := imagestest.Open(t, source.Open, filepath.Join(disk, "large.tar"))
	for _, node := range imagestest.Nodes(t, source, source.Images()[0].Descriptor) {
		rc, err := source.Fetch(t.Context(), node)
		if err == nil {
			_, err = io.Copy(io.Discard, rc)
		}
		if err != nil {
			t.Error(err)
		}
	}
	// There is no room for another: it says so before anything is transferred.
	from.Requests()
	again, err := output.CreateArchive(filepath.Join(disk, "again.tar"))
	require.NoError(t, err)
	_, err = Pull(t.Context(), items, again, Options{})
	if !blobstore.IsDiskFull(err) || from.Count("GET /v2/library/large/blobs/") > 0 {
		t.Errorf("error: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(disk); err != nil || len(files) != 1 {
		t.Errorf("next to the archive: %v, %v", files, err)
	}
}
