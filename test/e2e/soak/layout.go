package soak

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// NoiseFile is the file that makes each image unique.
const NoiseFile = "/noise"

// An Image is an image in an OCI layout.
type Image struct {
	Dir      string // an OCI layout with this image only
	Manifest string // digest
	Noise    string // digest of the file NoiseFile
}

// Tar returns an uncompressed layer with one executable file.
func Tar(name string, content []byte) []byte {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		panic(err) // writing to a buffer does not fail
	}
	if _, err := w.Write(content); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buffer.Bytes()
}

// Noise returns pseudorandom bytes with the marker at every 4 KiB. It depends on seed and number
// only.
func Noise(seed, number uint64, size int, marker []byte) []byte {
	var key [32]byte
	for i := range 8 {
		key[i], key[8+i] = byte(seed>>(8*i)), byte(number>>(8*i))
	}
	noise := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(noise) // never fails
	for at := 0; at+len(marker) <= size; at += 4096 {
		copy(noise[at:], marker)
	}
	return noise
}

// WriteLayout writes an OCI layout of an image that runs program, a layer made by [Tar] with /tool,
// and has a layer with the noise. Layers are not compressed, so that markers are visible on the
// network.
func WriteLayout(dir, reference string, program, noise []byte) (Image, error) {
	put := func(content []byte) (map[string]any, error) {
		sum := sha256.Sum256(content)
		name := hex.EncodeToString(sum[:])
		err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", name), content, 0o600)
		return map[string]any{"digest": "sha256:" + name, "size": len(content)}, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		return Image{}, err
	}
	var layers []map[string]any
	var diffIDs []any
	for _, content := range [][]byte{program, Tar(NoiseFile[1:], noise)} {
		layer, err := put(content)
		if err != nil {
			return Image{}, err
		}
		layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
		layers, diffIDs = append(layers, layer), append(diffIDs, layer["digest"])
	}
	encode := func(v any) []byte {
		content, err := json.Marshal(v)
		if err != nil {
			panic(err) // maps, strings and numbers can be encoded
		}
		return content
	}
	config, err := put(encode(map[string]any{
		"os": "linux", "architecture": "amd64",
		"config": map[string]any{"Entrypoint": []string{"/tool"}, "User": "65532:65532"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	}))
	if err != nil {
		return Image{}, err
	}
	config["mediaType"] = "application/vnd.oci.image.config.v1+json"
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := put(encode(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config,
		"layers": layers}))
	if err != nil {
		return Image{}, err
	}
	manifest["mediaType"] = manifestType
	manifest["annotations"] = map[string]any{"io.containerd.image.name": reference,
		"org.opencontainers.image.ref.name": reference}
	index := encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{manifest}})
	for name, content := range map[string][]byte{"index.json": index,
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return Image{}, err
		}
	}
	sum := sha256.Sum256(noise)
	return Image{Dir: dir, Manifest: fmt.Sprint(manifest["digest"]), Noise: "sha256:" + hex.EncodeToString(sum[:])}, nil
}
