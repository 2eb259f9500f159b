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
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// graph returns root and everything that it refers to, each digest once and dependencies first. It
// omits non-distributable layers, which are not pushed either, and with [ResolveOptions.Sparse] what an index lacks.
func graph(ctx context.Context, src content.Fetcher, root ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var nodes []ocispec.Descriptor
	seen := map[digest.Digest]bool{}
	var visit func(desc ocispec.Descriptor) error
	visit = func(desc ocispec.Descriptor) error {
		if seen[desc.Digest] || oci.IsNonDistributable(desc.MediaType) {
			return nil
		}
		seen[desc.Digest] = true
		if err := ctx.Err(); err != nil {
			return err
		}
		list, err := successors(ctx, src, desc)
		if r, ok := src.(*remoteContent); ok && r.parts && desc.Digest != root.Digest && errors.Is(err, errdef.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, next := range list {
			if err := visit(next); err != nil {
				return err
			}
		}
		nodes = append(nodes, oci.Plain(desc))
		return nil
	}
	if err := visit(root); err != nil {
		return nil, err
	}
	return nodes, nil
}

// successors returns the descriptors in a manifest or index, except its subject: a signature is
// complete without the image that it signs.
func successors(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if !oci.IsManifestOrIndex(desc.MediaType) {
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
		if err := oci.CheckDigest(next.Digest); err != nil {
			return nil, wrapDescriptor(desc, fmt.Errorf("refers to invalid digest %q: %w", next.Digest, err))
		}
		if next.Size < 0 {
			return nil, wrapDescriptor(desc, fmt.Errorf("refers to %s with a size of %d bytes", next.Digest, next.Size))
		}
	}
	return list, nil
}

func totalSize(nodes []ocispec.Descriptor) int64 {
	var sum int64
	for _, n := range nodes {
		sum += n.Size
	}
	return sum
}

// lackingManifests returns the manifests of an index that are not among its nodes.
func lackingManifests(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor, nodes []ocispec.Descriptor) (
	[]ocispec.Descriptor, error) {
	if !oci.IsIndex(desc.MediaType) {
		return nil, nil
	}
	var index ocispec.Index
	if err := fetchJSON(ctx, src, desc, &index); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(index.Manifests, func(m ocispec.Descriptor) bool {
		return slices.ContainsFunc(nodes, func(node ocispec.Descriptor) bool { return node.Digest == m.Digest })
	}), nil
}

// platformsIn returns the platforms of an index's manifests, or that of a manifest's config.
func platformsIn(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Platform, error) {
	switch {
	case oci.IsIndex(desc.MediaType):
		var index ocispec.Index
		if err := fetchJSON(ctx, src, desc, &index); err != nil {
			return nil, err
		}
		return platformsOf(index.Manifests), nil
	case oci.IsManifest(desc.MediaType):
		var manifest ocispec.Manifest
		if err := fetchJSON(ctx, src, desc, &manifest); err != nil {
			return nil, err
		}
		if !oci.IsConfig(manifest.Config.MediaType) {
			return nil, nil
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

// platformsOf returns the distinct platforms of manifests in an index. BuildKit gives its attestations
// the platform "unknown".
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

// fetchJSON reads a manifest, an index or a configuration.
func fetchJSON(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor, into any) error {
	if err := checkMetadataSize(desc.Size); err != nil {
		return wrapDescriptor(desc, err)
	}
	raw, err := content.FetchAll(ctx, src, desc)
	if err != nil {
		return wrapDescriptor(desc, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return wrapDescriptor(desc, fmt.Errorf("is not valid JSON: %w", err))
	}
	return nil
}

// wrapDescriptor adds the kind and digest of the content to an error.
func wrapDescriptor(desc ocispec.Descriptor, err error) error {
	var bad *blob.Error
	if errors.As(err, &bad) {
		// drop what was added by the reader of the content
		err = bad
	}
	return fmt.Errorf("%s %s: %w", oci.Kind(desc.MediaType), desc.Digest, err)
}
