package images

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// slow is a file on a slow disk.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return s.Reader.Read(p)
}

// Ctrl-C ends the writing of one blob to an archive or layout within a second.
func TestPullEndsWithTheContextWithinABlob(t *testing.T) {
	raw := imagestest.Noise(1, 64<<20)
	store := &graph.Store{}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	content := blob.FromBytes(raw)
	store.Put(layer.Digest, blob.Blob{Size: content.Size, Open: func() (io.ReadCloser, error) {
		rc, err := content.Open()
		return io.NopCloser(slow{rc}), err
	}})
	image := graph.Image{Reference: "a:1", Descriptor: imagestest.AddJSON(t, store, ocispec.MediaTypeImageManifest,
		ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: imagestest.AddJSON(t, store, ocispec.MediaTypeImageConfig, ocispec.Image{}),
			Layers: []ocispec.Descriptor{layer}})}
	archive := require.Value(output.CreateArchive(filepath.Join(t.TempDir(), "a.tar")))(t)
	layout, err := output.OpenLayout(filepath.Join(t.TempDir(), "layout"))
	require.NoError(t, err)
	for kind, out := range map[string]interface {
		Output
		io.Closer
	}{"archive": archive, "layout": layout} {
		ctx, cancel := context.WithCancel(t.Context())
		var ended time.Time
		time.AfterFunc(200*time.Millisecond, func() {
			ended = time.Now()
			cancel()
		})
		_, err = Pull(ctx, graph.Items(store, image), out, Options{})
		if took := time.Since(ended); !errors.Is(err, context.Canceled) || took > time.Second {
			t.Errorf("%s: after %s: %v", kind, took, err)
		}
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	}
}
