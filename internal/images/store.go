package images

import (
	"context"
	"encoding/json"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// Store holds images in memory and in files that they were built from. The zero value is empty and
// ready for use. Reading is safe for concurrent use; adding is not.
type Store struct {
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

func (s *Store) add(d digest.Digest, b blob.Blob) {
	if s.blobs == nil {
		s.blobs = map[digest.Digest]blob.Blob{}
	}
	s.blobs[d] = b
}

// addJSON adds v as JSON. Equal values have equal digests: encoding/json sorts map keys.
func (s *Store) addJSON(mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := content.NewDescriptorFromBytes(mediaType, raw)
	s.add(desc.Digest, blob.FromBytes(raw))
	return desc, nil
}

// Blob returns content as it is in the store.
func (s *Store) Blob(_ context.Context, desc ocispec.Descriptor, _ func(offset, n int64)) (blob.Blob, error) {
	b, ok := s.blobs[desc.Digest]
	if !ok {
		return blob.Blob{}, errdef.ErrNotFound
	}
	if b.Size != desc.Size {
		return blob.Blob{}, blob.SizeError(b.Size, desc)
	}
	return b, nil
}
