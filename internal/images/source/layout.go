package source

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// loadLayout reads the images of an OCI layout.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
func (s *Source) loadLayout(ctx context.Context) error {
	var layout ocispec.ImageLayout
	if err := s.readJSON(ocispec.ImageLayoutFile, &layout); err != nil {
		return err
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("%s: unsupported version %q: want %s", ocispec.ImageLayoutFile, layout.Version,
			ocispec.ImageLayoutVersion)
	}
	var index ocispec.Index
	if err := s.readJSON(ocispec.ImageIndexFile, &index); err != nil {
		return err
	}
	s.thin = index.Annotations[graph.AnnotationThin] == "true"
	for _, desc := range index.Manifests {
		listed, err := s.listedReferrers(ctx, desc)
		if err != nil {
			s.broken = append(s.broken, err)
		}
		for _, desc := range listed {
			image, err := s.layoutImage(ctx, desc)
			if err != nil {
				s.broken = append(s.broken, fmt.Errorf("image %s: %w", image.Name(), err))
				continue
			}
			s.addImage(image)
		}
	}
	if err := s.dropIndexMembers(ctx); err != nil {
		return err
	}
	return s.findSubjects(ctx)
}

// referrersTag matches the tag of an index that lists the referrers of a manifest. regctl keeps one in layouts, too.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#referrers-tag-schema
var referrersTag = regexp.MustCompile(`^sha(256|512)-[0-9a-f]{64}$`)

// listedReferrers returns the manifests of an index that lists referrers, without their annotations, which are not
// names, and otherwise desc.
func (s *Source) listedReferrers(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if desc.MediaType != ocispec.MediaTypeImageIndex ||
		!referrersTag.MatchString(desc.Annotations[ocispec.AnnotationRefName]) {
		return []ocispec.Descriptor{desc}, nil
	}
	var index ocispec.Index
	if err := graph.FetchJSON(ctx, s, desc, &index); err != nil {
		return nil, err
	}
	for i, m := range index.Manifests {
		index.Manifests[i] = oci.Plain(m)
	}
	return index.Manifests, nil
}

// dropIndexMembers drops images without a name that belong to an index: ORAS lists every manifest of a
// layout in index.json. It also drops unnamed duplicates of named images, which skopeo and regctl list
// by tag only.
func (s *Source) dropIndexMembers(ctx context.Context) error {
	parts := map[digest.Digest]bool{}
	for _, image := range s.images {
		if image.Reference != "" {
			parts[image.Descriptor.Digest] = true
		}
		if !oci.IsIndex(image.Descriptor.MediaType) {
			continue
		}
		var index ocispec.Index
		if err := graph.FetchJSON(ctx, s, image.Descriptor, &index); err != nil {
			return err
		}
		for _, m := range index.Manifests {
			parts[m.Digest] = true
		}
	}
	s.images = slices.DeleteFunc(s.images, func(image graph.Image) bool {
		return image.Reference == "" && parts[image.Descriptor.Digest]
	})
	return nil
}

// findSubjects finds, for signatures, attestations and other artifacts without a name, the image that they refer to,
// perhaps through another artifact. It names them as a registry does: by the repository of that image and their own
// digest.
func (s *Source) findSubjects(ctx context.Context) error {
	s.referrers = map[digest.Digest]bool{}
	partOf := map[digest.Digest]*graph.Image{} // by the digests of manifests and indexes
	subjects := map[*graph.Image]digest.Digest{}
	for i := range s.images {
		image := &s.images[i]
		nodes, err := graph.Nodes(ctx, s, image.Descriptor)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			if oci.IsManifestOrIndex(node.MediaType) {
				partOf[node.Digest] = image
			}
		}
		var manifest struct {
			Subject *ocispec.Descriptor `json:"subject"`
		}
		if image.Reference == "" {
			if err := graph.FetchJSON(ctx, s, image.Descriptor, &manifest); err != nil {
				return err
			}
		}
		if manifest.Subject != nil {
			subjects[image] = manifest.Subject.Digest
		}
	}
	for referrer := range subjects {
		image := referrer
		for range s.images { // an index that refers to a part of itself would never end
			if subject := subjects[image]; subject != "" {
				image = partOf[subject]
			}
		}
		if image == nil || subjects[image] != "" {
			continue
		}
		s.referrers[referrer.Descriptor.Digest] = true
		// The user of an invalid name reports it.
		if named, err := reference.ParseDockerRef(image.Reference); err == nil {
			referrer.Reference = named.Name() + "@" + referrer.Descriptor.Digest.String()
		}
	}
	return nil
}

// layoutImage reads and checks an image in index.json.
func (s *Source) layoutImage(ctx context.Context, desc ocispec.Descriptor) (graph.Image, error) {
	image := graph.Image{Reference: graph.LayoutName(desc.Annotations), Descriptor: oci.Plain(desc)}
	if !oci.IsManifestOrIndex(desc.MediaType) {
		return image, fmt.Errorf("media type %q is neither a manifest nor an index", desc.MediaType)
	}
	if oci.IsIndex(desc.MediaType) && !s.thin {
		if err := s.dropMissingPlatforms(ctx, &image); err != nil {
			return image, err
		}
	}
	return image, s.complete(ctx, &image)
}

// hasManifest reports whether the source has an index's manifest and its config. If Docker's
// containerd image store pulled only the manifest of a platform, it saves the manifest alone.
func (s *Source) hasManifest(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	ok, err := s.has(desc.Digest)
	if err != nil || !ok || !oci.IsManifest(desc.MediaType) {
		return ok, err
	}
	var manifest ocispec.Manifest
	if err := graph.FetchJSON(ctx, s, desc, &manifest); err != nil {
		return false, err
	}
	return s.has(manifest.Config.Digest)
}

// dropMissingPlatforms reduces an index to the platforms that the source holds: to a single manifest,
// or to a new index of several. A registry would reject the original index.
func (s *Source) dropMissingPlatforms(ctx context.Context, image *graph.Image) error {
	var index ocispec.Index
	if err := graph.FetchJSON(ctx, s, image.Descriptor, &index); err != nil {
		return err
	}
	var present, missing []ocispec.Descriptor
	for _, m := range index.Manifests {
		ok, err := s.hasManifest(ctx, m)
		if err != nil {
			return graph.Wrap(m, err)
		}
		if ok {
			present = append(present, m)
		} else {
			missing = append(missing, m)
		}
	}
	if len(missing) == 0 || len(present) == 0 {
		return nil
	}
	image.Omitted = graph.PlatformsOf(missing)
	return image.Reduce(index, present, &s.made)
}
