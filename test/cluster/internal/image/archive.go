// Package image writes container image archives with one layer: an OCI image layout in a tar, for
// `ctr images import`. It builds the test cluster's pause image. It does not read, pull or
// push images.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
)

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Write writes an image that has one executable file, /name, and runs it as user 65535 like
// Kubernetes' pause image. It is reproducible, and returns the manifest's digest. Images with different references have
// different digests, as versions of the pause image do.
func Write(w io.Writer, reference, name string, program []byte) (digest string, err error) {
	layerTar, err := tarOf([]file{{name, 0o755, program}})
	if err != nil {
		return "", fmt.Errorf("packing the layer of %s: %w", reference, err)
	}
	layer, err := compress(layerTar)
	if err != nil {
		return "", fmt.Errorf("compressing the layer of %s: %w", reference, err)
	}
	config := encode(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"User": "65535:65535", "Entrypoint": []string{"/" + name}, "Env": []string{"PATH=/"},
			"Labels": map[string]string{"reference": reference},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digestOf(layerTar)}},
	})
	manifest := encode(map[string]any{
		"schemaVersion": 2,
		"mediaType":     manifestType,
		"config":        describe(configType, config),
		"layers":        []descriptor{describe(layerType, layer)},
	})
	entry := describe(manifestType, manifest)
	entry.Annotations = map[string]string{
		"io.containerd.image.name":          reference,
		"org.opencontainers.image.ref.name": reference[strings.LastIndex(reference, ":")+1:],
	}
	index := encode(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{entry}})

	archive, err := tarOf([]file{
		{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0o644, index},
		{blobPath(config), 0o644, config},
		{blobPath(layer), 0o644, layer},
		{blobPath(manifest), 0o644, manifest},
	})
	if err != nil {
		return "", fmt.Errorf("packing %s: %w", reference, err)
	}
	if _, err := w.Write(archive); err != nil {
		return "", fmt.Errorf("writing the archive of %s: %w", reference, err)
	}
	return entry.Digest, nil
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files []file) ([]byte, error) {
	var buffer bytes.Buffer
	t := tar.NewWriter(&buffer)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)),
			Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func compress(content []byte) ([]byte, error) {
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	if _, err := z.Write(content); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // maps and strings can be encoded
		panic(err)
	}
	return b
}

func describe(mediaType string, content []byte) descriptor {
	return descriptor{MediaType: mediaType, Digest: digestOf(content), Size: len(content)}
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func blobPath(content []byte) string {
	return "blobs/" + strings.Replace(digestOf(content), ":", "/", 1)
}
