package images

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// FuzzOpen feeds Open archives that somebody has tampered with. What it opens
// must be complete: the size of each blob right, and each readable to its end
// unless its digest is wrong.
func FuzzOpen(f *testing.F) {
	store := &Store{}
	image := testImage(f, store, "", 600, "amd64", "arm64")
	layout := layoutFiles(f, store, annotated(image, containerdName("a:1")))
	layer := makeTar(f, file{name: "a"})
	f.Add(makeTar(f, layout...))
	f.Add(gzipped(f, makeTar(f, layout...)))
	f.Add(makeTar(f, dockerArchive(f, []string{"a:1"}, layer, gzipped(f, layer))...))
	f.Add(makeTar(f, append(layout, file{name: "x", link: "index.json"})...))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, "archive")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		src, err := Open(t.Context(), path)
		if err != nil {
			return
		}
		defer src.Close()
		if len(src.Images()) == 0 {
			t.Fatal("a source without images")
		}
		for _, image := range src.Images() {
			nodes, err := graph(t.Context(), src, image.Descriptor)
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range nodes {
				rc, err := src.Fetch(t.Context(), node)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, rc); err == nil && n != node.Size {
					t.Errorf("%s has %d bytes, want %d", node.Digest, n, node.Size)
				}
				rc.Close()
			}
		}
	})
}
