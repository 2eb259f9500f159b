package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// Layer is a layer of an image that is being built, and where its bytes are.
type Layer struct {
	desc   ocispec.Descriptor
	diffID digest.Digest // of the tar inside
	blob   blob.Blob
}

// GzipLayer is the layer in the file name of fsys, a gzip-compressed tar. The
// file is read once to compute its digests and again for each use; of it
// nothing stays in memory. It must not change as long as the layer is in use.
func GzipLayer(fsys fs.FS, name string) (Layer, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	defer func() { _ = f.Close() }()
	var size counter
	outer, inner := digest.SHA256.Digester(), digest.SHA256.Digester()
	compressed := io.TeeReader(f, io.MultiWriter(outer.Hash(), &size))
	z, err := gzip.NewReader(compressed)
	if err != nil {
		return Layer{}, fmt.Errorf("layer %s: %w", name, err)
	}
	if _, err := io.Copy(inner.Hash(), z); err != nil {
		return Layer{}, fmt.Errorf("layer %s: %w", name, err)
	}
	// Past what the decompressor wanted, if anything is there.
	if _, err := io.Copy(io.Discard, compressed); err != nil {
		return Layer{}, fmt.Errorf("layer %s: %w", name, err)
	}
	return Layer{
		desc:   ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: outer.Digest(), Size: int64(size)},
		diffID: inner.Digest(),
		blob:   blob.Blob{Size: int64(size), Open: func() (io.ReadCloser, error) { return fsys.Open(name) }},
	}, nil
}

// FileLayer is an uncompressed layer with one file: the one at filename, as
// /name, executable by everyone and owned by root. The file is read once to
// compute the digest and again for each use; of it nothing stays in memory. It
// is for a program that puts itself into a registry: to compress it first would
// take longer than to send it.
func FileLayer(name, filename string) (Layer, error) {
	info, err := os.Stat(filename)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	var head bytes.Buffer
	tw := tar.NewWriter(&head)
	if err := tw.WriteHeader(fileHeader(name, info.Size(), 0o555)); err != nil {
		return Layer{}, fmt.Errorf("layer of %s: %w", filename, err)
	}
	// Padding to a whole block, and the two blocks that end a tar.
	tail := make([]byte, (tarBlock-info.Size()%tarBlock)%tarBlock+2*tarBlock)
	b := blob.Blob{
		Size: int64(head.Len()) + info.Size() + int64(len(tail)),
		Open: func() (io.ReadCloser, error) {
			f, err := os.Open(filename)
			if err != nil {
				return nil, err
			}
			return struct {
				io.Reader
				io.Closer
			}{io.MultiReader(bytes.NewReader(head.Bytes()), io.LimitReader(f, info.Size()), bytes.NewReader(tail)), f}, nil
		},
	}
	rc, err := b.Open()
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	defer rc.Close()
	d, err := digest.SHA256.FromReader(rc)
	if err != nil {
		return Layer{}, fmt.Errorf("layer of %s: %w", filename, err)
	}
	return Layer{
		desc:   ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: b.Size},
		diffID: d,
		blob:   b,
	}, nil
}

// Spec is what an image of a single program says about itself.
type Spec struct {
	// Reference is the image's name. The tag is its version. Neither is part of
	// what the digest covers, except through Version.
	Reference string
	// Entrypoint is the command that the image runs.
	Entrypoint []string
	// Title, Version, Source and Licenses become the labels and annotations
	// org.opencontainers.image.*, where they are set.
	Title, Version, Source, Licenses string
}

// user runs the programs: the number that distroless images call nonroot.
const user = "65532:65532"

// epoch is when every image says that it was made: equal programs must give
// equal images wherever and whenever they are built, a cluster included, which
// knows nothing of the build's SOURCE_DATE_EPOCH.
var epoch = time.Unix(0, 0).UTC()

// Variant is an image's layer for one architecture of Linux.
type Variant struct {
	// Architecture is named as Go names it.
	Architecture string
	Layer        Layer
}

// Build adds an image FROM scratch to the store: for each variant a
// configuration and a manifest with one layer, and over them an index. Equal
// arguments give the same bytes, and thereby the same digests.
func (s *Store) Build(spec Spec, variants ...Variant) (Image, error) {
	if len(variants) == 0 {
		return Image{}, fmt.Errorf("image %s: no layer for any architecture", spec.Reference)
	}
	labels := map[string]string{
		ocispec.AnnotationTitle:    spec.Title,
		ocispec.AnnotationVersion:  spec.Version,
		ocispec.AnnotationSource:   spec.Source,
		ocispec.AnnotationLicenses: spec.Licenses,
	}
	maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
	index := ocispec.Index{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageIndex,
		Annotations: labels,
	}
	image := Image{Reference: spec.Reference}
	counted := map[digest.Digest]bool{}
	count := func(desc ocispec.Descriptor) {
		if !counted[desc.Digest] {
			counted[desc.Digest] = true
			image.Size += desc.Size
		}
	}
	for _, v := range variants {
		platform := ocispec.Platform{OS: "linux", Architecture: v.Architecture}
		config, err := s.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
			Created:  &epoch,
			Platform: platform,
			Config:   ocispec.ImageConfig{User: user, Entrypoint: spec.Entrypoint, WorkingDir: "/", Labels: labels},
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{v.Layer.diffID}},
			History:  []ocispec.History{{Created: &epoch, CreatedBy: "zarf-registry"}},
		})
		if err != nil {
			return Image{}, fmt.Errorf("image %s: %w", spec.Reference, err)
		}
		s.add(v.Layer.desc.Digest, v.Layer.blob)
		manifest, err := s.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned:   specs.Versioned{SchemaVersion: 2},
			MediaType:   ocispec.MediaTypeImageManifest,
			Config:      config,
			Layers:      []ocispec.Descriptor{v.Layer.desc},
			Annotations: labels,
		})
		if err != nil {
			return Image{}, fmt.Errorf("image %s: %w", spec.Reference, err)
		}
		for _, desc := range []ocispec.Descriptor{v.Layer.desc, config, manifest} {
			count(desc)
		}
		manifest.Platform = &platform
		index.Manifests = append(index.Manifests, manifest)
		image.Platforms = append(image.Platforms, platform)
	}
	root, err := s.addJSON(ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", spec.Reference, err)
	}
	count(root)
	image.Descriptor = root
	return image, nil
}

// Architectures are those that the project's programs are built for.
var Architectures = []string{"amd64", "arm64"}

// ProgramNames are the images that [ProgramImages] makes, besides which there
// is the one of init-hook.
var ProgramNames = []string{"registry", "registry-node", "probe"}

// NewSpec is the specification of the project's image of the program name in
// the given version. repository is what stands before the name in its
// reference, as in ghcr.io/zarf-dev/zarf-registry.
func NewSpec(repository, name, version string) Spec {
	return Spec{
		Reference:  repository + "/" + name + ":" + version,
		Entrypoint: []string{"/" + name},
		Title:      name,
		Version:    version,
		Source:     "https://github.com/zarf-dev/zarf-registry",
		Licenses:   "Apache-2.0",
	}
}

// ProgramImages makes the images of the programs that a payload carries
// ([ProgramNames]), from their layers in the files NAME-ARCHITECTURE.tar.gz of
// layers. The layers are not copied. Digests depend on the layers and the
// version alone: the release's archives and the registry in a cluster have the
// same.
func ProgramImages(layers fs.FS, repository, version string) (*Store, []Image, error) {
	store := &Store{}
	var built []Image
	for _, name := range ProgramNames {
		var variants []Variant
		for _, arch := range Architectures {
			layer, err := GzipLayer(layers, name+"-"+arch+".tar.gz")
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil, fmt.Errorf("image of %s for %s: its layer was not built into this program: %w", name, arch, err)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("image of %s for %s: %w", name, arch, err)
			}
			variants = append(variants, Variant{Architecture: arch, Layer: layer})
		}
		image, err := store.Build(NewSpec(repository, name, version), variants...)
		if err != nil {
			return nil, nil, err
		}
		built = append(built, image)
	}
	return store, built, nil
}

// SelfImage makes the image of the program at filename, which is in general
// /proc/self/exe, for the one architecture that it runs on. Its layer is not
// compressed, so its digest differs from that of the release's archive.
//
// So does its ID: a kubelet that has pulled an image knows it by its ID, and from then
// on wants pods that name the same image otherwise to show that they could pull it,
// though it was there before (Kubernetes 1.35 and later, imagePullCredentialsVerificationPolicy).
// A node that was given the release's image by hand would so lose it for the Jobs.
func SelfImage(filename, architecture, repository, name, version string) (*Store, Image, error) {
	layer, err := FileLayer(name, filename)
	if err != nil {
		return nil, Image{}, fmt.Errorf("image of %s: %w", name, err)
	}
	store := &Store{}
	spec := NewSpec(repository, name, version)
	spec.Title += " (copy in the registry)"
	image, err := store.Build(spec, Variant{Architecture: architecture, Layer: layer})
	return store, image, err
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
