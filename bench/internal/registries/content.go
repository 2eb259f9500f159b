package registries

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Random returns size incompressible bytes that depend only on the seed.
func Random(seed uint64, size int64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return io.LimitReader(rand.NewChaCha8(key), size)
}

// Manifest returns the manifest of an image and its descriptor. The blobs may have any content.
func Manifest(config ocispec.Descriptor, layers ...ocispec.Descriptor) (string, ocispec.Descriptor, error) {
	config.MediaType = ocispec.MediaTypeImageConfig
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config}
	for _, l := range layers {
		l.MediaType = ocispec.MediaTypeImageLayerGzip
		manifest.Layers = append(manifest.Layers, l)
	}
	raw, err := json.Marshal(manifest)
	return string(raw), ocispec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(raw),
		Size: int64(len(raw))}, err
}

// Image is an image that PushImage has pushed.
type Image struct {
	Repository string
	Manifest   ocispec.Descriptor
	Blobs      []ocispec.Descriptor // first the configuration
	Bytes      int64                // total size, including the manifest
}

// configBytes is the size of an image's configuration.
const configBytes = 2000

// PushImage pushes an image with a tag. Its layers have so many incompressible bytes each, which depend only on the
// seed, on the number of the layer and on its size.
func PushImage(ctx context.Context, client *http.Client, p *Process, repository, tag string, seed uint64, layers int,
	layerBytes int64) (Image, error) {
	i := Image{Repository: repository}
	for n := range 1 + layers {
		bytes := int64(configBytes)
		if n > 0 {
			bytes = layerBytes
		}
		content := func() io.Reader { return Random(seed<<8|uint64(n), bytes) }
		d, err := digest.SHA256.FromReader(content())
		if err != nil {
			return i, err
		}
		if err := Push(ctx, client, p, repository, content(), bytes, d); err != nil {
			return i, err
		}
		i.Blobs = append(i.Blobs, ocispec.Descriptor{Digest: d, Size: bytes})
		i.Bytes += bytes
	}
	manifest, desc, err := Manifest(i.Blobs[0], i.Blobs[1:]...)
	if err != nil {
		return i, err
	}
	i.Manifest = desc
	i.Bytes += desc.Size
	return i, PushManifest(ctx, client, p, repository, tag, desc.MediaType, manifest)
}

// Prepare creates a [StorageDir], and certificates in it. The caller removes the directory, also after an error.
// Prepare also makes garbage collections of this process rare, because they would disturb the measurement of others.
func Prepare(parent, pattern string) (dir string, certificates *Certificates, err error) {
	if dir, err = StorageDir(parent, pattern); err != nil {
		return "", nil, err
	}
	debug.SetGCPercent(400)
	certificates, err = NewCertificates(filepath.Join(dir, "tls"))
	return dir, certificates, err
}

// StorageDir creates a directory in parent or, if parent is empty, in memory if possible, so that the
// disk's speed does not matter. The caller removes it.
func StorageDir(parent, pattern string) (string, error) {
	if parent != "" {
		return os.MkdirTemp(parent, pattern)
	}
	dir, err := os.MkdirTemp("/dev/shm", pattern)
	if err != nil {
		return os.MkdirTemp("", pattern)
	}
	return dir, nil
}
