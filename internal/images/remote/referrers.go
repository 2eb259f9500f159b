package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Registries without the referrers API leave the list of a manifest's referrers to clients, who keep it as an index
// under a tag.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#referrers-tag-schema

// maxReferrerPages limits the pages of a referrers list. Registries put up to 1000 referrers on a page.
const maxReferrerPages = 1000

// Referrers calls yield with each page of the manifests whose subject has the digest, such as signatures, and stops at
// yield's first error.
func (r *Repository) Referrers(ctx context.Context, subject digest.Digest,
	yield func([]ocispec.Descriptor) error) error {
	err := list(ctx, r.registry, yield, func(yield func([]ocispec.Descriptor) error) error {
		return r.remote.Referrers(ctx, ocispec.Descriptor{Digest: subject}, "", yield)
	})
	switch {
	case errors.Is(err, errdef.ErrUnsupported):
		index, err := r.referrersIndex(ctx, subject)
		if err != nil || len(index.Manifests) == 0 {
			return r.registry.wrap(ctx, err)
		}
		return yield(index.Manifests)
	case errors.Is(err, errdef.ErrNotFound): // the repository does not exist
		return nil
	}
	return err
}

// referrersTag returns the tag of the index that lists a manifest's referrers. Longer digests are cut, because a tag
// has at most 128 characters.
func referrersTag(subject digest.Digest) string {
	hex := subject.Encoded()
	return subject.Algorithm().String() + "-" + hex[:min(len(hex), 64)]
}

// referrersIndex returns the index under the referrers tag, or an empty one.
func (r *Repository) referrersIndex(ctx context.Context, subject digest.Digest) (ocispec.Index, error) {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	tag := referrersTag(subject)
	desc, raw, err := r.Manifest(ctx, tag)
	switch {
	case statusCode(err) == http.StatusNotFound:
		return index, nil
	case err != nil:
		return index, err
	case desc.MediaType != ocispec.MediaTypeImageIndex || desc.Digest == subject:
		// Some registries take the tag for the subject's digest, and return the subject.
		return index, nil
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return index, protocolErrorf("returned an invalid index for tag %s: %v", tag, err)
	}
	return index, nil
}

// referrer is what a manifest says about its subject.
type referrer struct {
	ArtifactType string              `json:"artifactType"`
	Config       ocispec.Descriptor  `json:"config"`
	Subject      *ocispec.Descriptor `json:"subject"`
	Annotations  map[string]string   `json:"annotations"`
}

// referrerOf parses a manifest. Its subject is nil if it has none.
func referrerOf(desc ocispec.Descriptor, raw []byte) (manifest referrer, err error) {
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return manifest, fmt.Errorf("manifest %s: is not valid JSON: %w", desc.Digest, err)
	}
	if manifest.Subject != nil {
		if err := oci.CheckDigest(manifest.Subject.Digest); err != nil {
			return manifest, fmt.Errorf("manifest %s: its subject %q: %w", desc.Digest, manifest.Subject.Digest, err)
		}
	}
	return manifest, nil
}

// EnsureReferrer makes a manifest of the repository a listed referrer of its subject, if it has one.
func (r *Repository) EnsureReferrer(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	manifest, err := referrerOf(desc, raw)
	if err != nil || manifest.Subject == nil {
		return err
	}
	listed := false
	err = r.Referrers(ctx, manifest.Subject.Digest, func(page []ocispec.Descriptor) error {
		listed = listed || slices.ContainsFunc(page, func(d ocispec.Descriptor) bool { return d.Digest == desc.Digest })
		return nil
	})
	if err != nil || listed {
		return err
	}
	return r.PushManifest(ctx, desc, raw, "")
}

// addReferrer adds a manifest that has a subject to the index under the referrers tag.
func (r *Repository) addReferrer(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	manifest, err := referrerOf(desc, raw)
	if err != nil || manifest.Subject == nil {
		return err
	}
	subject := manifest.Subject.Digest
	desc = oci.Plain(desc)
	desc.Annotations = manifest.Annotations
	desc.ArtifactType = cmp.Or(manifest.ArtifactType, manifest.Config.MediaType)
	r.referrersMu.Lock()
	defer r.referrersMu.Unlock()
	index, err := r.referrersIndex(ctx, subject)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == desc.Digest }) {
		return nil
	}
	index.Manifests = append(index.Manifests, desc)
	raw, err = json.Marshal(index)
	if err != nil {
		return err
	}
	tag := referrersTag(subject)
	if _, err := r.putManifest(ctx, content.NewDescriptorFromBytes(index.MediaType, raw), raw, tag, nil); err != nil {
		return fmt.Errorf("listing %s under tag %s: %w", desc.Digest, tag, err)
	}
	return nil
}
