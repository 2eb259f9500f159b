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
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

const (
	// mediaTypeDockerManifest and mediaTypeDockerIndex are the forms that
	// preceded the OCI ones; docker save and many registries still use them.
	// https://distribution.github.io/distribution/spec/manifest-v2-2/
	mediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaTypeDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	mediaTypeDockerConfig   = "application/vnd.docker.container.image.v1+json"

	// mediaTypeArtifactManifest was in release candidates of OCI 1.1 only, but is
	// found with signatures of that time.
	mediaTypeArtifactManifest = "application/vnd.oci.artifact.manifest.v1+json"

	mediaTypeDockerForeignLayer = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"

	// annotationContainerdName is where containerd and docker put an image's
	// whole name in index.json.
	annotationContainerdName = "io.containerd.image.name"

	// maxMetadata is the largest manifest, index or image configuration that
	// is read into memory: the limit that registries put on a manifest.
	// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests
	maxMetadata = 4 << 20
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

// plain drops all but what identifies the content: equal content must be equal
// wherever it is referred to from.
func plain(desc ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
}

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == mediaTypeDockerIndex
}

func isManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == mediaTypeDockerManifest || mediaType == mediaTypeArtifactManifest
}

// describes tells manifests and indexes from all other content.
func describes(mediaType string) bool { return isManifest(mediaType) || isIndex(mediaType) }

// isForeign tells a layer that its owner forbids to redistribute and that a
// registry does not expect to hold.
func isForeign(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageLayerNonDistributable, //nolint:staticcheck // deprecated, but found in images
		ocispec.MediaTypeImageLayerNonDistributableGzip, //nolint:staticcheck // deprecated, but found in images
		ocispec.MediaTypeImageLayerNonDistributableZstd, //nolint:staticcheck // deprecated, but found in images
		mediaTypeDockerForeignLayer:
		return true
	}
	return false
}

// kindOf names what a descriptor stands for in words.
func kindOf(mediaType string) string {
	switch {
	case isIndex(mediaType):
		return "index"
	case isManifest(mediaType):
		return "manifest"
	case mediaType == ocispec.MediaTypeImageConfig, mediaType == mediaTypeDockerConfig:
		return "configuration"
	}
	return "blob"
}

// blame says which content an error is about.
func blame(desc ocispec.Descriptor, err error) error {
	var bad *blob.Error
	if errors.As(err, &bad) {
		// Whoever was reading it is not to blame.
		err = bad
	}
	return fmt.Errorf("%s %s: %w", kindOf(desc.MediaType), desc.Digest, err)
}

// successors are what a manifest or index is made of. What it refers to as its
// subject is not: a signature is whole without the image that it is about.
func successors(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if !describes(desc.MediaType) {
		return nil, nil
	}
	var parts struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
		Blobs     []ocispec.Descriptor `json:"blobs"`
	}
	if err := fetchJSON(ctx, src, desc, &parts); err != nil {
		return nil, err
	}
	var list []ocispec.Descriptor
	if parts.Config != nil {
		list = append(list, *parts.Config)
	}
	list = slices.Concat(list, parts.Layers, parts.Manifests, parts.Blobs)
	for _, next := range list {
		if err := next.Digest.Validate(); err != nil {
			return nil, blame(desc, fmt.Errorf("refers to %q, which is no digest: %w", next.Digest, err))
		}
		if next.Size < 0 {
			return nil, blame(desc, fmt.Errorf("refers to %s with a size of %d bytes", next.Digest, next.Size))
		}
	}
	return list, nil
}

// graph returns root and all that it refers to, each digest once and what is
// referred to before what refers to it. Layers that may not be redistributed
// are left out, as they are when an image is pushed.
func graph(ctx context.Context, src content.Fetcher, root ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var nodes []ocispec.Descriptor
	seen := map[digest.Digest]bool{}
	var visit func(desc ocispec.Descriptor) error
	visit = func(desc ocispec.Descriptor) error {
		if seen[desc.Digest] || isForeign(desc.MediaType) {
			return nil
		}
		seen[desc.Digest] = true
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := checkMetadataSize(desc); err != nil {
			return err
		}
		list, err := successors(ctx, src, desc)
		if err != nil {
			return err
		}
		for _, next := range list {
			if err := visit(next); err != nil {
				return err
			}
		}
		nodes = append(nodes, plain(desc))
		return nil
	}
	if err := visit(root); err != nil {
		return nil, err
	}
	return nodes, nil
}

// checkMetadataSize refuses to read into memory what cannot be a manifest.
func checkMetadataSize(desc ocispec.Descriptor) error {
	if describes(desc.MediaType) && desc.Size > maxMetadata {
		return blame(desc, fmt.Errorf("has %d bytes, and no registry takes more than %d", desc.Size, maxMetadata))
	}
	return nil
}

func totalSize(nodes []ocispec.Descriptor) int64 {
	var sum int64
	for _, n := range nodes {
		sum += n.Size
	}
	return sum
}

// platformsIn returns the platforms that an image names: those of an index's
// manifests, or that of a manifest's configuration.
func platformsIn(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Platform, error) {
	switch {
	case isIndex(desc.MediaType):
		var index ocispec.Index
		if err := fetchJSON(ctx, src, desc, &index); err != nil {
			return nil, err
		}
		return platformsOf(index.Manifests), nil
	case isManifest(desc.MediaType):
		var manifest ocispec.Manifest
		if err := fetchJSON(ctx, src, desc, &manifest); err != nil {
			return nil, err
		}
		if manifest.Config.MediaType != ocispec.MediaTypeImageConfig && manifest.Config.MediaType != mediaTypeDockerConfig {
			return nil, nil
		}
		if manifest.Config.Size > maxMetadata {
			return nil, blame(manifest.Config, fmt.Errorf("has %d bytes, more than the %d that are read", manifest.Config.Size, maxMetadata))
		}
		var config ocispec.Image
		if err := fetchJSON(ctx, src, manifest.Config, &config); err != nil {
			return nil, err
		}
		if config.OS == "" || config.Architecture == "" {
			return nil, nil
		}
		return []ocispec.Platform{{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}}, nil
	}
	return nil, nil
}

// platformsOf collects the platforms of manifests in an index. BuildKit calls
// the platform of its attestations unknown.
func platformsOf(manifests []ocispec.Descriptor) []ocispec.Platform {
	var found []ocispec.Platform
	for _, m := range manifests {
		if m.Platform == nil || m.Platform.OS == "unknown" {
			continue
		}
		p := ocispec.Platform{OS: m.Platform.OS, Architecture: m.Platform.Architecture, Variant: m.Platform.Variant}
		if !slices.ContainsFunc(found, func(q ocispec.Platform) bool {
			return q.OS == p.OS && q.Architecture == p.Architecture && q.Variant == p.Variant
		}) {
			found = append(found, p)
		}
	}
	return found
}

func fetchJSON(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor, into any) error {
	raw, err := content.FetchAll(ctx, src, desc)
	if err != nil {
		return blame(desc, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return blame(desc, fmt.Errorf("is not the JSON that it should be: %w", err))
	}
	return nil
}
