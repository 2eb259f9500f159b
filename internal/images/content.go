package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/remote"
)

// Content is where the content of images comes from. It is safe for concurrent
// use.
type Content interface {
	content.ReadOnlyStorage

	// Blob returns content that lies on this machine; what is elsewhere is brought
	// here first, and received is told how many bytes at which offset arrived.
	// received may be nil. What is read from the blob is not verified in general.
	Blob(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (blob.Blob, error)
}

var (
	_ Content = (*Source)(nil)
	_ Content = (*Store)(nil)
	_ Content = (*remoteContent)(nil)
)

// Item is an image and where its content is.
type Item struct {
	Image
	Content Content
}

// remoteContent is a repository's content, of which a store keeps what was read.
type remoteContent struct {
	repo  *remote.Repository
	store *blobstore.Store
}

// Blob brings a blob into the store, unless it is there.
func (c *remoteContent) Blob(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (blob.Blob, error) {
	fetch := func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		if oci.IsManifestOrIndex(desc.MediaType) {
			_, raw, err := c.repo.Manifest(ctx, desc.Digest.String())
			if err != nil {
				return nil, err
			}
			return counted(io.NopCloser(bytes.NewReader(raw[min(offset, int64(len(raw))):])), offset, received), nil
		}
		rc, err := c.repo.Blob(ctx, desc, offset)
		if err != nil {
			return nil, err
		}
		return counted(rc, offset, received), nil
	}
	// Another process may evict it, or find it damaged, between the two.
	for attempt := 0; ; attempt++ {
		if _, err := c.store.Ensure(ctx, desc, fetch); err != nil {
			return blob.Blob{}, err
		}
		b, err := c.store.Get(ctx, desc)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || attempt == lostAgain {
			return b, err
		}
	}
}

// lostAgain is how often what another process took away is brought again.
const lostAgain = 3

// Fetch returns content that was verified.
func (c *remoteContent) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, err := c.Blob(ctx, desc, nil)
	if err != nil {
		return nil, err
	}
	return b.Open()
}

// Exists tells whether the repository has the content.
func (c *remoteContent) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	if c.store.Has(desc) {
		return true, nil
	}
	return c.repo.Exists(ctx, desc)
}

// Blob returns content as it lies in the source.
func (s *Source) Blob(_ context.Context, desc ocispec.Descriptor, _ func(offset, n int64)) (blob.Blob, error) {
	b, err := s.blob(desc.Digest)
	if err == nil && b.Size != desc.Size {
		err = blob.SizeError(b.Size, desc)
	}
	return b, err
}

// Blob returns content as it lies in the store.
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

// Items returns the images to work on, each with a name. Without a reference
// these are all, and each must have a name of its own. With one, the source must
// hold a single image, and that is its name.
func (s *Source) Items(reference string) ([]Item, error) {
	list, err := s.choose(reference)
	if err != nil {
		return nil, fmt.Errorf("image source %s: %w", s.path, err)
	}
	return Items(s, list...), nil
}

// Items are images of one content.
func Items(from Content, list ...Image) []Item {
	var items []Item
	for _, image := range list {
		items = append(items, Item{image, from})
	}
	return items
}

// counted tells received of each read.
func counted(rc io.ReadCloser, offset int64, received func(offset, n int64)) io.ReadCloser {
	if received == nil {
		return rc
	}
	return &countedReader{rc, offset, received}
}

type countedReader struct {
	io.ReadCloser
	offset   int64
	received func(offset, n int64)
}

// Read implements [io.Reader].
func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.received(r.offset, int64(n))
		r.offset += int64(n)
	}
	return n, err
}

// openAt opens a blob at an offset.
func openAt(b blob.Blob, offset int64) (io.ReadCloser, error) {
	rc, err := b.Open()
	if err != nil || offset == 0 {
		return rc, err
	}
	if seeker, ok := rc.(io.Seeker); ok {
		_, err = seeker.Seek(offset, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, rc, offset)
	}
	if err != nil {
		rc.Close()
		return nil, err
	}
	return rc, nil
}

// readAllBlob reads small content that was checked to be small, and verifies it.
func readAllBlob(b blob.Blob, desc ocispec.Descriptor) ([]byte, error) {
	rc, err := b.Fetch(desc)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(rc)
	return raw, errors.Join(err, rc.Close())
}
