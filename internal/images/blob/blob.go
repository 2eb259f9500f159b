// Package blob is content of a known digest and size on this machine: in a file, in a section of a file, or in memory.
// It opens and verifies content. It neither fetches nor stores it.
package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is content that can be read any number of times and concurrently. Its content is not verified; [Blob.Fetch]
// does that.
type Blob struct {
	// Size is the number of bytes.
	Size int64
	// Open opens the content at its beginning. The result may be an [io.Seeker].
	Open func() (io.ReadCloser, error)
}

// FromBytes returns a blob in memory. It shares b.
func FromBytes(b []byte) Blob {
	return FromReaderAt(bytes.NewReader(b), 0, int64(len(b)))
}

// FromReaderAt returns the blob of size bytes at offset. Closing a reader of the blob does not close r.
func FromReaderAt(r io.ReaderAt, offset, size int64) Blob {
	return Blob{Size: size, Open: func() (io.ReadCloser, error) {
		return section{io.NewSectionReader(r, offset, size)}, nil
	}}
}

type section struct{ *io.SectionReader }

// Close implements [io.Closer].
func (section) Close() error { return nil }

// Fetch opens a blob that was found under desc's digest, and verifies it as [Verify] does. The error is an [*Error] if
// the blob's size is not desc's.
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

// Error is an error about the content itself, as opposed to one about transferring it. Retrying does not help.
type Error struct{ err error }

// NewError returns err as an [*Error].
func NewError(err error) error { return &Error{err} }

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// SizeError is the [*Error] about content of another size than desc's.
func SizeError(size int64, desc ocispec.Descriptor) error {
	return &Error{fmt.Errorf("has %d bytes where its descriptor says %d", size, desc.Size)}
}

// MismatchError is the [*Error] about content that does not match its digest.
func MismatchError() error {
	return &Error{errors.New("does not match its digest: it was altered or damaged")}
}

// ShortError is the [*Error] about content that ends before its descriptor's size.
func ShortError(missing int64) error {
	return &Error{fmt.Errorf("ends %d bytes early: %w", missing, io.ErrUnexpectedEOF)}
}

// Skip moves r, which is at its beginning, to offset.
func Skip(r io.Reader, offset int64) error {
	if seeker, ok := r.(io.Seeker); ok {
		_, err := seeker.Seek(offset, io.SeekStart)
		return err
	}
	_, err := io.CopyN(io.Discard, r, offset)
	return err
}

// WithContext returns a reader that fails when ctx ends.
func WithContext(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}

// Verify returns a reader of desc.Size bytes of rc. If they do not match desc's digest, which must be valid, it fails
// with an [*Error] before it returns the last of them, so that no reader mistakes them for complete.
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
