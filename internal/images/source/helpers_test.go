package source

import (
	"context"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// pullToLayout pulls images to the layout in a directory.
func pullToLayout(t *testing.T, dir string, items []graph.Item) {
	t.Helper()
	layout := require.Value(output.OpenLayout(dir))(t)
	defer layout.Close()
	require.Value(images.Pull(t.Context(), items, layout, images.Options{}))(t)
}

// mustItems returns the images of a source as [Source.Items].
func mustItems(t *testing.T, src *Source, reference string) []graph.Item {
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
