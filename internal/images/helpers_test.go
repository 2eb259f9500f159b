package images

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func mustPush(t *testing.T, items []graph.Item, reg *remote.Registry, opts Options) []Result {
	t.Helper()
	return require.Value(Push(t.Context(), items, reg, opts))(t)
}

func mustPull(t *testing.T, items []graph.Item, out Output, opts Options) []Result {
	t.Helper()
	return require.Value(Pull(t.Context(), items, out, opts))(t)
}

// pullToLayout pulls images to the layout in a directory.
func pullToLayout(t *testing.T, dir string, items []graph.Item, opts Options) []Result {
	t.Helper()
	layout := require.Value(output.OpenLayout(dir))(t)
	results := mustPull(t, items, layout, opts)
	require.NoError(t, layout.Close())
	return results
}

// pullToArchive pulls images to an archive. change, unless nil, is called before.
func pullToArchive(t *testing.T, path string, items []graph.Item, change func(*output.Archive)) []Result {
	t.Helper()
	archive := require.Value(output.CreateArchive(path))(t)
	if change != nil {
		change(archive)
	}
	return mustPull(t, items, archive, Options{})
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	return require.Value(os.ReadFile(path))(t)
}

// copied returns a store with the nodes of another one, without some of them.
func copied(from *graph.Store, nodes []ocispec.Descriptor, without ...digest.Digest) *graph.Store {
	to := &graph.Store{}
	for _, node := range nodes {
		if b, ok := from.Find(node.Digest); ok && !slices.Contains(without, node.Digest) {
			to.Put(node.Digest, b)
		}
	}
	return to
}

// mustItems returns the images of a source as [source.Source.Items].
func mustItems(t *testing.T, src *source.Source, reference string) []graph.Item {
	t.Helper()
	return require.Value(src.Items(reference))(t)
}

// cancelled returns a canceled context.
func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
