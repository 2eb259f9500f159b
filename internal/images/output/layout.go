package output

import (
	"context"
	"errors"
	"io"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
)

// Layout is an OCI layout directory that images are written to. It keeps existing images, except those
// whose name a new image has. It is safe for concurrent use, also by several processes.
type Layout struct {
	store *blobstore.Store
}

// OpenLayout opens a layout and creates it if necessary.
func OpenLayout(dir string) (*Layout, error) {
	store, err := blobstore.Open(dir, blobstore.Options{})
	if err != nil {
		return nil, err
	}
	return &Layout{store: store}, nil
}

// Close releases the layout's resources.
func (l *Layout) Close() error { return l.store.Close() }

// Plan does nothing.
func (l *Layout) Plan(context.Context, []Image) error { return nil }

// Finish does nothing: the layout has each image that was complete.
func (l *Layout) Finish(context.Context, bool) (kept bool, err error) { return true, nil }

// Blob links or copies a blob from the store that keeps it, or downloads it. moved reports whether it was transferred.
func (l *Layout) Blob(ctx context.Context, from graph.Content, desc ocispec.Descriptor,
	received func(offset, n int64)) (moved bool, err error) {
	if f, err := l.store.Open(ctx, desc); err == nil {
		return false, f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	store, moved, err := keep(ctx, from, desc, received)
	if err == nil {
		err = l.store.Link(ctx, desc, store)
	}
	if !errors.Is(err, blobstore.ErrNoRoom) && !errors.Is(err, fs.ErrNotExist) { // another process may have evicted it
		return moved, err
	}
	f, fetched, err := l.store.Fetch(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		b, err := from.Blob(ctx, desc, received)
		if err != nil {
			return nil, err
		}
		return openAt(b, offset)
	})
	if err != nil {
		return false, err
	}
	return fetched > 0 || desc.Size == 0, f.Close()
}

// openAt opens a blob at an offset.
func openAt(b blob.Blob, offset int64) (io.ReadCloser, error) {
	rc, err := b.Open()
	if err != nil {
		return nil, err
	}
	if err := blob.Skip(rc, offset); err != nil {
		rc.Close()
		return nil, err
	}
	return rc, nil
}

// Image adds an image to index.json. All of its blobs are stored.
func (l *Layout) Image(image Image) error {
	desc, err := graph.Named(image.Image)
	if err != nil {
		return err
	}
	return l.store.UpdateIndex(func(index *ocispec.Index) { graph.AddToIndex(index, desc) })
}
