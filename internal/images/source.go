package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
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
		if _, err := name.Named(image.Reference); err != nil {
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
	named, err := name.Named(reference)
	if err != nil {
		return nil, err
	}
	root.Reference = reference
	for i := range referrers {
		referrers[i].Reference = named.Name() + "@" + referrers[i].Descriptor.Digest.String()
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

func (s *Source) addImage(image Image) {
	if !slices.ContainsFunc(s.images, func(other Image) bool {
		return other.Reference == image.Reference && other.Descriptor.Digest == image.Descriptor.Digest
	}) {
		s.images = append(s.images, image)
	}
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
