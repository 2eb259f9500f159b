package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

// blob is content of a known size that can be read any number of times, by
// several goroutines at once.
type blob struct {
	size int64
	open func() (io.ReadCloser, error)
}

// bytesBlob is a blob in memory. It shares b.
func bytesBlob(b []byte) blob {
	return blob{
		size: int64(len(b)),
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
	}
}

// fetch opens a blob that was found under desc's digest. What is read from it
// is verified: the reader fails rather than give the last byte of content that
// does not match, so that nobody takes it for whole.
func (b blob) fetch(desc ocispec.Descriptor) (io.ReadCloser, error) {
	if b.size != desc.Size {
		return nil, b.sizeError(desc)
	}
	rc, err := b.open()
	if err != nil {
		return nil, err
	}
	hash := desc.Digest.Verifier()
	return &verifier{Reader: io.TeeReader(rc, hash), Closer: rc, hash: hash, left: desc.Size}, nil
}

func (b blob) sizeError(desc ocispec.Descriptor) error {
	return &contentError{fmt.Errorf("has %d bytes where its descriptor says %d", b.size, desc.Size)}
}

// verifier passes on as many bytes as its blob should have and compares their
// digest before it gives the last of them.
type verifier struct {
	io.Reader // of the blob, through the hash
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
				return 0, &contentError{fmt.Errorf("ends %d bytes early: %w", v.left, io.ErrUnexpectedEOF)}
			}
			if err != nil {
				return n, &contentError{err}
			}
			return n, nil
		}
	}
	if !v.hash.Verified() {
		return 0, &contentError{errors.New("does not match its digest: it was altered or damaged")}
	}
	v.done = true
	return n, nil
}

// contentError is what is wrong with content that is being read, as opposed to
// what is wrong with the way to the registry: sending it again cannot help.
type contentError struct{ error }

func (e *contentError) Unwrap() error { return e.error }

// Store holds images in memory, or knows the files that they are in. Its zero
// value is empty and ready for use. Reading from it is safe for concurrent use;
// adding to it is not.
type Store struct {
	blobs map[digest.Digest]blob
}

var _ content.ReadOnlyStorage = (*Store)(nil)

// Fetch returns the content that desc describes, verified while it is read.
func (s *Store) Fetch(_ context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, ok := s.blobs[desc.Digest]
	if !ok {
		return nil, errdef.ErrNotFound
	}
	return b.fetch(desc)
}

// Exists tells whether the store has the content.
func (s *Store) Exists(_ context.Context, desc ocispec.Descriptor) (bool, error) {
	_, ok := s.blobs[desc.Digest]
	return ok, nil
}

func (s *Store) add(d digest.Digest, b blob) {
	if s.blobs == nil {
		s.blobs = map[digest.Digest]blob{}
	}
	s.blobs[d] = b
}

// addJSON adds v's JSON, which is the same for equal values: Go sorts the keys
// of maps.
func (s *Store) addJSON(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := content.NewDescriptorFromBytes(mediaType, raw)
	s.add(desc.Digest, bytesBlob(raw))
	return desc, nil
}
