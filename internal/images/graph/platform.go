package graph

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Platforms are those to keep of an index that a tag refers to. Empty keeps all.
type Platforms []ocispec.Platform

// ParsePlatforms parses "all" or a comma-separated list such as linux/amd64,linux/arm/v7. It
// normalizes names: x86_64 becomes amd64.
func ParsePlatforms(text string) (Platforms, error) {
	if text == "all" {
		return nil, nil
	}
	var list Platforms
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		// containerd would complete a bare architecture with this machine's OS.
		if !strings.Contains(part, "/") {
			return nil, fmt.Errorf("platform %q: want OS/ARCHITECTURE as in linux/amd64, several separated by commas, or all",
				part)
		}
		p, err := platforms.Parse(part)
		if err != nil {
			return nil, fmt.Errorf("platform %q: %w", part, err)
		}
		if !slices.ContainsFunc(list, func(q ocispec.Platform) bool { return platforms.Format(q) == platforms.Format(p) }) {
			list = append(list, p)
		}
	}
	return list, nil
}

// String formats the platforms as [ParsePlatforms] parses them.
func (p Platforms) String() string {
	if len(p) == 0 {
		return "all"
	}
	var names []string
	for _, one := range p {
		names = append(names, platforms.Format(one))
	}
	return strings.Join(names, ",")
}

// Lacking returns those of the platforms that an image with the given ones does not run on, both in the form of
// [ParsePlatforms]. What cannot be parsed matches none.
func (p Platforms) Lacking(available []string) []string {
	var lacking []string
	for _, want := range p {
		match := platforms.Only(want)
		if !slices.ContainsFunc(available, func(text string) bool {
			have, err := platforms.Parse(text)
			return err == nil && match.Match(have)
		}) {
			lacking = append(lacking, platforms.Format(want))
		}
	}
	return lacking
}

// annotationReference is BuildKit's annotation of the manifest that an attestation is about.
// https://github.com/moby/buildkit/blob/v0.26.0/docs/attestations/attestation-storage.md
const annotationReference = "vnd.docker.reference.digest"

// selectManifests returns the manifests of an index to keep. For each platform it selects the best
// match, such as linux/arm/v6 if there is no linux/arm/v7.
func (p Platforms) selectManifests(index ocispec.Index) ([]ocispec.Descriptor, error) {
	keep := map[int]bool{}
	for _, want := range p {
		match := platforms.Only(want)
		best := -1
		for i, m := range index.Manifests {
			if m.Platform == nil || !match.Match(*m.Platform) {
				continue
			}
			if best < 0 || match.Less(*m.Platform, *index.Manifests[best].Platform) {
				best = i
			}
		}
		if best < 0 {
			return nil, fmt.Errorf("no manifest for %s, only for %s: choose with --platform", platforms.Format(want),
				Platforms(PlatformsOf(index.Manifests)))
		}
		keep[best] = true
	}
	var found []ocispec.Descriptor
	for i, m := range index.Manifests {
		if keep[i] {
			found = append(found, m)
		}
	}
	if len(found) == 1 {
		return found, nil // a single manifest replaces the index, without attestations
	}
	for _, m := range index.Manifests {
		subject := m.Annotations[annotationReference]
		if slices.ContainsFunc(found, func(kept ocispec.Descriptor) bool { return subject == kept.Digest.String() }) {
			found = append(found, m)
		}
	}
	return found, nil
}

// Filter reduces an index to the platforms: to a single manifest, or to a new index of several, which it adds to the
// store. It does not change an index without platforms.
func (p Platforms) Filter(ctx context.Context, from Content, image *Image, to *Store) error {
	if len(p) == 0 || !oci.IsIndex(image.Descriptor.MediaType) {
		return nil
	}
	var index ocispec.Index
	if err := FetchJSON(ctx, from, image.Descriptor, &index); err != nil {
		return err
	}
	if len(PlatformsOf(index.Manifests)) == 0 {
		return nil
	}
	found, err := p.selectManifests(index)
	if err != nil {
		return err
	}
	if len(found) == len(index.Manifests) {
		return nil
	}
	return image.Reduce(index, found, to)
}

// Reduce replaces an index by one of its manifests, or by a new index of several, which it adds to the store.
func (i *Image) Reduce(index ocispec.Index, kept []ocispec.Descriptor, to *Store) (err error) {
	if len(kept) == 1 && oci.IsManifestOrIndex(kept[0].MediaType) {
		i.Descriptor = oci.Plain(kept[0])
		return nil
	}
	i.Descriptor, err = to.PutJSON(i.Descriptor.MediaType, ocispec.Index{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   i.Descriptor.MediaType,
		Manifests:   kept,
		Annotations: index.Annotations,
	})
	return err
}

// PlatformsIn returns the platforms of an index's manifests, or that of a manifest's config.
func PlatformsIn(ctx context.Context, src content.Fetcher, desc ocispec.Descriptor) ([]ocispec.Platform, error) {
	switch {
	case oci.IsIndex(desc.MediaType):
		var index ocispec.Index
		if err := FetchJSON(ctx, src, desc, &index); err != nil {
			return nil, err
		}
		return PlatformsOf(index.Manifests), nil
	case oci.IsManifest(desc.MediaType):
		var manifest ocispec.Manifest
		if err := FetchJSON(ctx, src, desc, &manifest); err != nil {
			return nil, err
		}
		if !oci.IsConfig(manifest.Config.MediaType) {
			return nil, nil
		}
		var config ocispec.Image
		if err := FetchJSON(ctx, src, manifest.Config, &config); err != nil {
			return nil, err
		}
		if config.OS == "" || config.Architecture == "" {
			return nil, nil
		}
		return []ocispec.Platform{{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}}, nil
	}
	return nil, nil
}

// PlatformsOf returns the distinct platforms of manifests in an index. BuildKit gives its attestations
// the platform "unknown".
func PlatformsOf(manifests []ocispec.Descriptor) []ocispec.Platform {
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
