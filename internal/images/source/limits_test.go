package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
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
	long := strings.Repeat("x", 1<<20-100)
	for name, tt := range map[string]struct {
		write func(w io.Writer) error
		want  string
	}{
		"names that fill the memory": {directories(maxIndex>>20+1, func(i int) string { return fmt.Sprint(long, i, "/") }),
			"exceeds the limit: the names of all entries may take 268435456 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			for format, compress := range map[string]func(w io.Writer) (io.WriteCloser, error){
				"gzip": func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) },
				"zstd": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
			} {
				var packed bytes.Buffer
				z := require.Value(compress(&packed))(t)
				require.NoError(t, errors.Join(tt.write(z), z.Close()))
				s, err := Open(t.Context(), imagestest.Temp(t, "archive", packed.Bytes()))
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
	checkOpenError(t, imagestest.Temp(t, "archive.tar.zst", frame), "unpacking zstd data to "+os.TempDir()+
		": window size exceeded")
}

func TestDamagedCompressedArchives(t *testing.T) {
	archive := imagestest.Tar(t, imagestest.File{Name: "a", Data: imagestest.Noise(1, 100_000)}, imagestest.File{Name: "components/b", Data: imagestest.Noise(2, 100_000)})
	for format, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"gzip": {imagestest.Gzip(t, archive), "gzip: invalid checksum"},
		"zstd": {imagestest.Zstd(t, archive), "CRC check failed"},
	} {
		path := imagestest.Temp(t, "archive", corrupt(c.packed, len(c.packed)/2))
		_, err := Open(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), "unpacking "+format+" data to "+os.TempDir()+": ") ||
			!strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", format, err, c.want)
		}
	}
}

// Ctrl-C ends the unpacking of a large file within a second.
func TestUnpackingEndsWithTheContext(t *testing.T) {
	const size = 1 << 30
	path := imagestest.Temp(t, "archive", nil)
	file := require.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	z, err := zstd.NewWriter(file, zstd.WithEncoderLevel(zstd.SpeedFastest))
	require.NoError(t, err)
	tw := tar.NewWriter(z)
	err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: size})
	for range size >> 20 {
		_, writeErr := tw.Write(make([]byte, 1<<20))
		err = errors.Join(err, writeErr)
	}
	require.NoError(t, errors.Join(err, tw.Close(), z.Close(), file.Close()))
	ctx, cancel := context.WithCancel(t.Context())
	var ended time.Time
	time.AfterFunc(20*time.Millisecond, func() {
		ended = time.Now()
		cancel()
	})
	if _, err := Open(ctx, path); !errors.Is(err, context.Canceled) || time.Since(ended) > time.Second {
		t.Errorf("after %s: %v", time.Since(ended), err)
	}
}
