// Package graph describes images as graphs of manifests, configurations and layers, and as what tools call them in OCI
// layouts. It reads graphs from any [Content], and holds them in memory ([Store]). It does not transfer images.
package graph

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// Image is an image, an index of images, or another OCI artifact.
type Image struct {
	// Reference is the image's name in its source, not normalized. Empty if the source has none.
	Reference string
	// Descriptor is the manifest or index. Only its media type, digest and size are set.
	Descriptor ocispec.Descriptor
	// Platforms are those that the image runs on. Empty if not known, as for a chart or a signature.
	Platforms []ocispec.Platform
	// Omitted are the index's platforms that the source does not hold. Docker's containerd image store
	// saves the whole index even if it pulled a single platform.
	Omitted []ocispec.Platform
	// Missing are blobs that a thin archive leaves out, because the destination has them.
	Missing []ocispec.Descriptor
	// Size is the sum of the sizes of all blobs in bytes, each counted once.
	Size int64
}

// Name identifies the image in errors and progress.
func (i Image) Name() string {
	if i.Reference != "" {
		return i.Reference
	}
	return i.Descriptor.Digest.String()
}

// Item is an image and its content.
type Item struct {
	Image
	Content Content
}

// Items returns the images of one content as items.
func Items(from Content, list ...Image) []Item {
	var items []Item
	for _, image := range list {
		items = append(items, Item{image, from})
	}
	return items
}

// Content provides the content of images. It is safe for concurrent use.
type Content interface {
	// Fetch returns verified content.
	content.Fetcher

	// Blob returns content. received, unless nil, is called for every n bytes at offset that are downloaded while it is
	// read. Reading from the blob does not verify it.
	Blob(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (blob.Blob, error)
}
