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

// NoiseFile is the file of an image that is unlike that of any other.
const NoiseFile = "/noise"

// An Image is one that was made to be pushed.
type Image struct {
	Dir      string // an OCI layout with this image alone
	Manifest string // digest
	Noise    string // digest of the file NoiseFile
}

// Tar is an uncompressed layer with one file that everybody may execute.
func Tar(name string, content []byte) []byte {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		panic(err) // a buffer takes everything
	}
	if _, err := w.Write(content); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buffer.Bytes()
}

// Noise are random bytes with the marker at every 4 KiB. The same seed and number give
// the same.
func Noise(seed, number uint64, size int, marker []byte) []byte {
	var key [32]byte
	for i := range 8 {
		key[i], key[8+i] = byte(seed>>(8*i)), byte(number>>(8*i))
	}
	noise := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(noise) // it always fills
	for at := 0; at+len(marker) <= size; at += 4096 {
		copy(noise[at:], marker)
	}
	return noise
}

// WriteLayout makes an OCI layout of an image that runs program, which is a layer of
// [Tar] with /tool, over a layer with the noise. Nothing is compressed: what goes over a
// network in plain can be seen.
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
			panic(err) // maps, strings and numbers
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
	manifest, err := put(encode(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers}))
	if err != nil {
		return Image{}, err
	}
	manifest["mediaType"] = manifestType
	manifest["annotations"] = map[string]any{"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
	index := encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{manifest}})
	for name, content := range map[string][]byte{"index.json": index, "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return Image{}, err
		}
	}
	sum := sha256.Sum256(noise)
	return Image{Dir: dir, Manifest: fmt.Sprint(manifest["digest"]), Noise: "sha256:" + hex.EncodeToString(sum[:])}, nil
}
