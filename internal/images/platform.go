package images

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

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
				Platforms(platformsOf(index.Manifests)))
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

// filter reduces an index to the platforms: to a single manifest, or to a new index of several, which
// put stores. It does not change an index without platforms.
func (p Platforms) filter(ctx context.Context, from Content, image *Image,
	put func(mediaType string, v any) (ocispec.Descriptor, error)) error {
	if len(p) == 0 || !oci.IsIndex(image.Descriptor.MediaType) {
		return nil
	}
	var index ocispec.Index
	if err := fetchJSON(ctx, from, image.Descriptor, &index); err != nil {
		return err
	}
	if len(platformsOf(index.Manifests)) == 0 {
		return nil
	}
	found, err := p.selectManifests(index)
	if err != nil {
		return err
	}
	if len(found) == len(index.Manifests) {
		return nil
	}
	return image.reduce(index, found, put)
}

// reduce replaces an index by one of its manifests, or by a new index of several, which put stores.
func (i *Image) reduce(index ocispec.Index, kept []ocispec.Descriptor,
	put func(mediaType string, v any) (ocispec.Descriptor, error)) (err error) {
	if len(kept) == 1 && oci.IsManifestOrIndex(kept[0].MediaType) {
		i.Descriptor = oci.Plain(kept[0])
		return nil
	}
	i.Descriptor, err = put(i.Descriptor.MediaType, ocispec.Index{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   i.Descriptor.MediaType,
		Manifests:   kept,
		Annotations: index.Annotations,
	})
	return err
}

// runs reports whether an image runs on one of the platforms, as far as it names its own.
func (p Platforms) runs(image Image) bool {
	if len(p) == 0 || len(image.Platforms) == 0 {
		return true
	}
	for _, want := range p {
		if slices.ContainsFunc(image.Platforms, platforms.Only(want).Match) {
			return true
		}
	}
	return false
}
