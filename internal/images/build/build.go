// Package build builds the project's own images: from programs in layers, reproducibly. It does not compile, and it
// does not transfer images.
package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

// Layer is a layer of an image to build, and its content.
type Layer struct {
	desc   ocispec.Descriptor
	diffID digest.Digest // of the uncompressed tar
	blob   blob.Blob
}

// GzipLayer returns the layer in a gzip-compressed tar. It reads the file once to compute the digests
// and again for each use, without holding it in memory. The file must not change while the layer is in
// use.
func GzipLayer(fsys fs.FS, name string) (Layer, error) {
	return gzipLayer(fsys, name, injector.Inflated{})
}

// gzipLayer is like GzipLayer, but does not inflate the layer if it is the one that content describes.
func gzipLayer(fsys fs.FS, name string, content injector.Inflated) (Layer, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	defer func() { _ = f.Close() }()
	outer := digest.SHA256.Digester()
	size, err := io.Copy(outer.Hash(), f)
	if err != nil {
		return Layer{}, fmt.Errorf("layer %s: %w", name, err)
	}
	diffID := digest.NewDigestFromEncoded(digest.SHA256, content.ArchiveSHA256)
	if outer.Digest().Encoded() != content.LayerSHA256 {
		if diffID, err = inflatedDigest(fsys, name); err != nil {
			return Layer{}, fmt.Errorf("layer %s: %w", name, err)
		}
	}
	return Layer{
		desc:   ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: outer.Digest(), Size: size},
		diffID: diffID,
		blob:   blob.Blob{Size: size, Open: func() (io.ReadCloser, error) { return fsys.Open(name) }},
	}, nil
}

// inflatedDigest returns the digest of the tar in a gzip-compressed file.
func inflatedDigest(fsys fs.FS, name string) (digest.Digest, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	return digest.SHA256.FromReader(z)
}

// tarBlock is the block size of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// FileLayer returns an uncompressed layer with one file: the one at filename, as /name, owned by root
// and executable by everyone. It reads the file once to compute the digest and again for each use,
// without holding it in memory. It is for a program that pushes itself: compressing would take longer
// than sending.
func FileLayer(name, filename string) (Layer, error) {
	info, err := os.Stat(filename)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	var head bytes.Buffer
	tw := tar.NewWriter(&head)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: 0o555, ModTime: epoch}
	if err := tw.WriteHeader(header); err != nil {
		return Layer{}, fmt.Errorf("layer of %s: %w", filename, err)
	}
	// Padding to a whole block and the two blocks at the end of a tar.
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

// Spec describes the image of a single program.
type Spec struct {
	// Reference is the image's name; its tag is the version. The digest depends only on Version.
	Reference string
	// Entrypoint is the image's entrypoint.
	Entrypoint []string
	// Labels are also the annotations of the manifests and the index.
	Labels map[string]string
}

// user is the user ID that distroless images call nonroot.
const user = "65532:65532"

// epoch is the creation time of every image, so that equal programs give equal images, even in a
// cluster, which does not know the build's SOURCE_DATE_EPOCH.
var epoch = time.Unix(0, 0).UTC()

// Variant is what an image has for one architecture of Linux.
type Variant struct {
	// Architecture is a GOARCH.
	Architecture string
	Layers       []Layer
}

// Image adds an image FROM scratch to the store: for each variant a config and a manifest, and an index of them. Equal
// arguments give equal digests.
func Image(to *graph.Store, spec Spec, variants ...Variant) (graph.Image, error) {
	if len(variants) == 0 {
		return graph.Image{}, fmt.Errorf("image %s: no layer for any architecture", spec.Reference)
	}
	index := ocispec.Index{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageIndex,
		Annotations: spec.Labels,
	}
	for _, v := range variants {
		manifest, err := addVariant(to, spec, v)
		if err != nil {
			return graph.Image{}, fmt.Errorf("image %s: %w", spec.Reference, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	root, err := to.PutJSON(ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return graph.Image{}, fmt.Errorf("image %s: %w", spec.Reference, err)
	}
	nodes, err := graph.Nodes(context.Background(), to, root)
	return graph.Image{Reference: spec.Reference, Descriptor: root, Platforms: graph.PlatformsOf(index.Manifests),
		Size: graph.Size(nodes)}, err
}

// addVariant adds the layers, the config and the manifest of a variant, and returns the manifest.
func addVariant(to *graph.Store, spec Spec, v Variant) (ocispec.Descriptor, error) {
	platform := ocispec.Platform{OS: "linux", Architecture: v.Architecture}
	rootFS := ocispec.RootFS{Type: "layers"}
	var layers []ocispec.Descriptor
	for _, l := range v.Layers {
		rootFS.DiffIDs, layers = append(rootFS.DiffIDs, l.diffID), append(layers, l.desc)
		to.Put(l.desc.Digest, l.blob)
	}
	config, err := to.PutJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Created:  &epoch,
		Platform: platform,
		Config:   ocispec.ImageConfig{User: user, Entrypoint: spec.Entrypoint, WorkingDir: "/", Labels: spec.Labels},
		RootFS:   rootFS,
		History:  slices.Repeat([]ocispec.History{{Created: &epoch, CreatedBy: "zarf-registry"}}, len(layers)),
	})
	if err != nil {
		return config, err
	}
	manifest, err := to.PutJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageManifest,
		Config:      config,
		Layers:      layers,
		Annotations: spec.Labels,
	})
	manifest.Platform = &platform
	return manifest, err
}

// Architectures are those that the project's programs are built for.
var Architectures = []string{"amd64", "arm64"}

// LicensesFile is beside the layers of programs: a layer with the license texts of the project and of all packages that
// its programs link, /licenses/LICENSES.txt.
const LicensesFile = "licenses.tar.gz"

// ProgramNames are the images that [ProgramImages] builds. init-hook's image is separate.
var ProgramNames = []string{"registry", "registry-node", "probe"}

// NewSpec returns the spec of one of the project's programs. repository is the prefix of the image's
// name, as in ghcr.io/zarf-dev/zarf-registry.
func NewSpec(repository, name, version string) Spec {
	return Spec{
		Reference:  repository + "/" + name + ":" + version,
		Entrypoint: []string{"/" + name},
		Labels: map[string]string{
			ocispec.AnnotationTitle:    name,
			ocispec.AnnotationVersion:  version,
			ocispec.AnnotationSource:   "https://github.com/zarf-dev/zarf-registry",
			ocispec.AnnotationLicenses: "Apache-2.0",
		},
	}
}

// ProgramImages builds the images of the payload's programs ([ProgramNames]) from the files NAME-ARCHITECTURE.tar.gz
// in layers, which are not copied. All but the probe, which links nothing, also have the layer [LicensesFile].
// Images have the architectures that layers has; one without all programs is an error. Digests depend only on the
// layers and the version, so the release's archives and the registry in a cluster have the same. It does not inflate
// layers that [injector.InflatedFile] describes.
func ProgramImages(layers fs.FS, repository, version string) (*graph.Store, []graph.Image, error) {
	store := &graph.Store{}
	contents, err := injector.ReadInflated(layers)
	if err != nil {
		return nil, nil, err
	}
	architectures := slices.DeleteFunc(slices.Clone(Architectures), func(arch string) bool {
		files, err := fs.Glob(layers, "*-"+arch+".tar.gz")
		return err == nil && len(files) == 0
	})
	if len(architectures) == 0 {
		return nil, nil, errors.New("no programs were built into this program")
	}
	licenses, err := GzipLayer(layers, LicensesFile)
	if err != nil {
		return nil, nil, err
	}
	var built []graph.Image
	for _, name := range ProgramNames {
		var variants []Variant
		for _, arch := range architectures {
			layer, err := gzipLayer(layers, name+"-"+arch+".tar.gz", contents[name+"-"+arch])
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil, fmt.Errorf("image of %s for %s: its layer was not built into this program: %w", name, arch, err)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("image of %s for %s: %w", name, arch, err)
			}
			v := Variant{Architecture: arch, Layers: []Layer{layer}}
			if name != "probe" {
				v.Layers = append(v.Layers, licenses)
			}
			variants = append(variants, v)
		}
		image, err := Image(store, NewSpec(repository, name, version), variants...)
		if err != nil {
			return nil, nil, err
		}
		built = append(built, image)
	}
	return store, built, nil
}

// SelfImage builds the image of the program at filename, usually /proc/self/exe, for the architecture that it runs
// on, with [LicensesFile] of layers. The layer of the program is not compressed, so the digest differs from that of
// the release's archive.
//
// Its title makes its ID differ as well: a kubelet that has pulled an image by ID requires pods with
// another name for it to present credentials (Kubernetes 1.35 and later,
// imagePullCredentialsVerificationPolicy). A node that was given the release's image by hand could no
// longer use it for the Jobs.
func SelfImage(layers fs.FS, filename, architecture, repository, name, version string) (
	*graph.Store, graph.Image, error) {
	layer, err := FileLayer(name, filename)
	if err != nil {
		return nil, graph.Image{}, fmt.Errorf("image of %s: %w", name, err)
	}
	licenses, err := GzipLayer(layers, LicensesFile)
	if err != nil {
		return nil, graph.Image{}, fmt.Errorf("image of %s: %w", name, err)
	}
	store := &graph.Store{}
	spec := NewSpec(repository, name, version)
	spec.Labels[ocispec.AnnotationTitle] += " (copy in the registry)"
	image, err := Image(store, spec, Variant{Architecture: architecture, Layers: []Layer{layer, licenses}})
	return store, image, err
}
