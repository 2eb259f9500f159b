package source

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// maxReferrers limits the referrers of one image: signatures can have signatures without end.
const maxReferrers = 1000

// cosignTags are the suffixes of the tags that cosign uses without the referrers API.
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md#tag-based-discovery
var cosignTags = []string{".sig", ".att", ".sbom"}

// referrers finds the referrers of an image, of its manifests, and of those referrers and their manifests.
func (o ResolveOptions) referrers(ctx context.Context, from *repository, named reference.Named,
	root ocispec.Descriptor) ([]graph.Item, error) {
	var queue []digest.Digest
	seen := map[digest.Digest]bool{}
	enqueue := func(root ocispec.Descriptor) error {
		nodes, err := graph.Nodes(ctx, from, root)
		if err != nil {
			return err
		}
		for _, node := range slices.Backward(nodes) { // an index before its manifests
			if oci.IsManifestOrIndex(node.MediaType) && !seen[node.Digest] {
				seen[node.Digest] = true
				queue = append(queue, node.Digest)
			}
		}
		return nil
	}
	if err := enqueue(root); err != nil {
		return nil, err
	}
	var items []graph.Item
	for len(queue) > 0 {
		found, err := o.directReferrers(ctx, from, named, queue[0], seen)
		if err != nil {
			return nil, err
		}
		queue = queue[1:]
		for _, item := range found {
			if seen[item.Descriptor.Digest] {
				continue
			}
			if len(items) == maxReferrers {
				return nil, fmt.Errorf("has more than %d referrers", maxReferrers)
			}
			items = append(items, item)
			if err := enqueue(item.Descriptor); err != nil {
				return nil, err
			}
		}
	}
	return items, nil
}

// directReferrers finds what refers to a manifest, except what was seen: what the registry lists, and cosign's tags.
func (o ResolveOptions) directReferrers(ctx context.Context, from *repository, named reference.Named,
	referrers digest.Digest, seen map[digest.Digest]bool) ([]graph.Item, error) {
	o.Platforms = nil
	repository := reference.TrimNamed(named)
	var listed []digest.Digest
	err := from.repo.Referrers(ctx, referrers, func(page []ocispec.Descriptor) error {
		for _, desc := range page {
			if seen[desc.Digest] || slices.Contains(listed, desc.Digest) {
				continue
			}
			if len(listed) == maxReferrers {
				return fmt.Errorf("%s has more than %d referrers", referrers, maxReferrers)
			}
			listed = append(listed, desc.Digest)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var items []graph.Item
	for _, d := range listed {
		byDigest, err := reference.WithDigest(repository, d)
		if err != nil {
			return nil, err
		}
		item, _, err := o.item(ctx, from, byDigest)
		if errors.Is(err, errdef.ErrNotFound) {
			o.Log.Warn("registry lists a referrer that does not exist", "image", named.String(), "referrer", d.String())
			continue
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	for _, ending := range cosignTags {
		tag, err := reference.WithTag(repository, referrers.Algorithm().String()+"-"+referrers.Encoded()+ending)
		if err != nil {
			break // SHA-512 digests are too long for a tag
		}
		item, _, err := o.item(ctx, from, tag)
		if errors.Is(err, errdef.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}
