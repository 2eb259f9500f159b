// Package images copies container images and other OCI artifacts between registries, OCI layouts,
// archives and the Docker engine, and builds the project's own images.
//
// A [Source] reads an OCI layout, an OCI archive, a docker archive or a Zarf package ([Open]). [Resolve] finds images
// in registries by name. A [Store] holds images that this package built ([Store.Build], [ProgramImages]). Each of them
// yields an [Item] per image, which [Push] sends to a registry and [Pull] writes to a layout or archive
// ([OpenLayout], [CreateArchive]).
//
// The package does not unpack layers and does not know Kubernetes. Package name parses the names of images, package
// remote speaks to registries, and package blobstore caches blobs.
package images

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
	// Missing are blobs that a thin archive leaves out, because the destination has them: see [Archive.Omit].
	Missing []ocispec.Descriptor
	// Size is the sum of the sizes of all blobs in bytes, each counted once.
	Size int64
}

// name identifies the image in errors and progress.
func (i Image) name() string {
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
	content.Fetcher

	// Blob returns content. received, unless nil, is called for every n bytes at offset that are downloaded while it is
	// read. Reading from the blob does not verify it.
	Blob(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (blob.Blob, error)
}

var (
	_ Content = (*Source)(nil)
	_ Content = (*Store)(nil)
	_ Content = (*remoteContent)(nil)
)
