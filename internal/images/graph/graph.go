package graph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Nodes returns root and everything that it refers to, each digest once and dependencies first. It omits
// non-distributable layers, which are not pushed either, and of sparse content what an index lacks.
func Nodes(ctx context.Context, src content.Fetcher, root ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	maybeSparse, _ := src.(interface{ Sparse() bool })
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
		if errors.Is(err, errdef.ErrNotFound) && desc.Digest != root.Digest && maybeSparse != nil && maybeSparse.Sparse() {
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
	if err := FetchJSON(ctx, src, desc, &parts); err != nil {
		return nil, err
	}
	var list []ocispec.Descriptor
	if parts.Config != nil {
		list = append(list, *parts.Config)
	}
	list = slices.Concat(list, parts.Layers, parts.Manifests, parts.Blobs)
	for _, next := range list {
		if err := oci.CheckDigest(next.Digest); err != nil {
			return nil, Wrap(desc, fmt.Errorf("refers to invalid digest %q: %w", next.Digest, err))
		}
		if next.Size < 0 {
			return nil, Wrap(desc, fmt.Errorf("refers to %s with a size of %d bytes", next.Digest, next.Size))
		}
	}
	return list, nil
}

// Size returns the sum of the sizes of nodes.
func Size(nodes []ocispec.Descriptor) int64 {
	var sum int64
	for _, n := range nodes {
		sum += n.Size
	}
	return sum
}

// FetchJSON reads a manifest, an index or a configuration.
func FetchJSON(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor, into any) error {
	if err := checkMetadataSize(desc.Size); err != nil {
		return Wrap(desc, err)
	}
	raw, err := content.FetchAll(ctx, src, desc)
	if err != nil {
		return Wrap(desc, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return Wrap(desc, fmt.Errorf("is not valid JSON: %w", err))
	}
	return nil
}

// ReadMetadata reads content that must not be larger than a manifest. It does not verify it.
func ReadMetadata(b blob.Blob) ([]byte, error) {
	if err := checkMetadataSize(b.Size); err != nil {
		return nil, err
	}
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

// checkMetadataSize rejects what is too large to read into memory.
func checkMetadataSize(size int64) error {
	if size > oci.MaxManifestSize {
		return fmt.Errorf("has %d bytes: want at most %d", size, oci.MaxManifestSize)
	}
	return nil
}

// Wrap adds the kind and digest of the content to an error.
func Wrap(desc ocispec.Descriptor, err error) error {
	if bad, ok := errors.AsType[*blob.Error](err); ok {
		// drop what was added by the reader of the content
		err = bad
	}
	return fmt.Errorf("%s %s: %w", oci.Kind(desc.MediaType), desc.Digest, err)
}
