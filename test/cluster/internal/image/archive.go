// Package image writes archives of container images, as an OCI image layout in a tar for `ctr images import`. The test
// cluster's images are made with it. It does not read, pull or push images.
package image

import (
	"archive/tar"
	"bytes"
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
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// An Image is a container image. Images with different references have different digests, as versions of the pause
// image do.
type Image struct {
	Reference  string
	Layers     []Layer
	Entrypoint []string
	// User is a user and a group. Empty: root.
	User string
}

// A Layer is an uncompressed layer. Images of an archive share equal ones.
type Layer struct {
	tar    []byte
	digest string
}

// A File is an executable file of a layer or, with Link, a symbolic link. Its name has no leading slash.
type File struct {
	Name    string
	Content []byte
	Link    string
}

// NewLayer returns a layer with these files. It is reproducible.
func NewLayer(files ...File) (Layer, error) {
	var buffer bytes.Buffer
	t := tar.NewWriter(&buffer)
	for _, f := range files {
		if err := writeFile(t, f, 0o755); err != nil {
			return Layer{}, fmt.Errorf("packing a layer: %s: %w", f.Name, err)
		}
	}
	if err := t.Close(); err != nil {
		return Layer{}, fmt.Errorf("packing a layer: %w", err)
	}
	return Layer{buffer.Bytes(), digestOf(buffer.Bytes())}, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Write writes an archive of images, and returns the digests of their manifests. It is reproducible.
func Write(w io.Writer, images ...Image) (digests []string, err error) {
	t := tar.NewWriter(w)
	written := make(map[string]bool)
	write := func(name string, content []byte) {
		if err == nil && !written[name] {
			written[name] = true
			err = writeFile(t, File{Name: name, Content: content}, 0o644)
		}
	}
	blob := func(mediaType, digest string, content []byte) descriptor {
		write("blobs/"+strings.Replace(digest, ":", "/", 1), content)
		return descriptor{MediaType: mediaType, Digest: digest, Size: len(content)}
	}
	write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	var entries []descriptor
	for _, i := range images {
		var layers []descriptor
		var ids []string
		for _, l := range i.Layers {
			layers = append(layers, blob(layerType, l.digest, l.tar))
			ids = append(ids, l.digest)
		}
		config := encode(map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config": map[string]any{
				"User": i.User, "Entrypoint": i.Entrypoint,
				"Env":    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				"Labels": map[string]string{"reference": i.Reference},
			},
			"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
		})
		manifest := encode(map[string]any{
			"schemaVersion": 2,
			"mediaType":     manifestType,
			"config":        blob(configType, digestOf(config), config),
			"layers":        layers,
		})
		entry := blob(manifestType, digestOf(manifest), manifest)
		entry.Annotations = map[string]string{
			"io.containerd.image.name":          i.Reference,
			"org.opencontainers.image.ref.name": i.Reference[strings.LastIndex(i.Reference, ":")+1:],
		}
		entries = append(entries, entry)
		digests = append(digests, entry.Digest)
	}
	write("index.json", encode(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": entries}))
	if err == nil {
		err = t.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("writing an archive of images: %w", err)
	}
	return digests, nil
}

func writeFile(t *tar.Writer, f File, mode int64) error {
	header := &tar.Header{Name: f.Name, Mode: mode, Size: int64(len(f.Content)), Format: tar.FormatUSTAR}
	if f.Link != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
	}
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err := t.Write(f.Content)
	return err
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // maps and strings can be encoded
		panic(err)
	}
	return b
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
