package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// remoteContent is a repository's content. Everything that is read is kept in a store.
type remoteContent struct {
	repo  *remote.Repository
	store *blobstore.Store
}

// Blob downloads a blob into the store, unless it is there.
func (c *remoteContent) Blob(ctx context.Context, desc ocispec.Descriptor,
	received func(offset, n int64)) (blob.Blob, error) {
	fetch := func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		if oci.IsManifestOrIndex(desc.MediaType) {
			_, raw, err := c.repo.Manifest(ctx, desc.Digest.String())
			if err != nil {
				return nil, err
			}
			return countReads(io.NopCloser(bytes.NewReader(raw[min(offset, int64(len(raw))):])), offset, received), nil
		}
		rc, err := c.repo.Blob(ctx, desc, offset)
		if err != nil {
			return nil, err
		}
		return countReads(rc, offset, received), nil
	}
	// Another process may evict it in between, or find it damaged.
	for attempt := 0; ; attempt++ {
		if _, err := c.store.Ensure(ctx, desc, fetch); err != nil {
			return blob.Blob{}, err
		}
		b, err := c.store.Get(ctx, desc)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || attempt == maxRefetches {
			return b, err
		}
	}
}

// maxRefetches limits how often a blob is downloaded again after another process removed it.
const maxRefetches = 3

// Fetch returns verified content.
func (c *remoteContent) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	b, err := c.Blob(ctx, desc, nil)
	if err != nil {
		return nil, err
	}
	return b.Open()
}
