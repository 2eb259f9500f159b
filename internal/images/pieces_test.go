package images

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// split writes an archive of an image in pieces, and returns their paths.
func split(t *testing.T, dir string, store *Store, image Image) []string {
	t.Helper()
	pullToArchive(t, filepath.Join(dir, "app.tar"), Items(store, image), func(a *Archive) { a.Split(MinPieceSize) })
	return listDir(t, dir)
}

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(hidden) > 0 {
		t.Errorf("temporary files remain: %q, error %v", hidden, err)
	}
	return paths
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPiecesAreReadInAnyOrder(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "docker.io/team/app:1", 1_500_000, "amd64", "arm64")
	var whole bytes.Buffer
	if err := WriteArchive(t.Context(), &whole, store, image); err != nil {
		t.Fatal(err)
	}
	paths := split(t, t.TempDir(), store, image)
	if len(paths) != 4 || !strings.HasSuffix(paths[0], "app.tar.001") || !strings.HasSuffix(paths[3], "app.tar.004") {
		t.Fatalf("the pieces are %q", paths)
	}
	var joined []byte
	dir := t.TempDir()
	for i, path := range paths {
		content := read(t, path)
		if len(content) > MinPieceSize || i < 3 && len(content) != MinPieceSize {
			t.Errorf("piece %d has %d bytes", i+1, len(content))
		}
		joined = append(joined, content[:len(content)-footerSize]...)
		write(t, filepath.Join(dir, string(rune('z'-i))), content) // other names, in reverse order
	}
	if !bytes.Equal(joined, whole.Bytes()) {
		t.Error("the pieces differ from the archive")
	}
	write(t, filepath.Join(dir, "notes.txt"), []byte("carried by hand"))

	registry := startRegistry(t)
	for _, name := range []string{"z", "x"} {
		items := mustItems(t, mustOpen(t, filepath.Join(dir, name)), "docker.io/team/"+name+":1")
		mustPush(t, items, registry, Options{})
	}
	all := listDir(t, dir)
	if got := Distinct(append(all, paths...)); len(got) != 2 { // a piece and the notes
		t.Errorf("distinct archives are %q", got)
	}
}

func TestPiecesOfAPreviousArchiveAreRemoved(t *testing.T) {
	store, dir := &Store{}, t.TempDir()
	split(t, dir, store, testImage(t, store, "docker.io/team/app:1", 1_500_000, "amd64", "arm64"))
	kept := filepath.Join(dir, "app.tar.009")
	write(t, kept, []byte("not a piece"))
	paths := split(t, dir, store, testImage(t, store, "docker.io/team/app:2", 1_000_000, "amd64"))
	if len(paths) != 3 || paths[2] != kept {
		t.Errorf("the files are %q", paths)
	}
	if images := mustOpen(t, paths[0]).Images(); len(images) != 1 || images[0].Reference != "docker.io/team/app:2" {
		t.Errorf("the images are %+v", images)
	}
}

func TestMissingAndDamagedPiecesAreNamed(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "docker.io/team/app:1", 1_500_000, "amd64", "arm64")
	for name, c := range map[string]struct {
		change func(paths []string)
		want   []string
	}{
		"missing": {func(paths []string) { os.Remove(paths[1]); os.Remove(paths[3]) },
			[]string{"of 4 pieces, these are missing in ", ": 2, 4: copy them there"}},
		"truncated": {func(paths []string) {
			content := read(t, paths[2])
			write(t, paths[2], content[:len(content)-5])
		}, []string{"these are missing in ", ": 3; incomplete: app.tar.003: copy"}},
		"damaged": {func(paths []string) {
			content := read(t, paths[1])
			content[1000] ^= 1
			write(t, paths[1], content)
		}, []string{"piece 2 of 4", "app.tar.002: its content does not match its checksum: copy it again"}},
		"shortened": {func(paths []string) {
			content := read(t, paths[1])
			write(t, paths[1], content[1000:])
		}, []string{"piece 2 of 4", "does not match its checksum"}},
	} {
		t.Run(name, func(t *testing.T) {
			paths := split(t, t.TempDir(), store, image)
			c.change(paths)
			source, err := Open(t.Context(), paths[0])
			if err == nil {
				source.Close()
				t.Fatal("it is opened")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q", err, want)
				}
			}
		})
	}
}

func TestTooManyPieces(t *testing.T) {
	dir := t.TempDir()
	s := &splitter{path: filepath.Join(dir, "app.tar"), size: int64(footerSize) + 1}
	n, err := s.Write(make([]byte, maxPieces+1))
	s.discard()
	if n != maxPieces || err == nil || !strings.Contains(err.Error(), "choose larger ones") || len(listDir(t, dir)) != 0 {
		t.Errorf("%d bytes were written, error %v", n, err)
	}
}

func FuzzFooter(f *testing.F) {
	f.Add(footer{total: 10, number: 1, count: 1}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if parsed, ok := parseFooter(b); ok && !bytes.Equal(parsed.bytes(), b) {
			t.Errorf("%x is parsed as %+v", b, parsed)
		}
	})
}
