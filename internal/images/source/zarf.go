package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// Files of a Zarf package. zarf.yaml has the checksum of checksums.txt, which lists those of all other files.
// https://github.com/zarf-dev/zarf/blob/v0.84.0/src/pkg/packager/layout
const (
	zarfDefinition = "zarf.yaml"
	zarfChecksums  = "checksums.txt"
	zarfImages     = "images" // an OCI layout; absent if the package has no images
)

// subdirectory is the files in a directory of a source.
type subdirectory struct {
	files
	dir string
}

func (d subdirectory) file(name string) (blob.Blob, error) {
	return d.files.file(path.Join(d.dir, name))
}

// loadZarf reads the images of a Zarf package. The package's signature is not verified.
func (s *Source) loadZarf(ctx context.Context) error {
	index, err := s.verifiedZarfIndex()
	if err != nil || !index {
		return err
	}
	s.files = subdirectory{s.files, zarfImages}
	return s.loadLayout(ctx)
}

// verifiedZarfIndex verifies the checksum of the index of a package's images, which has the digests of all others, and
// reports whether the package has one.
func (s *Source) verifiedZarfIndex() (bool, error) {
	raw, err := s.read(zarfDefinition)
	if err != nil {
		return false, err
	}
	// From v1beta1 on, the checksum is in build. Packages that have several documents repeat it in each.
	var definition struct {
		Metadata, Build struct{ AggregateChecksum string }
	}
	if err := yaml.Unmarshal(raw, &definition); err != nil {
		return false, fmt.Errorf("%s: is not valid YAML: %w", zarfDefinition, err)
	}
	sum := cmp.Or(definition.Metadata.AggregateChecksum, definition.Build.AggregateChecksum)
	if sum == "" {
		return false, fmt.Errorf("%s has no aggregateChecksum, so it is the source of a package: build it with zarf "+
			"package create", zarfDefinition)
	}
	list, err := s.read(zarfChecksums)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s is missing from the package", zarfChecksums)
	}
	if err != nil {
		return false, err
	}
	if digest.SHA256.FromBytes(list).Encoded() != sum {
		return false, zarfMismatchError(zarfChecksums, zarfDefinition)
	}
	name := zarfImages + "/" + ocispec.ImageIndexFile
	index, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	line := digest.SHA256.FromBytes(index).Encoded() + " " + name
	for listed := range bytes.Lines(list) {
		if string(bytes.TrimSpace(listed)) == line {
			return true, nil
		}
	}
	return false, zarfMismatchError(name, zarfChecksums)
}

func zarfMismatchError(file, recorded string) error {
	return fmt.Errorf("%s does not match its checksum in %s: the package was altered or damaged", file, recorded)
}

// WithZarfTags returns the items and, after each whose name has a tag, the same image under its [name.ZarfTag].
// References with a digest stay as they are in pods.
func WithZarfTags(items []graph.Item) ([]graph.Item, error) {
	var all []graph.Item
	for _, item := range items {
		all = append(all, item)
		named, err := name.Named(item.Reference)
		if err != nil {
			return nil, err
		}
		tagged, ok := named.(reference.NamedTagged)
		if !ok {
			continue
		}
		tag := name.ZarfTag(tagged)
		renamed, err := reference.WithTag(reference.TrimNamed(named), tag)
		if err != nil {
			return nil, fmt.Errorf("image %s: tag %s is too long for --zarf-tags: want at most 128 characters",
				item.Reference, tag)
		}
		item.Reference = renamed.String()
		all = append(all, item)
	}
	return all, nil
}
