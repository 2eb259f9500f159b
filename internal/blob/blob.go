// Package blob is content of a known digest and size that lies somewhere on this
// machine: in a file, in a part of a file, or in memory. It opens, verifies and
// compares; it neither fetches nor stores.
package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is content that can be read any number of times, by several goroutines at
// once. What is read from it is not verified; [Blob.Fetch] does that.
type Blob struct {
	// Size is the number of bytes.
	Size int64
	// Open opens it at its beginning. What it returns may also be an [io.Seeker],
	// and is a [*Part] where the content lies in a file as it is.
	Open func() (io.ReadCloser, error)
}

// FromBytes is a blob in memory. It shares b.
func FromBytes(b []byte) Blob {
	return Blob{
		Size: int64(len(b)),
		Open: func() (io.ReadCloser, error) { return bytesReader{bytes.NewReader(b)}, nil },
	}
}

type bytesReader struct{ *bytes.Reader }

func (bytesReader) Close() error { return nil }

// Fetch opens a blob that was found under desc's digest. What is read from it is
// verified as by [Verify]. A blob of another size than desc's is an [*Error].
func (b Blob) Fetch(desc ocispec.Descriptor) (io.ReadCloser, error) {
	if b.Size != desc.Size {
		return nil, SizeError(b.Size, desc)
	}
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	return Verify(rc, desc), nil
}

// Error is what is wrong with content itself, as opposed to what is wrong with
// the way to where it goes or comes from.
type Error struct{ err error }

// NewError marks err as one about content.
func NewError(err error) error { return &Error{err} }

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// SizeError is the [*Error] about content of another size than desc's.
func SizeError(size int64, desc ocispec.Descriptor) error {
	return &Error{fmt.Errorf("has %d bytes where its descriptor says %d", size, desc.Size)}
}

var errMismatch = errors.New("does not match its digest: it was altered or damaged")

// MismatchError is the [*Error] about content of another digest than it is to
// have.
func MismatchError() error { return &Error{errMismatch} }

// ShortError is the [*Error] about content that ends before its descriptor says.
func ShortError(missing int64) error {
	return &Error{fmt.Errorf("ends %d bytes early: %w", missing, io.ErrUnexpectedEOF)}
}

// Verify returns a reader that passes on as many bytes as desc says, and fails
// with an [*Error] rather than give the last of them where they do not match its
// digest, so that nobody takes for whole what is not. desc's digest must be valid.
func Verify(rc io.ReadCloser, desc ocispec.Descriptor) io.ReadCloser {
	hash := desc.Digest.Verifier()
	return &verifier{Reader: io.TeeReader(rc, hash), Closer: rc, hash: hash, left: desc.Size}
}

type verifier struct {
	io.Reader // of the content, through the hash
	io.Closer
	hash digest.Verifier
	left int64
	done bool
}

// Read implements [io.Reader].
func (v *verifier) Read(p []byte) (int, error) {
	if v.done {
		return 0, io.EOF
	}
	var n int
	if v.left > 0 {
		if int64(len(p)) > v.left {
			p = p[:v.left]
		}
		var err error
		n, err = v.Reader.Read(p)
		v.left -= int64(n)
		if v.left > 0 {
			if errors.Is(err, io.EOF) {
				return 0, ShortError(v.left)
			}
			if err != nil {
				return n, &Error{err}
			}
			return n, nil
		}
	}
	if !v.hash.Verified() {
		return 0, MismatchError()
	}
	v.done = true
	return n, nil
}

// Part is a part of a file that is open for one reader. It can be sent to a
// connection without passing through this program ([Part.SendTo]). It is not safe
// for concurrent use.
type Part struct {
	file             *os.File // of this Part alone: its offset is used
	start, size, pos int64
}

// OpenPart opens size bytes at offset of the file at path.
func OpenPart(path string, offset, size int64) (*Part, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Part{file: f, start: offset, size: size}, nil
}

// NewPart is size bytes at offset of an open file, which it closes in the end and
// which nobody else may read meanwhile.
func NewPart(f *os.File, offset, size int64) *Part {
	return &Part{file: f, start: offset, size: size}
}

// Read implements [io.Reader].
func (p *Part) Read(b []byte) (int, error) {
	if p.pos >= p.size {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.size-p.pos)]
	n, err := p.file.ReadAt(b, p.start+p.pos)
	p.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil // the file ends with the part, or too early: the next Read tells
	}
	return n, err
}

// ReadAt implements [io.ReaderAt]; offsets are the part's.
func (p *Part) ReadAt(b []byte, off int64) (int, error) {
	return io.NewSectionReader(p.file, p.start, p.size).ReadAt(b, off)
}

// Seek implements [io.Seeker].
func (p *Part) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.pos
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, errors.New("seek to before the beginning")
	}
	p.pos = offset
	return offset, nil
}

// SendTo sends the next n bytes, or as many as are left, to a connection; in
// Linux by sendfile(2). It returns how many were sent; fewer than n without an
// error where the part or its file ends.
func (p *Part) SendTo(conn *net.TCPConn, n int64) (int64, error) {
	n = min(n, p.size-p.pos)
	if n <= 0 {
		return 0, nil
	}
	if _, err := p.file.Seek(p.start+p.pos, io.SeekStart); err != nil {
		return 0, err
	}
	sent, err := conn.ReadFrom(&io.LimitedReader{R: p.file, N: n})
	p.pos += sent
	return sent, err
}

// Close implements [io.Closer].
func (p *Part) Close() error { return p.file.Close() }
