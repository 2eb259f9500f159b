package images

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// dockerImage is an element of a docker archive's manifest.json.
// https://github.com/moby/docker-image-spec/blob/v1.3.1/README.md
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// loadDocker reads the images of a docker archive, as OCI images. The
// configuration stays as it is, and so do the layers; the manifest is made, and
// is the same for the same archive.
func (s *Source) loadDocker(ctx context.Context) error {
	var list []dockerImage
	if err := s.readJSON("manifest.json", &list); err != nil {
		return err
	}
	compressed := map[string]ocispec.Descriptor{} // layers by file: images share them
	for i, saved := range list {
		name := fmt.Sprintf("number %d", i+1)
		if len(saved.RepoTags) > 0 {
			name = saved.RepoTags[0]
		}
		manifest, err := s.dockerManifest(ctx, saved, compressed)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		image := Image{Descriptor: manifest}
		if err := s.complete(ctx, &image); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if len(saved.RepoTags) == 0 {
			s.addImage(image)
		}
		for _, tag := range saved.RepoTags {
			image.Reference = tag
			s.addImage(image)
		}
	}
	return nil
}

// dockerManifest makes an image's manifest and registers its blobs under their
// digests.
func (s *Source) dockerManifest(ctx context.Context, saved dockerImage, compressed map[string]ocispec.Descriptor) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	configFile, err := s.dockerFile("configuration", saved.Config)
	if err != nil {
		return none, err
	}
	if configFile.Size > oci.MaxManifestSize {
		return none, fmt.Errorf("configuration %s: has %d bytes, more than the %d that are read", saved.Config, configFile.Size, oci.MaxManifestSize)
	}
	raw, err := readAll(configFile)
	if err != nil {
		return none, fmt.Errorf("configuration %s: %w", saved.Config, err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(raw, &config); err != nil {
		return none, fmt.Errorf("configuration %s: is not the JSON that it should be: %w", saved.Config, err)
	}
	if len(config.RootFS.DiffIDs) != len(saved.Layers) {
		return none, fmt.Errorf("configuration %s: names %d layers, and manifest.json %d", saved.Config, len(config.RootFS.DiffIDs), len(saved.Layers))
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    content.NewDescriptorFromBytes(ocispec.MediaTypeImageConfig, raw),
		Layers:    []ocispec.Descriptor{},
	}
	s.made.add(manifest.Config.Digest, blob.FromBytes(raw))
	for i, name := range saved.Layers {
		file, err := s.dockerFile("layer", name)
		if err != nil {
			return none, err
		}
		layer, known := compressed[name]
		if !known {
			if layer, err = describeLayer(ctx, file, config.RootFS.DiffIDs[i]); err != nil {
				return none, fmt.Errorf("layer %s: %w", name, err)
			}
			if layer.MediaType != ocispec.MediaTypeImageLayer {
				compressed[name] = layer
			}
		}
		s.made.add(layer.Digest, file)
		manifest.Layers = append(manifest.Layers, layer)
	}
	return s.made.addJSON(ocispec.MediaTypeImageManifest, manifest)
}

func (s *Source) dockerFile(what, name string) (blob.Blob, error) {
	b, err := s.files.file(path.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		return blob.Blob{}, fmt.Errorf("%s %s: is missing in the source%s", what, name, s.truncationHint())
	}
	if err != nil {
		return blob.Blob{}, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

// describeLayer computes a layer's descriptor. docker saves layers uncompressed:
// then their digest must be the one that the configuration has for the content,
// and they are not read here; it is verified when they are. Other tools compress
// them, and the digest of that stands nowhere.
func describeLayer(ctx context.Context, file blob.Blob, diffID digest.Digest) (ocispec.Descriptor, error) {
	rc, err := file.Open()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer rc.Close()
	buffered := bufio.NewReader(rc)
	head, err := buffered.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{Size: file.Size}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		desc.MediaType = ocispec.MediaTypeImageLayerGzip
	case bytes.HasPrefix(head, zstdMagic):
		desc.MediaType = ocispec.MediaTypeImageLayerZstd
	default:
		if err := diffID.Validate(); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("the configuration has %q as its digest: %w", diffID, err)
		}
		desc.MediaType = ocispec.MediaTypeImageLayer
		desc.Digest = diffID
		return desc, nil
	}
	desc.Digest, err = digest.SHA256.FromReader(contextReader{ctx, buffered})
	return desc, err
}

func readAll(b blob.Blob) ([]byte, error) {
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

// dockerManifestFile lists the images of a docker archive.
const dockerManifestFile = "manifest.json"

// layoutIsWrong tells an archive whose OCI layout is not what its manifest.json is,
// which docker itself goes by. Engine 25.0.0 writes an image's layers into its
// OCI manifest in any order (https://github.com/moby/moby/issues/47150), 25.0 up to
// 25.0.2 no image at all where it is saved by its ID or digest (issue 47210), and
// all of them till now only the first such image of several (issue 51389).
// What cannot be read is told when it is loaded.
func layoutUnreliable(f files) bool {
	var saved []dockerImage
	var index ocispec.Index
	source := &Source{files: f}
	if source.readJSON(dockerManifestFile, &saved) != nil || source.readJSON(ocispec.ImageIndexFile, &index) != nil {
		return false
	}
	manifests := map[string][]ocispec.Manifest{} // by the file of their configuration
	source.collectManifests(index.Manifests, manifests, map[digest.Digest]bool{})
	for _, image := range saved {
		if _, isBlob := oci.ParseBlobPath(image.Config); !isBlob {
			// Two descriptions that have nothing to do with each other.
			return false
		}
		if !slices.ContainsFunc(manifests[image.Config], image.hasLayersOf) {
			return true
		}
	}
	return false
}

// collect finds the manifests that are there of images, by the files of their
// configurations.
func (s *Source) collectManifests(list []ocispec.Descriptor, found map[string][]ocispec.Manifest, seen map[digest.Digest]bool) {
	for _, desc := range list {
		if desc.Digest.Validate() != nil || seen[desc.Digest] {
			continue
		}
		seen[desc.Digest] = true
		switch {
		case oci.IsIndex(desc.MediaType):
			var index ocispec.Index
			if s.readJSON(oci.BlobPath(desc.Digest), &index) == nil {
				s.collectManifests(index.Manifests, found, seen)
			}
		case oci.IsManifest(desc.MediaType):
			var manifest ocispec.Manifest
			if s.readJSON(oci.BlobPath(desc.Digest), &manifest) == nil && manifest.Config.Digest.Validate() == nil {
				config := oci.BlobPath(manifest.Config.Digest)
				found[config] = append(found[config], manifest)
			}
		}
	}
}

// agrees tells whether a manifest has the image's layers. manifest.json has a
// foreign layer as what is in it, the manifest as what its owner gives.
func (d dockerImage) hasLayersOf(manifest ocispec.Manifest) bool {
	return slices.EqualFunc(manifest.Layers, d.Layers, func(layer ocispec.Descriptor, name string) bool {
		return oci.IsNonDistributable(layer.MediaType) || layer.Digest.Validate() == nil && oci.BlobPath(layer.Digest) == name
	})
}

// withoutLayout is files of which the OCI layout is not to be believed.
type dockerOnly struct{ files }

func (w dockerOnly) file(name string) (blob.Blob, error) {
	if name == ocispec.ImageIndexFile || name == ocispec.ImageLayoutFile {
		return blob.Blob{}, fs.ErrNotExist
	}
	return w.files.file(name)
}
