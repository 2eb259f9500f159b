package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/klauspost/compress/zstd"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

// files are the files of a source. Names are slash-separated and relative to its root.
type files interface {
	// file finds a regular file. It follows links within the source. If it does not exist, the error is
	// [fs.ErrNotExist].
	file(name string) (blob.Blob, error)
	io.Closer
}

// directory is files in the file system.
type directory struct{ root *os.Root }

func (d directory) file(name string) (blob.Blob, error) {
	info, err := d.root.Stat(name)
	if err != nil {
		return blob.Blob{}, err
	}
	if !info.Mode().IsRegular() {
		return blob.Blob{}, fmt.Errorf("%s: is not a regular file", name)
	}
	return blob.Blob{Size: info.Size(), Open: func() (io.ReadCloser, error) { return d.root.Open(name) }}, nil
}

func (d directory) Close() error { return d.root.Close() }

// maxIndex bounds the memory of an archive's index, in bytes: enough for a million entries, so for any backup.
const maxIndex, entrySize = 256 << 20, 128

// tarBlock is the block size of a tar archive (POSIX.1, ustar).
const tarBlock = 512

// archive is files in an uncompressed tar, which is not unpacked.
type archive struct {
	content *os.File
	size    int64
	entries map[string]entry
	memory  int // that the index takes, at most
}

// entry is a file in an archive or, if target is set, a link to one.
type entry struct {
	offset, size int64
	target       string
}

func (a *archive) file(name string) (blob.Blob, error) {
	e, ok := a.entries[name]
	if ok && e.target != "" {
		// docker save writes a layer that several images share once, and links to it from the others. One
		// level of links is enough.
		target := e.target
		if e, ok = a.entries[target]; !ok || e.target != "" {
			return blob.Blob{}, fmt.Errorf("%s: is a link to %s, which is not a file in the archive", name, target)
		}
	}
	if !ok {
		return blob.Blob{}, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return blob.FromReaderAt(a.content, e.offset, e.size), nil
}

func (a *archive) Close() error { return a.content.Close() }

// openArchive indexes the tar in a file, and owns the file. It first unpacks compressed data, which allows no random
// access, to a temporary file.
func openArchive(ctx context.Context, file *os.File) (_ *archive, err error) {
	a := &archive{content: file, entries: map[string]entry{}}
	defer func() {
		if err != nil {
			_ = a.Close()
		}
	}()
	info, err := a.content.Stat()
	if err != nil {
		return nil, err
	}
	a.size = info.Size()
	head := make([]byte, len(zstdMagic))
	if _, err := a.content.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	z, format, err := decompress(head, io.NewSectionReader(a.content, 0, a.size))
	if err == nil && format != "" {
		err = a.unpack(ctx, z, format)
	}
	if err != nil {
		return nil, err
	}
	return a, a.index(ctx)
}

// unpack replaces the archive's content by a temporary one with the uncompressed data.
func (a *archive) unpack(ctx context.Context, z io.Reader, format string) error {
	unpacked, err := os.CreateTemp("", "zarf-registry-images-")
	if err != nil {
		return fmt.Errorf("unpacking: %w", err)
	}
	_ = os.Remove(unpacked.Name()) // a crash leaves nothing behind
	compressed := a.content
	a.content = unpacked
	defer compressed.Close()
	a.size, err = io.Copy(unpacked, blob.WithContext(ctx, z))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("is truncated: its compressed data ends early")
	case blobstore.IsDiskFull(err):
		return fmt.Errorf("unpacking to %s, which is full: make room there, set TMPDIR, or decompress it first: %w",
			os.TempDir(), err)
	case err != nil:
		return fmt.Errorf("unpacking %s data to %s: %w", format, os.TempDir(), err)
	}
	return nil
}

// maxWindow is the memory that a zstd archive may request, in bytes: the limit of the zstd command.
const maxWindow = 128 << 20

// decompress returns the uncompressed data of r, which begins with head, and its format: gzip, zstd, or "" for data
// that is not compressed with either.
func decompress(head []byte, r io.Reader) (z io.Reader, format string, err error) {
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		format = "gzip"
		z, err = gzip.NewReader(r)
	case bytes.HasPrefix(head, zstdMagic):
		format = "zstd"
		// Without concurrency, it needs no Close.
		z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	default:
		return r, "", nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", format, err)
	}
	return z, format, err
}

func (a *archive) index(ctx context.Context) error {
	whole := io.NewSectionReader(a.content, 0, a.size)
	tr := tar.NewReader(whole)
	var last string
	var end int64 // of the last entry, padding included
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := tr.Next()
		at, seekErr := whole.Seek(0, io.SeekCurrent)
		if seekErr != nil {
			return seekErr
		}
		switch {
		case errors.Is(err, io.EOF):
			if last == "" {
				return errNotAnArchive
			}
			if at < end+tarBlock {
				return fmt.Errorf("is truncated: it ends after entry %s, without an end marker", last)
			}
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF) && last != "":
			return fmt.Errorf("is truncated: it ends after entry %s", last)
		case err != nil && last == "":
			return errNotAnArchive
		case err != nil:
			return fmt.Errorf("is damaged after entry %s: %w", last, err)
		}
		last = header.Name
		if err := a.add(header, at); err != nil {
			return fmt.Errorf("entry %.100q %w", header.Name, err)
		}
		end = at
		if header.Typeflag == tar.TypeReg {
			end += (header.Size + tarBlock - 1) / tarBlock * tarBlock
		}
		if end > a.size {
			return fmt.Errorf("is truncated: it ends within entry %s", last)
		}
	}
}

// add records an entry. Names are never used to write files.
func (a *archive) add(header *tar.Header, at int64) error {
	name := path.Clean(header.Name)
	if a.memory += len(header.Name) + len(header.Linkname) + entrySize; a.memory > maxIndex {
		return fmt.Errorf("exceeds the limit: the names of all entries may take %d bytes", maxIndex)
	}
	e := entry{offset: at, size: header.Size}
	switch header.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		e.target = path.Join(path.Dir(name), header.Linkname)
	case tar.TypeLink:
		e.target = path.Clean(header.Linkname)
	default:
		return nil
	}
	a.entries[name] = e // the last one of a name counts, as for tar
	return nil
}

var (
	errNotAnArchive = errors.New("is not an image archive: want a tar, which may be compressed with gzip or zstd")

	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)
