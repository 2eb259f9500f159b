package registries

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
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
