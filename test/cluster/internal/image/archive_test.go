package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"testing"
)

func TestWriteCreatesOCILayoutWithCorrectDigests(t *testing.T) {
	program := []byte("\x7fELF, as far as this test goes")
	var archive bytes.Buffer
	digest, err := Write(&archive, "example.com:5000/pause:3", "pause", program)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive.Bytes())
	for name, content := range files {
		if len(name) > len("blobs/") && name[:len("blobs/")] == "blobs/" && name != blobPath(content) {
			t.Errorf("%s has the content of %s", name, blobPath(content))
		}
	}
	if string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", files["oci-layout"])
	}
	var index struct{ Manifests []descriptor }
	decode(t, files["index.json"], &index)
	entry := index.Manifests[0]
	if entry.Digest != digest || entry.Annotations["io.containerd.image.name"] != "example.com:5000/pause:3" ||
		entry.Annotations["org.opencontainers.image.ref.name"] != "3" {
		t.Errorf("index: %+v", entry)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, blob(t, files, entry), &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, blob(t, files, manifest.Config), &config)
	z, err := gzip.NewReader(bytes.NewReader(blob(t, files, manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if config.RootFS.DiffIDs[0] != digestOf(layer) || config.Config.Entrypoint[0] != "/pause" {
		t.Errorf("config: %+v", config)
	}
	if !bytes.Equal(untar(t, layer)["pause"], program) {
		t.Error("the layer contains another program")
	}
}

func TestWriteIsReproducible(t *testing.T) {
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		if _, err := Write(w, "a/b:c", "pause", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the archives differ")
	}
}

func untar(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	reader := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	for _, content := range files {
		if digestOf(content) == d.Digest && len(content) == d.Size {
			return content
		}
	}
	t.Fatalf("no blob %s of %d bytes", d.Digest, d.Size)
	return nil
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", content, err)
	}
}
