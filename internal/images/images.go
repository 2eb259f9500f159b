// Package images moves container images and other OCI artifacts between
// registries, layouts, archives and Docker daemons, and builds the project's own.
//
// What a user has on disk is a [Source]: an OCI layout directory, an OCI archive
// or a docker archive ([Open]), or what a Docker daemon saves ([OpenStream]).
// [Resolve] finds images in registries by their names. A [Store] holds images that
// this package built ([Store.Build], [ProgramImages]). All of them give an [Item]
// for each image, which [Push] sends to a registry and [Pull] writes to a layout
// or archive ([OpenLayout], [CreateArchive]).
//
// The package does not unpack layers, does not look inside a cluster and does not
// know how a registry is reached (that is package remote's), nor where caches are
// (package blobstore's).
package images

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// Image is an image, an index of images, or another OCI artifact.
type Image struct {
	// Reference is the image's name as its source gives it, not normalised.
	// Empty where the source gives none.
	Reference string
	// Descriptor is the manifest or index; nothing but media type, digest and
	// size is set.
	Descriptor ocispec.Descriptor
	// Platforms are those that the image can run on; empty where that is not
	// known, as for a chart or a signature.
	Platforms []ocispec.Platform
	// Omitted are the platforms of an index whose manifests the source does
	// not hold, and which are therefore left out. Docker's containerd image
	// store saves an index whole though it pulled one platform of it.
	Omitted []ocispec.Platform
	// Size is the number of bytes of all that belongs to the image, each blob
	// counted once.
	Size int64
}

// name is how errors and progress call the image.
func (i Image) name() string {
	if i.Reference != "" {
		return i.Reference
	}
	return i.Descriptor.Digest.String()
}

// Item is an image and where its content is.
type Item struct {
	Image
	Content Content
}

// Items are images of one content.
func Items(from Content, list ...Image) []Item {
	var items []Item
	for _, image := range list {
		items = append(items, Item{image, from})
	}
	return items
}

// Content is where the content of images comes from. It is safe for concurrent
// use.
type Content interface {
	content.ReadOnlyStorage

	// Blob returns content that lies on this machine; what is elsewhere is brought
	// here first, and received is told how many bytes at which offset arrived.
	// received may be nil. What is read from the blob is not verified in general.
	Blob(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (blob.Blob, error)
}

var (
	_ Content = (*Source)(nil)
	_ Content = (*Store)(nil)
	_ Content = (*remoteContent)(nil)
)
