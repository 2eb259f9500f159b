package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestWriteCreatesOCILayoutWithCorrectDigests(t *testing.T) {
	program := []byte("\x7fELF, as far as this test goes")
	shared, err := NewLayer(File{Name: "bin/one", Content: program}, File{Name: "bin/two", Link: "one"})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	digests, err := Write(&archive,
		Image{Reference: "example.com:5000/pause:3", Layers: []Layer{shared}, Entrypoint: []string{"/bin/two"}},
		Image{Reference: "example.com:5000/pause:4", Layers: []Layer{shared}})
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive.Bytes())
	// Two configurations and manifests, but one layer.
	if blobs := len(files) - len([]string{"oci-layout", "index.json"}); blobs != 5 {
		t.Errorf("the archive has %d blobs", blobs)
	}
	if string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout: %s", files["oci-layout"])
	}
	var index struct{ Manifests []descriptor }
	decode(t, files["index.json"], &index)
	if digests[0] == digests[1] || index.Manifests[1].Digest != digests[1] {
		t.Errorf("digests: %v, index: %+v", digests, index)
	}
	entry := index.Manifests[0]
	if entry.Digest != digests[0] || entry.Annotations["io.containerd.image.name"] != "example.com:5000/pause:3" ||
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
	layer := blob(t, files, manifest.Layers[0])
	if config.RootFS.DiffIDs[0] != digestOf(layer) || config.Config.Entrypoint[0] != "/bin/two" {
		t.Errorf("config: %+v", config)
	}
	if !bytes.Equal(untar(t, layer)["bin/one"], program) {
		t.Error("the layer contains another program")
	}
}

func TestWriteIsReproducible(t *testing.T) {
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		layer, err := NewLayer(File{Name: "pause", Content: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Write(w, Image{Reference: "a/b:c", Layers: []Layer{layer}}); err != nil {
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
	content := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if digestOf(content) != d.Digest || len(content) != d.Size {
		t.Fatalf("no blob %s of %d bytes", d.Digest, d.Size)
	}
	return content
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", content, err)
	}
}
