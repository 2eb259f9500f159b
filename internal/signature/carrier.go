package signature

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxCarried is the size of all that a carrier carries, in bytes. It leaves room for SBOMs.
const maxCarried = 4 << 20

// carriedTypes are the media types of what cosign attaches to images, as far as it is JSON: signatures,
// attestations and SBOMs.
var carriedTypes = []string{
	typeBundle, typeSimpleSigning, "application/vnd.dsse.envelope.v1+json",
	"text/spdx+json", "application/vnd.cyclonedx+json", "application/vnd.syft+json",
}

// document is what matters of a manifest or index.
type document struct {
	Config    *v1.Descriptor  `json:"config"`
	Layers    []v1.Descriptor `json:"layers"`
	Manifests []v1.Descriptor `json:"manifests"`
}

// IsCarrier reports whether a manifest carries signatures or attestations, or lists referrers, and nothing that can
// run. Media types alone do not decide, because a runtime may unpack a layer whatever its type: all of a
// carrier's layers are JSON documents, which are neither archives nor programs. An error means that the
// repository could not be read.
func IsCarrier(ctx context.Context, repository Repository, manifest []byte) (bool, error) {
	var d document
	if json.Unmarshal(manifest, &d) != nil {
		return false, nil
	}
	if d.Config == nil && d.Layers == nil && d.Manifests != nil {
		return isReferrersList(d.Manifests), nil
	}
	if d.Manifests != nil || len(d.Layers) == 0 || len(d.Layers) > maxSignatures {
		return false, nil
	}
	left := int64(maxCarried)
	for _, layer := range d.Layers {
		if !slices.Contains(carriedTypes, layer.MediaType) || layer.Digest.Validate() != nil {
			return false, nil
		}
		content, err := repository.Read(ctx, layer.Digest, left)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if left -= int64(len(content)); !json.Valid(content) {
			return false, nil
		}
	}
	return true, nil
}

// isReferrersList reports whether an index is a list of artifacts, as clients push it under a fallback tag for
// registries without the referrers API. Images in indexes have a platform and no artifact type. What it lists
// is verified when it is pulled.
func isReferrersList(manifests []v1.Descriptor) bool {
	return !slices.ContainsFunc(manifests, func(m v1.Descriptor) bool { return m.ArtifactType == "" || m.Platform != nil })
}
