package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestHostileArchives opens each archive as a file and as a stream. None may need much memory or disk space.
func TestHostileArchives(t *testing.T) {
	directories := func(n int, name func(i int) string) func(w io.Writer) error {
		return func(w io.Writer) error {
			tw := tar.NewWriter(w)
			for i := range n {
				if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name(i), Mode: 0o755}); err != nil {
					return err
				}
			}
			return tw.Close()
		}
	}
	file := func(size int64) func(w io.Writer) error {
		return func(w io.Writer) error {
			tw := tar.NewWriter(w)
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "index.json.gz", Size: size}); err != nil {
				return err
			}
			if _, err := io.CopyN(tw, zeroes{}, size); err != nil {
				return err
			}
			return tw.Close()
		}
	}
	long := strings.Repeat("x", 1<<20-100)
	for name, tt := range map[string]struct {
		write func(w io.Writer) error
		want  string
	}{
		"more entries than any image has": {directories(maxEntries+1, func(i int) string { return fmt.Sprint(i, "/") }),
			"exceeds the limit of 100000 entries"},
		"names that fill the memory": {directories(maxNameBytes>>20+1, func(i int) string { return fmt.Sprint(long, i, "/") }),
			"exceeds the limit of 33554432 bytes of names"},
		"a file that is mostly zeros": {file(2 * freeInflation), "unpacks to more than 100 times its size"},
		"zeros after the end": {func(w io.Writer) error {
			if err := file(1)(w); err != nil {
				return err
			}
			_, err := io.CopyN(w, zeroes{}, 2*freeInflation)
			return err
		}, "unpacks to more than 100 times its size"},
	} {
		t.Run(name, func(t *testing.T) {
			for format, compress := range map[string]func(w io.Writer) (io.WriteCloser, error){
				"gzip": func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) },
				"zstd": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
			} {
				var packed bytes.Buffer
				z, err := compress(&packed)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(tt.write(z), z.Close()); err != nil {
					t.Fatal(err)
				}
				s, err := Open(t.Context(), writeTemp(t, "archive", packed.Bytes()))
				if err == nil {
					_ = s.Close()
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 500 {
					t.Errorf("compressed with %s: error %.500v, want one with %q", format, err, tt.want)
				}
			}
		})
	}
}

// TestZstdWindow opens data that requests 256 MiB of memory to be decompressed.
func TestZstdWindow(t *testing.T) {
	const windowLog = 28 // https://www.rfc-editor.org/rfc/rfc8878#name-window-descriptor
	frame := append(slices.Clone(zstdMagic), 0, (windowLog-10)<<3, 1, 0, 0)
	checkOpenError(t, writeTemp(t, "archive.tar.zst", frame), "unpacking zstd data to "+os.TempDir()+
		": window size exceeded")
}

func TestDamagedCompressedArchives(t *testing.T) {
	archive := makeTar(t, file{name: "a", data: noise(1, 100_000)}, file{name: "components/b", data: noise(2, 100_000)})
	for format, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"gzip": {gzipped(t, archive), "gzip: invalid checksum"},
		"zstd": {zstandard(t, archive), "CRC check failed"},
	} {
		path := writeTemp(t, "archive", corrupt(c.packed, len(c.packed)/2))
		_, err := Open(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), "unpacking "+format+" data to "+os.TempDir()+": ") ||
			!strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", format, err, c.want)
		}
	}
}

// zeroes are endless.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
