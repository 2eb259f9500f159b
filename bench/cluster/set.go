package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	families = 5
	members  = 8 // of each family

	// In the changed set, a layer of every sixth image has changed.
	changedEvery = 6
	changedLayer = 2 // of ownLayers
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

// imageSet is a set of images of random content.
type imageSet struct {
	store  string // directory of the blobs, which sets may share
	layout string // an OCI layout of all images
	images []image
	// blobs are the layers, configs and manifests that were written for this set.
	blobs  []ocispec.Descriptor
	bytes  int64 // total size of blobs
	random *rand.ChaCha8
}

// image is an image of a set.
type image struct {
	repository string // without registry
	single     string // an OCI layout of this image alone
	manifest   ocispec.Descriptor
}

// reference returns the image's name in a registry.
func (i image) reference(host string) string { return host + "/" + i.repository + ":v1" }

// newSet creates an empty set in dir with blobs in store.
func newSet(dir, store string, seed uint64) (*imageSet, error) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &imageSet{store: store, layout: filepath.Join(dir, "layout"), random: rand.NewChaCha8(key)},
		os.MkdirAll(filepath.Join(store, "sha256"), 0o755)
}

// makeSets writes the images to dir, and a set in which one layer of some images has changed, 1 % of all
// bytes. The same seed and scale give the same images.
func makeSets(dir string, seed uint64, scale float64) (all, changed *imageSet, err error) {
	store := filepath.Join(dir, "store")
	if all, err = newSet(filepath.Join(dir, "all"), store, seed); err != nil {
		return nil, nil, err
	}
	if changed, err = newSet(filepath.Join(dir, "changed"), store, seed+1); err != nil {
		return nil, nil, err
	}
	for family, factor := range familyScales {
		base, err := all.layers(scale*factor, baseLayers...)
		if err != nil {
			return nil, nil, err
		}
		for member := range members {
			own, err := all.layers(scale*factor, ownLayers...)
			if err != nil {
				return nil, nil, err
			}
			layers := slices.Concat(base, own)
			name := fmt.Sprintf("bench/family-%d/app-%d", family+1, member+1)
			if err := all.addImage(name, layers); err != nil {
				return nil, nil, err
			}
			if len(all.images)%changedEvery == 1 {
				other, err := changed.layers(scale*factor, ownLayers[changedLayer])
				if err != nil {
					return nil, nil, err
				}
				layers[len(base)+changedLayer] = other[0]
			}
			if err := changed.addImage(name, layers); err != nil {
				return nil, nil, err
			}
		}
	}
	return all, changed, errors.Join(all.writeLayout(), changed.writeLayout())
}

// makeImage writes one image of random layers to dir.
func makeImage(dir, repository string, seed uint64, scale float64, sizes ...float64) (*imageSet, error) {
	s, err := newSet(dir, filepath.Join(dir, "store"), seed)
	if err != nil {
		return nil, err
	}
	layers, err := s.layers(scale, sizes...)
	if err != nil {
		return nil, err
	}
	return s, errors.Join(s.addImage(repository, layers), s.writeLayout())
}

// makeProgram writes an image of this program to dir. Images with different names share no layer.
func makeProgram(dir, repository, mode string) (*imageSet, error) {
	s, err := newSet(dir, filepath.Join(dir, "store"), 0)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(repository)
	l, err := s.layer(bytes.NewReader(program), name, int64(len(program)))
	if err != nil {
		return nil, err
	}
	return s, errors.Join(s.addImage(repository, []layer{l}, "/"+name, mode), s.writeLayout())
}

// layers writes layers whose sizes differ from the given ones by up to a tenth.
func (s *imageSet) layers(scale float64, sizes ...float64) (made []layer, err error) {
	jitter := rand.New(s.random)
	for n, size := range sizes {
		// at least 16 bytes, so that all layers of a small set are distinct
		l, err := s.layer(s.random, fmt.Sprintf("data-%d", n), int64(size*scale*(0.9+0.2*jitter.Float64()))+16)
		if err != nil {
			return nil, err
		}
		made = append(made, l)
	}
	return made, nil
}

// layer is a layer's descriptor and its diff ID.
type layer struct {
	ocispec.Descriptor
	diffID digest.Digest
}

// layer writes a layer with one file. It uses gzip without compression, because tools compress layers that
// are plain tars.
func (s *imageSet) layer(content io.Reader, name string, size int64) (layer, error) {
	file, err := os.Create(filepath.Join(s.store, "layer"))
	if err != nil {
		return layer{}, err
	}
	defer file.Close()
	compressed, uncompressed := sha256.New(), sha256.New()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(file, compressed), gzip.NoCompression)
	if err != nil {
		return layer{}, err
	}
	archive := tar.NewWriter(io.MultiWriter(zip, uncompressed))
	err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: size, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = io.CopyN(archive, content, size)
	}
	if err == nil {
		err = archive.Close()
	}
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		return layer{}, err
	}
	written, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return layer{}, err
	}
	desc := s.add(ocispec.MediaTypeImageLayerGzip, digest.NewDigest(digest.SHA256, compressed), written)
	return layer{desc, digest.NewDigest(digest.SHA256, uncompressed)}, os.Rename(file.Name(), s.path(desc.Digest))
}

// addImage writes the config and the manifest of an image.
func (s *imageSet) addImage(repository string, layers []layer, entrypoint ...string) error {
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config: ocispec.ImageConfig{Entrypoint: entrypoint,
			Labels: map[string]string{"org.opencontainers.image.title": repository}},
		RootFS: ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		manifest.Layers = append(manifest.Layers, l.Descriptor)
	}
	var err error
	if manifest.Config, err = s.document(ocispec.MediaTypeImageConfig, config); err != nil {
		return err
	}
	i := image{repository: repository, single: filepath.Join(filepath.Dir(s.layout), "single",
		strings.ReplaceAll(repository, "/", "-"))}
	i.manifest, err = s.document(ocispec.MediaTypeImageManifest, manifest)
	i.manifest.Platform = &config.Platform
	name := i.reference(domain)
	i.manifest.Annotations = map[string]string{"io.containerd.image.name": name, ocispec.AnnotationRefName: name,
		ocispec.AnnotationBaseImageName: name}
	s.images = append(s.images, i)
	if err != nil {
		return err
	}
	if err := writeIndex(i.single, i.manifest); err != nil {
		return err
	}
	return os.Symlink(s.store, filepath.Join(i.single, ocispec.ImageBlobsDir))
}

// document writes a JSON blob.
func (s *imageSet) document(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := s.add(mediaType, digest.FromBytes(raw), int64(len(raw)))
	return desc, os.WriteFile(s.path(desc.Digest), raw, 0o644)
}

func (s *imageSet) add(mediaType string, d digest.Digest, size int64) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: size}
	s.blobs = append(s.blobs, desc)
	s.bytes += size
	return desc
}

// path returns the path of a blob.
func (s *imageSet) path(d digest.Digest) string { return filepath.Join(s.store, "sha256", d.Encoded()) }

// writeLayout writes the layout of all images.
func (s *imageSet) writeLayout() error {
	all := make([]ocispec.Descriptor, len(s.images))
	for n, i := range s.images {
		all[n] = i.manifest
	}
	if err := writeIndex(s.layout, all...); err != nil {
		return err
	}
	// zarf-registry does not follow symbolic links out of a layout.
	link := exec.Command("cp", "-al", s.store, filepath.Join(s.layout, ocispec.ImageBlobsDir))
	if out, err := link.CombinedOutput(); err != nil {
		return fmt.Errorf("linking the blobs: %w: %s", err, out)
	}
	return nil
}

// writeIndex writes an OCI layout without blobs.
func writeIndex(dir string, images ...ocispec.Descriptor) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex, Manifests: images})
	return errors.Join(err, writeFile(filepath.Join(dir, ocispec.ImageIndexFile), string(index)),
		writeFile(filepath.Join(dir, ocispec.ImageLayoutFile), `{"imageLayoutVersion":"1.0.0"}`))
}
