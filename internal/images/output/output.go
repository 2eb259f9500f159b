// Package output writes images to OCI archives ([Archive]) and OCI layout directories ([Layout]). It verifies what it
// writes. It does not decide what belongs to an image.
package output

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
)

// Image is an image to write.
type Image struct {
	graph.Item
	Nodes []ocispec.Descriptor // as of [graph.Nodes]
}

// keeper is content that a store can keep: that of registries.
type keeper interface {
	// Keep returns the store that keeps content. moved reports whether it was downloaded. The error is
	// [blobstore.ErrNoRoom] if no store keeps it.
	Keep(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (store *blobstore.Store, moved bool,
		err error)
}

func keep(ctx context.Context, from graph.Content, desc ocispec.Descriptor, received func(offset, n int64)) (
	*blobstore.Store, bool, error) {
	if k, ok := from.(keeper); ok {
		return k.Keep(ctx, desc, received)
	}
	return nil, false, blobstore.ErrNoRoom
}
