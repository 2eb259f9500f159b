package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Source is a layout or archive that is open for reading. It is safe for concurrent use until it is
// closed.
type Source struct {
	path      string
	kind      string // for messages, as Kind returns it
	files     files
	made      Store // generated manifests, and blobs of docker archives, which have no files named by digest
	images    []Image
	broken    []error                         // of images that are incomplete
	subjectOf map[digest.Digest]digest.Digest // see findSubjects
	thin      bool                            // see Archive.Omit
}

// truncationHint is appended to errors about missing content.
func (s *Source) truncationHint() string {
	if s.files.whole() {
		return ""
	}
	return " (the archive has no end marker, so it seems to be truncated)"
}

// Close releases the source's files.
func (s *Source) Close() error { return s.files.Close() }

// Kind returns "OCI layout", "OCI archive", "docker archive" or "Zarf package".
func (s *Source) Kind() string { return s.kind }

// Fetch returns the content of desc, verified while it is read.
func (s *Source) Fetch(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, err := s.blob(desc.Digest)
	if err != nil {
		return nil, err
	}
	return b.Fetch(desc)
}

// has reports whether the source has the content.
func (s *Source) has(d digest.Digest) (bool, error) {
	_, err := s.blob(d)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s *Source) blob(d digest.Digest) (blob.Blob, error) {
	if b, ok := s.made.blobs[d]; ok {
		return b, nil
	}
	if err := oci.CheckDigest(d); err != nil {
		return blob.Blob{}, err
	}
	b, err := s.files.file(oci.BlobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return blob.Blob{}, missingBlobError(s.truncationHint())
	}
	return b, err
}

// missingBlobError is about content that a source lacks. Its value is a truncationHint.
type missingBlobError string

func (e missingBlobError) Error() string { return "is missing from the source" + string(e) }

func (e missingBlobError) Is(target error) bool { return target == errdef.ErrNotFound }

// Incomplete returns the errors of images that the source lists and does not hold completely, joined, or nil.
func (s *Source) Incomplete() error {
	if err := errors.Join(s.broken...); err != nil {
		return fmt.Errorf("image source %s: %s: %w", s.path, s.kind, err)
	}
	return nil
}

// Images returns the complete images in the source's order. An image with several names is listed once for
// each.
func (s *Source) Images() []Image { return slices.Clone(s.images) }

// choose returns the images, which must have names. A reference names the only one, and with it its referrers.
func (s *Source) choose(reference string) (list []Image, err error) {
	list = s.Images()
	if reference != "" {
		if list, err = s.named(reference); err != nil {
			return nil, err
		}
	}
	for _, image := range list {
		if image.Reference == "" {
			return nil, fmt.Errorf("image %s has no name: give it one with --reference NAME:TAG", image.Descriptor.Digest)
		}
		if _, err := parseReference(image.Reference); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// named returns the only image and its referrers, with names.
func (s *Source) named(reference string) ([]Image, error) {
	root, referrers, ok := s.single()
	if !ok {
		return nil, fmt.Errorf("--reference names one image, but there are several: %s", names(s.images))
	}
	name, err := parseReference(reference)
	if err != nil {
		return nil, err
	}
	root.Reference = reference
	for i := range referrers {
		referrers[i].Reference = name.Name() + "@" + referrers[i].Descriptor.Digest.String()
	}
	return append([]Image{root}, referrers...), nil
}

// single returns the only image that refers to no other, and those that refer to it. There may be several names for it.
func (s *Source) single() (root Image, referrers []Image, ok bool) {
	for _, image := range s.images {
		subject := s.subjectOf[image.Descriptor.Digest]
		switch {
		case subject != "":
			referrers = append(referrers, image)
		case !ok:
			root, ok = image, true
		case image.Descriptor.Digest != root.Descriptor.Digest:
			return Image{}, nil, false
		}
	}
	others := func(image Image) bool { return s.subjectOf[image.Descriptor.Digest] != root.Descriptor.Digest }
	return root, referrers, ok && !slices.ContainsFunc(referrers, others)
}

// names lists images for an error message.
func names(list []Image) string {
	var quoted []string
	for _, image := range list {
		if len(quoted) == maxNames {
			quoted = append(quoted, "…")
			break
		}
		quoted = append(quoted, image.name())
	}
	return strings.Join(quoted, ", ")
}

// read reads a metadata file of the source.
func (s *Source) read(name string) ([]byte, error) {
	b, err := s.files.file(name)
	if err != nil {
		return nil, err
	}
	raw, err := readMetadata(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return raw, nil
}

// readJSON reads a metadata file of the source.
func (s *Source) readJSON(name string, into any) error {
	raw, err := s.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: is not valid JSON: %w", name, err)
	}
	return nil
}

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
	s.thin = index.Annotations[annotationThin] == "true"
	for _, desc := range index.Manifests {
		listed, err := s.listedReferrers(ctx, desc)
		if err != nil {
			s.broken = append(s.broken, err)
		}
		for _, desc := range listed {
			image, err := s.layoutImage(ctx, desc)
			if err != nil {
				s.broken = append(s.broken,
					fmt.Errorf("image %s: %w", Image{Reference: layoutName(desc.Annotations), Descriptor: desc}.name(), err))
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
	if err := fetchJSON(ctx, s, desc, &index); err != nil {
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
		if err := fetchJSON(ctx, s, image.Descriptor, &index); err != nil {
			return err
		}
		for _, m := range index.Manifests {
			parts[m.Digest] = true
		}
	}
	s.images = slices.DeleteFunc(s.images, func(image Image) bool {
		return image.Reference == "" && parts[image.Descriptor.Digest]
	})
	return nil
}

// findSubjects finds, for signatures, attestations and other artifacts without a name, the image that they refer to,
// perhaps through another artifact. It names them as a registry does: by the repository of that image and their own
// digest.
func (s *Source) findSubjects(ctx context.Context) error {
	s.subjectOf = map[digest.Digest]digest.Digest{}
	images := map[digest.Digest]Image{} // by the digests of their manifests and indexes
	add := func(part, image Image) error {
		nodes, err := graph(ctx, s, part.Descriptor)
		if err != nil {
			return err
		}
		for _, node := range nodes {
			if oci.IsManifestOrIndex(node.MediaType) {
				images[node.Digest] = image
			}
		}
		return nil
	}
	subjects := map[int]digest.Digest{} // of images without a name
	for i, image := range s.images {
		var manifest struct {
			Subject *ocispec.Descriptor `json:"subject"`
		}
		if image.Reference == "" {
			if err := fetchJSON(ctx, s, image.Descriptor, &manifest); err != nil {
				return err
			}
		}
		if manifest.Subject != nil {
			subjects[i] = manifest.Subject.Digest
		} else if err := add(image, image); err != nil {
			return err
		}
	}
	// The subject may be a signature that is listed later, so repeat until nothing changes.
	for found := true; found; {
		found = false
		for i, subject := range subjects {
			image, ok := images[subject]
			if !ok {
				continue
			}
			delete(subjects, i)
			found = true
			referrer := &s.images[i]
			s.subjectOf[referrer.Descriptor.Digest] = image.Descriptor.Digest
			// The user of an invalid name reports it.
			if named, err := reference.ParseDockerRef(image.Reference); err == nil {
				referrer.Reference = named.Name() + "@" + referrer.Descriptor.Digest.String()
			}
			if err := add(*referrer, image); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Source) addImage(image Image) {
	if !slices.ContainsFunc(s.images, func(other Image) bool {
		return other.Reference == image.Reference && other.Descriptor.Digest == image.Descriptor.Digest
	}) {
		s.images = append(s.images, image)
	}
}

// layoutImage reads and checks an image in index.json.
func (s *Source) layoutImage(ctx context.Context, desc ocispec.Descriptor) (Image, error) {
	if !oci.IsManifestOrIndex(desc.MediaType) {
		return Image{}, fmt.Errorf("media type %q is neither a manifest nor an index", desc.MediaType)
	}
	image := Image{Reference: layoutName(desc.Annotations), Descriptor: oci.Plain(desc)}
	if oci.IsIndex(desc.MediaType) && s.files.whole() && !s.thin {
		if err := s.dropMissingPlatforms(ctx, &image); err != nil {
			return Image{}, err
		}
	}
	return image, s.complete(ctx, &image)
}

// complete checks that an image's content exists, and sets its size and platforms.
func (s *Source) complete(ctx context.Context, image *Image) error {
	nodes, err := graph(ctx, s, image.Descriptor)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		b, err := s.blob(node.Digest)
		if s.mayLack(node, err) {
			image.Missing = append(image.Missing, node)
			continue
		}
		if err != nil {
			return wrapDescriptor(node, err)
		}
		if b.Size != node.Size {
			return wrapDescriptor(node, blob.SizeError(b.Size, node))
		}
	}
	image.Size = totalSize(nodes)
	image.Platforms, err = platformsIn(ctx, s, image.Descriptor)
	if len(image.Missing) > 0 && errors.Is(err, errdef.ErrNotFound) {
		return nil // the configuration names the platform
	}
	return err
}

// mayLack reports whether err means that a thin archive omits a blob.
func (s *Source) mayLack(desc ocispec.Descriptor, err error) bool {
	return s.thin && !oci.IsManifestOrIndex(desc.MediaType) && errors.Is(err, errdef.ErrNotFound) && s.files.whole()
}

// hasManifest reports whether the source has an index's manifest and its config. If Docker's
// containerd image store pulled only the manifest of a platform, it saves the manifest alone.
func (s *Source) hasManifest(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	ok, err := s.has(desc.Digest)
	if err != nil || !ok || !oci.IsManifest(desc.MediaType) {
		return ok, err
	}
	var manifest ocispec.Manifest
	if err := fetchJSON(ctx, s, desc, &manifest); err != nil {
		return false, err
	}
	return s.has(manifest.Config.Digest)
}

// dropMissingPlatforms reduces an index to the platforms that the source holds: to a single manifest,
// or to a new index of several. A registry would reject the original index.
func (s *Source) dropMissingPlatforms(ctx context.Context, image *Image) error {
	var index ocispec.Index
	if err := fetchJSON(ctx, s, image.Descriptor, &index); err != nil {
		return err
	}
	var present, missing []ocispec.Descriptor
	for _, m := range index.Manifests {
		ok, err := s.hasManifest(ctx, m)
		if err != nil {
			return wrapDescriptor(m, err)
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
	image.Omitted = platformsOf(missing)
	return image.reduce(index, present, s.made.addJSON)
}

// Blob returns content as it is in the source.
func (s *Source) Blob(_ context.Context, desc ocispec.Descriptor, _ func(offset, n int64)) (blob.Blob, error) {
	b, err := s.blob(desc.Digest)
	if err == nil && b.Size != desc.Size {
		err = blob.SizeError(b.Size, desc)
	}
	return b, err
}

// Items returns the images with their names. If reference is empty, it returns all images, and each
// must have a name. Otherwise the source must hold one image, which gets that name.
func (s *Source) Items(reference string) ([]Item, error) {
	list, err := s.choose(reference)
	if err != nil {
		return nil, fmt.Errorf("image source %s: %w", s.path, err)
	}
	return Items(s, list...), nil
}
