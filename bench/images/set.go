package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	families = 5
	members  = 8 // of each family
)

// Sizes of layers in bytes. As in real images, most layers are small and a few make up most of the
// total. A family has baseLayers once and ownLayers for each member. With the scales of all families,
// the total is 1.48 GB.
var (
	baseLayers   = []float64{60e6, 30e6, 15e6, 8e6, 4e6, 2e6, 1e6, 300e3, 50e3, 1e3}
	ownLayers    = []float64{14e6, 5e6, 2.2e6, 700e3, 100e3}
	familyScales = [families]float64{0.6, 0.8, 1, 1.2, 1.4}
)

// largeLayers are the layers of the image that nodes pull: a base system, a runtime, dependencies, the
// application and small files.
var largeLayers = []float64{320e6, 270e6, 210e6, 120e6, 60e6, 15e6, 4e6, 1e6}

// domain is the fictitious registry in the images' names.
const domain = "registry.example"

// imageSet is the set of images to push and pull.
type imageSet struct {
	dir string
	// layout is an OCI layout of all images under their full names.
	layout string
	// tagged is an OCI layout of all images under tags, for tools that address images by tag.
	tagged string
	images []image
	// blobs are all distinct layers, configs and manifests.
	blobs []ocispec.Descriptor
	bytes int64 // total size of blobs

	zip    *gzip.Writer
	buffer []byte
}

// image is an image of the set.
type image struct {
	repository string // without registry
	tag        string // in tagged layouts
	single     string // an OCI layout of this image alone
	manifest   ocispec.Descriptor
}

// reference returns the image's name in a registry.
func (i image) reference(host string) string { return host + "/" + i.repository + ":v1" }

// path returns the path of a blob.
func (s *imageSet) path(d digest.Digest) string { return blobFile(s.layout, d) }

func blobFile(layout string, d digest.Digest) string {
	return filepath.Join(layout, ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// makeSet writes the images to dir. The same seed and scale give the same images.
func makeSet(dir string, seed uint64, scale float64) (*imageSet, error) {
	s, random, err := newSet(dir, seed)
	if err != nil {
		return nil, err
	}
	for family := range families {
		base, err := s.layers(random, baseLayers, scale*familyScales[family])
		if err != nil {
			return nil, err
		}
		for member := range members {
			own, err := s.layers(random, ownLayers, scale*familyScales[family])
			if err != nil {
				return nil, err
			}
			if err := s.addImage(fmt.Sprintf("bench/family-%d/app-%d", family+1, member+1),
				append(base[:len(base):len(base)], own...)); err != nil {
				return nil, err
			}
		}
	}
	return s, s.writeLayouts()
}

// makeLarge writes the image for nodes to dir.
func makeLarge(dir string, seed uint64, scale float64) (*imageSet, error) {
	s, random, err := newSet(dir, seed)
	if err != nil {
		return nil, err
	}
	layers, err := s.layers(random, largeLayers, scale)
	if err != nil {
		return nil, err
	}
	if err := s.addImage("bench/large", layers); err != nil {
		return nil, err
	}
	return s, s.writeLayouts()
}

// newSet creates an empty set in dir and the source of its content.
func newSet(dir string, seed uint64) (*imageSet, *rand.ChaCha8, error) {
	zip, err := gzip.NewWriterLevel(nil, gzip.NoCompression)
	if err != nil {
		return nil, nil, err
	}
	s := &imageSet{dir: dir, layout: filepath.Join(dir, "layout"), tagged: filepath.Join(dir, "tagged"), zip: zip,
		buffer: make([]byte, 64<<10)}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return s, rand.NewChaCha8(key), os.MkdirAll(filepath.Join(s.layout, ocispec.ImageBlobsDir, "sha256"), 0o755)
}

// layers writes layers whose sizes differ from the given ones by up to a tenth.
func (s *imageSet) layers(random *rand.ChaCha8, sizes []float64, scale float64) (made []layer, err error) {
	jitter := rand.New(random)
	for n, size := range sizes {
		// at least 16 bytes, so that all layers of a small set are distinct
		l, err := s.layer(random, fmt.Sprintf("data-%d", n), int64(size*scale*(0.9+0.2*jitter.Float64()))+16)
		if err != nil {
			return nil, err
		}
		made = append(made, l)
	}
	return made, nil
}

func (s *imageSet) addImage(repository string, layers []layer) (err error) {
	i := image{repository: repository, tag: strings.ReplaceAll(strings.TrimPrefix(repository, "bench/"), "/", "-")}
	i.single = filepath.Join(s.dir, "single", i.tag)
	i.manifest, err = s.manifest(repository, layers)
	s.images = append(s.images, i)
	return err
}

// layer is a layer's descriptor and its diff ID.
type layer struct {
	ocispec.Descriptor
	diffID digest.Digest
}

// layer writes a layer with one file of size random bytes. It uses gzip without compression, because
// tools compress layers that are plain tars.
func (s *imageSet) layer(random io.Reader, name string, size int64) (layer, error) {
	file, err := os.Create(filepath.Join(s.layout, "layer"))
	if err != nil {
		return layer{}, err
	}
	defer file.Close()
	compressed, uncompressed := sha256.New(), sha256.New()
	s.zip.Reset(io.MultiWriter(file, compressed))
	archive := tar.NewWriter(io.MultiWriter(s.zip, uncompressed))
	err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = io.CopyBuffer(onlyWriter{archive}, io.LimitReader(random, size), s.buffer)
	}
	if err == nil {
		err = archive.Close()
	}
	if err == nil {
		err = s.zip.Close()
	}
	if err != nil {
		return layer{}, err
	}
	written, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return layer{}, err
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip,
		Digest: digest.NewDigest(digest.SHA256, compressed), Size: written}
	s.add(desc)
	return layer{desc, digest.NewDigest(digest.SHA256, uncompressed)}, os.Rename(file.Name(), s.path(desc.Digest))
}

// onlyWriter hides ReadFrom, so that io.Copy uses its buffer.
type onlyWriter struct{ io.Writer }

// manifest writes the config and the manifest of an image.
func (s *imageSet) manifest(name string, layers []layer) (ocispec.Descriptor, error) {
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		Config:   ocispec.ImageConfig{Labels: map[string]string{"org.opencontainers.image.title": name}},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for n, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		config.History = append(config.History, ocispec.History{CreatedBy: fmt.Sprintf("layer %d", n)})
		manifest.Layers = append(manifest.Layers, l.Descriptor)
	}
	var err error
	if manifest.Config, err = s.document(ocispec.MediaTypeImageConfig, config); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc, err := s.document(ocispec.MediaTypeImageManifest, manifest)
	desc.Platform = &config.Platform
	return desc, err
}

// document writes a JSON blob.
func (s *imageSet) document(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	s.add(desc)
	return desc, os.WriteFile(s.path(desc.Digest), raw, 0o644)
}

func (s *imageSet) add(desc ocispec.Descriptor) {
	s.blobs = append(s.blobs, desc)
	s.bytes += desc.Size
}

// writeLayouts writes the layouts' indexes.
func (s *imageSet) writeLayouts() error {
	named, tagged := make([]ocispec.Descriptor, 0, len(s.images)), make([]ocispec.Descriptor, 0, len(s.images))
	for _, i := range s.images {
		name := i.reference(domain)
		one := annotated(i.manifest, map[string]string{"io.containerd.image.name": name, ocispec.AnnotationRefName: name,
			ocispec.AnnotationBaseImageName: name})
		named, tagged = append(named, one), append(tagged, annotated(i.manifest,
			map[string]string{ocispec.AnnotationRefName: i.tag}))
		if err := s.writeLayout(i.single, one); err != nil {
			return err
		}
	}
	if err := s.writeLayout(s.tagged, tagged...); err != nil {
		return err
	}
	return s.writeLayout(s.layout, named...)
}

func annotated(desc ocispec.Descriptor, annotations map[string]string) ocispec.Descriptor {
	desc.Annotations = annotations
	return desc
}

// writeLayout writes an OCI layout of images whose blobs are those of s.layout.
func (s *imageSet) writeLayout(dir string, images ...ocispec.Descriptor) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if dir != s.layout {
		if err := os.Symlink(filepath.Join(s.layout, ocispec.ImageBlobsDir),
			filepath.Join(dir, ocispec.ImageBlobsDir)); err != nil {
			return err
		}
	}
	for name, v := range map[string]any{
		ocispec.ImageLayoutFile: ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion},
		ocispec.ImageIndexFile: ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageIndex, Manifests: images},
	} {
		var text bytes.Buffer
		if err := json.NewEncoder(&text).Encode(v); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
