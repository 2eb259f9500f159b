package images

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
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

// files are the files of a source. Names are slash-separated and relative to its root.
type files interface {
	// file finds a regular file. It follows links within the source. If it does not exist, the error is
	// [fs.ErrNotExist].
	file(name string) (blob.Blob, error)
	// names returns some names at the root for error messages.
	names() []string
	// whole is false if the source may be truncated.
	whole() bool
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

func (d directory) names() []string {
	f, err := d.root.Open(".")
	if err != nil {
		return nil
	}
	defer f.Close()
	found, _ := f.Readdirnames(maxNames)
	slices.Sort(found)
	return found
}

func (d directory) whole() bool { return true }

func (d directory) Close() error { return d.root.Close() }

const (
	// maxEntries and maxNameBytes bound the memory of an index. An image needs some 10 to 100 entries with
	// names of 100 bytes.
	maxEntries   = 100_000
	maxNameBytes = 32 << 20
)

// maxNames is how many names an error message lists: enough to recognize the content.
const maxNames = 4

// archive is files in an uncompressed tar, which is not unpacked.
type archive struct {
	content *os.File
	size    int64
	entries map[string]entry
	count   int      // of all entries, also those that entries lacks
	named   int      // bytes of their names and targets
	order   []string // the first names
	ended   bool     // the end-of-archive marker was found
	cleanup func() error
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

func (a *archive) names() []string { return a.order }

func (a *archive) whole() bool { return a.ended }

func (a *archive) Close() error {
	return errors.Join(a.content.Close(), a.cleanup())
}

// openArchive indexes the tar in a file. It first unpacks compressed data, which allows no random
// access, to a temporary file.
func openArchive(ctx context.Context, name string) (_ *archive, err error) {
	a := &archive{entries: map[string]entry{}, cleanup: func() error { return nil }}
	if a.content, err = os.Open(name); err != nil {
		return nil, err
	}
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
	head := make([]byte, tarBlock)
	n, err := a.content.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	what := describe(head[:n])
	z, format, err := decompress(head, io.NewSectionReader(a.content, 0, a.size))
	if err != nil {
		return nil, err
	}
	if format != "" {
		if err := a.unpack(ctx, z, format); err != nil {
			return nil, err
		}
		what = format + noTarIn
	}
	return a, a.index(ctx, what)
}

// unpack replaces the archive's content by a temporary one with the uncompressed data.
func (a *archive) unpack(ctx context.Context, z io.Reader, format string) error {
	dir, err := os.MkdirTemp("", "zarf-registry-images-")
	if err != nil {
		return fmt.Errorf("unpacking: %w", err)
	}
	a.cleanup = func() error { return os.RemoveAll(dir) }
	unpacked, err := os.Create(path.Join(dir, "archive.tar"))
	if err != nil {
		return fmt.Errorf("unpacking: %w", err)
	}
	compressed := a.content
	a.content = unpacked
	defer compressed.Close()
	// Where the system can remove open files, a crash leaves nothing behind.
	_ = os.RemoveAll(dir)
	err = copyTar(unpacked, contextReader{ctx, z})
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("is truncated: its compressed data ends early")
	}
	if errors.Is(err, errInflated) {
		return errInflated
	}
	if blobstore.IsDiskFull(err) {
		return fmt.Errorf("unpacking to %s, which is full: make room there, set TMPDIR, or decompress it first: %w",
			os.TempDir(), err)
	}
	if err != nil {
		return fmt.Errorf("unpacking %s data to %s: %w", format, os.TempDir(), err)
	}
	a.size, err = unpacked.Seek(0, io.SeekEnd)
	return err
}

// copyTar copies a tar, with holes instead of what [Open] never reads of a Zarf package, which may be most of it. It
// does not report errors in the tar: [archive.index] does.
func copyTar(to *os.File, from io.Reader) error {
	w := &holeWriter{File: to}
	copied := &errorReader{Reader: io.TeeReader(from, w)}
	tr := tar.NewReader(copied)
	for {
		header, err := tr.Next()
		if err != nil {
			break
		}
		w.hole = onlyZarfReads(path.Clean(header.Name))
		_, err = io.Copy(io.Discard, tr)
		w.hole = false
		if err != nil {
			break
		}
	}
	if copied.err == nil {
		_, _ = io.Copy(io.Discard, copied) // what follows the tar, or its damaged entry
	}
	return copied.err
}

// holeWriter writes to a file or, if hole is set, leaves a hole, which needs no disk space.
type holeWriter struct {
	*os.File
	hole bool
}

// Write implements [io.Writer].
func (w *holeWriter) Write(p []byte) (int, error) {
	if !w.hole {
		return w.File.Write(p)
	}
	_, err := w.Seek(int64(len(p)), io.SeekCurrent)
	return len(p), err
}

const (
	// maxRatio is how many bytes a compressed one may become. Saved images become 2 to 10; gzip itself allows
	// 1,000, and zstd more.
	maxRatio = 100
	// freeInflation is how many bytes a small archive may become at least.
	freeInflation = 64 << 20
	// maxWindow is the memory that a zstd archive may request, in bytes: the limit of the zstd command.
	maxWindow = 128 << 20
)

// errInflated is about an archive that would fill the disk.
var errInflated = fmt.Errorf(
	"unpacks to more than %d times its size: if it is trustworthy, decompress it first", maxRatio)

// noTarIn follows the format of compressed data.
const noTarIn = "-compressed data without a tar in it"

// decompress returns the uncompressed data of r, which begins with head, and its format: gzip, zstd, or "" for data
// that is not compressed with either.
func decompress(head []byte, r io.Reader) (z io.Reader, format string, err error) {
	counted := &offsetReader{Reader: r}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		format = "gzip"
		z, err = gzip.NewReader(counted)
	case bytes.HasPrefix(head, zstdMagic):
		format = "zstd"
		// Without concurrency, it needs no Close.
		z, err = zstd.NewReader(counted, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	default:
		return r, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", format, err)
	}
	return &inflater{Reader: z, compressed: counted}, format, nil
}

// inflater reads uncompressed data and fails with errInflated if there is too much of it.
type inflater struct {
	io.Reader
	compressed *offsetReader
	size       int64
}

// Read implements [io.Reader].
func (i *inflater) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if i.size += int64(n); i.size > freeInflation+maxRatio*i.compressed.offset {
		return 0, errInflated
	}
	return n, err
}

// contextReader reads until the context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// index records the position of each file. what describes the file if it is not a tar.
func (a *archive) index(ctx context.Context, what string) error {
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
			if last == "" && a.size > 0 {
				what = "a tar without entries"
			}
			if last == "" {
				return fmt.Errorf("%w: it is %s", errNotAnArchive, what)
			}
			a.ended = at >= end+tarBlock
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF) && last != "":
			return fmt.Errorf("is truncated: it ends after entry %s", last)
		case err != nil && last == "":
			return fmt.Errorf("%w: it is %s", errNotAnArchive, what)
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

// add records an entry. Names are never used to write files, but an archive with unsafe names was not
// written by an image tool and would harm others.
func (a *archive) add(header *tar.Header, at int64) error {
	name, err := cleanEntryName(header.Name)
	if err != nil {
		return err
	}
	a.count++
	a.named += len(header.Name) + len(header.Linkname)
	switch {
	case a.count > maxEntries:
		return fmt.Errorf("exceeds the limit of %d entries, enough for thousands of images", maxEntries)
	case a.named > maxNameBytes:
		return fmt.Errorf("exceeds the limit of %d bytes of names", maxNameBytes)
	}
	if len(a.order) < maxNames && name != "." {
		a.order = append(a.order, name)
	}
	e := entry{offset: at, size: header.Size}
	switch header.Typeflag {
	case tar.TypeReg:
		for key := range header.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return errors.New("is stored as a sparse file: pack the archive without that")
			}
		}
	case tar.TypeSymlink, tar.TypeLink:
		target := header.Linkname
		if header.Typeflag == tar.TypeSymlink && !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		if e.target, err = cleanEntryName(target); err != nil {
			return fmt.Errorf("is a link to %q, which %w", header.Linkname, err)
		}
	case tar.TypeGNUSparse:
		return errors.New("is stored as a sparse file: pack the archive without that")
	default:
		return nil
	}
	a.entries[name] = e // the last one of a name counts, as for tar
	return nil
}

// cleanEntryName cleans a name and rejects one outside of the archive.
func cleanEntryName(name string) (string, error) {
	if path.IsAbs(name) {
		return "", errors.New("is an absolute path")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", errors.New("leads out of the archive")
	}
	return path.Clean(name), nil
}

var (
	errNotAnArchive = errors.New("is not an image archive")

	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// describe names the format of a file that begins with head but is not an archive.
func describe(head []byte) string {
	for _, known := range []struct {
		magic []byte
		what  string
	}{
		{[]byte("\xfd7zXZ"), "xz-compressed: decompress it first"},
		{[]byte("BZh"), "bzip2-compressed: decompress it first"},
		{[]byte("PK\x03\x04"), "a zip archive"},
		{[]byte("\x7fELF"), "a program"},
		{[]byte(`{"Sha256Sum":`), "the first part of a split Zarf package: join the parts after it with cat"},
		{[]byte("{"), "JSON text"},
	} {
		if bytes.HasPrefix(head, known.magic) {
			return known.what
		}
	}
	switch {
	case len(head) == 0:
		return "empty"
	case !bytes.ContainsRune(head, 0) && utf8.Valid(head[:max(0, len(head)-utf8.UTFMax)]):
		return "text"
	}
	return "data of an unknown kind"
}

// offsetReader counts the bytes that were read.
type offsetReader struct {
	io.Reader
	offset int64
}

// Read implements [io.Reader].
func (r *offsetReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.offset += int64(n)
	return n, err
}

// errorReader records the first error other than EOF.
type errorReader struct {
	io.Reader
	err error
}

// Read implements [io.Reader].
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
