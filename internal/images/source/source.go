package source

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
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Source is a layout or archive that is open for reading. It is safe for concurrent use until it is
// closed.
type Source struct {
	path      string
	kind      string // for messages, as Kind returns it
	files     files
	made      graph.Store // generated manifests, and blobs of docker archives, which have no files named by digest
	images    []graph.Image
	broken    []error                // of images that are incomplete
	referrers map[digest.Digest]bool // see findSubjects
	thin      bool                   // see [graph.AnnotationThin]
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

func (s *Source) has(d digest.Digest) (bool, error) {
	_, err := s.blob(d)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s *Source) blob(d digest.Digest) (blob.Blob, error) {
	if b, ok := s.made.Find(d); ok {
		return b, nil
	}
	if err := oci.CheckDigest(d); err != nil {
		return blob.Blob{}, err
	}
	b, err := s.files.file(oci.BlobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return blob.Blob{}, missingError{}
	}
	return b, err
}

type missingError struct{}

func (missingError) Error() string { return "is missing from the source" }

func (missingError) Is(target error) bool { return target == errdef.ErrNotFound }

// Incomplete returns the errors of images that the source lists and does not hold completely, joined, or nil.
func (s *Source) Incomplete() error {
	if err := errors.Join(s.broken...); err != nil {
		return fmt.Errorf("image source %s: %s: %w", s.path, s.kind, err)
	}
	return nil
}

// Images returns the complete images in the source's order. An image with several names is listed once for
// each.
func (s *Source) Images() []graph.Image { return slices.Clone(s.images) }

// choose returns the images, which must have names. A reference names the only one, and with it its referrers.
func (s *Source) choose(reference string) (list []graph.Image, err error) {
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
func (s *Source) named(reference string) ([]graph.Image, error) {
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
	return append([]graph.Image{root}, referrers...), nil
}

// single returns the only image that refers to no other, and those that refer to it. There may be several names for it.
func (s *Source) single() (root graph.Image, referrers []graph.Image, ok bool) {
	for _, image := range s.images {
		switch {
		case s.referrers[image.Descriptor.Digest]:
			referrers = append(referrers, image)
		case !ok:
			root, ok = image, true
		case image.Descriptor.Digest != root.Descriptor.Digest:
			return graph.Image{}, nil, false
		}
	}
	return root, referrers, ok
}

// maxNames is how many images an error message lists.
const maxNames = 4

// names lists images for an error message.
func names(list []graph.Image) string {
	var quoted []string
	for _, image := range list {
		if len(quoted) == maxNames {
			quoted = append(quoted, "…")
			break
		}
		quoted = append(quoted, image.Name())
	}
	return strings.Join(quoted, ", ")
}

func (s *Source) read(name string) ([]byte, error) {
	b, err := s.files.file(name)
	if err != nil {
		return nil, err
	}
	raw, err := graph.ReadMetadata(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return raw, nil
}

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

func (s *Source) addImage(image graph.Image) {
	if !slices.ContainsFunc(s.images, func(other graph.Image) bool {
		return other.Reference == image.Reference && other.Descriptor.Digest == image.Descriptor.Digest
	}) {
		s.images = append(s.images, image)
	}
}

// complete checks that an image's content exists, and sets its size and platforms.
func (s *Source) complete(ctx context.Context, image *graph.Image) error {
	nodes, err := graph.Nodes(ctx, s, image.Descriptor)
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
			return graph.Wrap(node, err)
		}
		if b.Size != node.Size {
			return graph.Wrap(node, blob.SizeError(b.Size, node))
		}
	}
	image.Size = graph.Size(nodes)
	image.Platforms, err = graph.PlatformsIn(ctx, s, image.Descriptor)
	if len(image.Missing) > 0 && errors.Is(err, errdef.ErrNotFound) {
		return nil // the configuration names the platform
	}
	return err
}

// mayLack reports whether err means that a thin archive omits a blob.
func (s *Source) mayLack(desc ocispec.Descriptor, err error) bool {
	return s.thin && !oci.IsManifestOrIndex(desc.MediaType) && errors.Is(err, errdef.ErrNotFound)
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
func (s *Source) Items(reference string) ([]graph.Item, error) {
	list, err := s.choose(reference)
	if err != nil {
		return nil, fmt.Errorf("image source %s: %w", s.path, err)
	}
	return graph.Items(s, list...), nil
}
