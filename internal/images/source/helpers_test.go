package source

import (
	"context"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
)

// pullToLayout pulls images to the layout in a directory.
func pullToLayout(t *testing.T, dir string, items []graph.Item) {
	t.Helper()
	layout, err := output.OpenLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer layout.Close()
	if _, err := images.Pull(t.Context(), items, layout, images.Options{}); err != nil {
		t.Fatal(err)
	}
}

// mustItems returns the images of a source as [Source.Items].
func mustItems(t *testing.T, src *Source, reference string) []graph.Item {
	t.Helper()
	items, err := src.Items(reference)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// cancelled returns a canceled context.
func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
