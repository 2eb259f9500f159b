package graph

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// Store holds images in memory and in files that they were built from. The zero value is empty and
// ready for use. It is safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	blobs map[digest.Digest]blob.Blob
}

// Fetch returns the content of desc, verified while it is read.
func (s *Store) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, err := s.Blob(ctx, desc, nil)
	if err != nil {
		return nil, err
	}
	return b.Fetch(desc)
}

// Put adds content. It does not verify it.
func (s *Store) Put(d digest.Digest, b blob.Blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blobs == nil {
		s.blobs = map[digest.Digest]blob.Blob{}
	}
	s.blobs[d] = b
}

// PutJSON adds v as JSON. Equal values have equal digests: encoding/json sorts map keys.
func (s *Store) PutJSON(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := content.NewDescriptorFromBytes(mediaType, raw)
	s.Put(desc.Digest, blob.FromBytes(raw))
	return desc, nil
}

// Blob returns content as it is in the store.
func (s *Store) Blob(_ context.Context, desc ocispec.Descriptor, _ func(offset, n int64)) (blob.Blob, error) {
	b, ok := s.Find(desc.Digest)
	if !ok {
		return blob.Blob{}, errdef.ErrNotFound
	}
	if b.Size != desc.Size {
		return blob.Blob{}, blob.SizeError(b.Size, desc)
	}
	return b, nil
}

// Find returns content by its digest.
func (s *Store) Find(d digest.Digest) (b blob.Blob, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok = s.blobs[d]
	return b, ok
}
