package source

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

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
)

// dockerImage is an element of a docker archive's manifest.json.
// https://github.com/moby/docker-image-spec/blob/v1.3.1/README.md
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// loadDocker reads the images of a docker archive as OCI images. Configs and layers stay unchanged;
// manifests are generated deterministically.
func (s *Source) loadDocker(ctx context.Context) error {
	var list []dockerImage
	if err := s.readJSON("manifest.json", &list); err != nil {
		return err
	}
	compressed := map[string]ocispec.Descriptor{} // by layer file: images share them
	for i, saved := range list {
		name := fmt.Sprintf("number %d", i+1)
		if len(saved.RepoTags) > 0 {
			name = saved.RepoTags[0]
		}
		manifest, err := s.dockerManifest(ctx, saved, compressed)
		image := graph.Image{Descriptor: manifest}
		if err == nil {
			err = s.complete(ctx, &image)
		}
		if err != nil {
			s.broken = append(s.broken, fmt.Errorf("image %s: %w", name, err))
			continue
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

// dockerManifest generates an image's manifest and registers its blobs under their digests.
func (s *Source) dockerManifest(ctx context.Context, saved dockerImage,
	compressed map[string]ocispec.Descriptor) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	configFile, err := s.dockerFile("configuration", saved.Config)
	if err != nil {
		return none, err
	}
	raw, err := graph.ReadMetadata(configFile)
	if err != nil {
		return none, fmt.Errorf("configuration %s: %w", saved.Config, err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(raw, &config); err != nil {
		return none, fmt.Errorf("configuration %s: is not valid JSON: %w", saved.Config, err)
	}
	if len(config.RootFS.DiffIDs) != len(saved.Layers) {
		return none, fmt.Errorf("configuration %s: lists %d layers, but manifest.json lists %d", saved.Config,
			len(config.RootFS.DiffIDs), len(saved.Layers))
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    content.NewDescriptorFromBytes(ocispec.MediaTypeImageConfig, raw),
		Layers:    []ocispec.Descriptor{},
	}
	s.made.Put(manifest.Config.Digest, blob.FromBytes(raw))
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
		s.made.Put(layer.Digest, file)
		manifest.Layers = append(manifest.Layers, layer)
	}
	return s.made.PutJSON(ocispec.MediaTypeImageManifest, manifest)
}

func (s *Source) dockerFile(what, name string) (blob.Blob, error) {
	b, err := s.files.file(path.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		return blob.Blob{}, fmt.Errorf("%s %s: is missing from the source", what, name)
	}
	if err != nil {
		return blob.Blob{}, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

// describeLayer returns a layer's descriptor. Docker saves layers uncompressed, so their digest is in
// the config and is verified when they are read. Other tools compress layers, whose digests must be
// computed here.
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
			return ocispec.Descriptor{}, fmt.Errorf("the configuration lists invalid digest %q: %w", diffID, err)
		}
		desc.MediaType = ocispec.MediaTypeImageLayer
		desc.Digest = diffID
		return desc, nil
	}
	desc.Digest, err = digest.SHA256.FromReader(blob.WithContext(ctx, buffered))
	return desc, err
}
