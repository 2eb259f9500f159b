package images

import (
	"context"
	"errors"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

// Layout is an OCI layout directory that images are written to. It keeps existing images, except those
// whose name a new image has. It is safe for concurrent use, also by several processes.
type Layout struct {
	store *blobstore.Store
}

var _ Output = (*Layout)(nil)

// OpenLayout opens a layout and creates it if necessary.
func OpenLayout(dir string) (*Layout, error) {
	store, err := blobstore.Open(dir, blobstore.Options{})
	if err != nil {
		return nil, err
	}
	return &Layout{store: store}, nil
}

// Store returns the layout's blobs. It can be [ResolveOptions.Store] if there is no local store.
func (l *Layout) Store() *blobstore.Store { return l.store }

// Close releases the layout's resources.
func (l *Layout) Close() error { return l.store.Close() }

func (l *Layout) plan(context.Context, []*imagePull) error { return nil }

func (l *Layout) finish(context.Context, bool) (bool, error) { return true, nil }

// blob links or copies a blob from the store that it was downloaded to, or downloads it if that store does not keep it.
func (l *Layout) blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error {
	if f, err := l.store.Open(ctx, desc); err == nil {
		t.skip(desc)
		return f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if remote, ok := from.(*remoteContent); ok {
		moved, err := remote.keepBlob(ctx, desc, t, remote.store == l.store)
		if err == nil {
			err = l.store.Link(ctx, desc, remote.store)
		}
		switch {
		case err == nil && moved:
			t.done(desc)
			return nil
		case err == nil:
			t.skip(desc)
			return nil
		case !errors.Is(err, blobstore.ErrNoRoom) && !errors.Is(err, fs.ErrNotExist): // another process may have evicted it
			return err
		}
	}
	return copyBlob(ctx, from, desc, l.store, t)
}

// image adds an image to index.json.
func (l *Layout) image(_ context.Context, image *imagePull) error {
	desc, err := named(image.Image)
	if err != nil {
		return err
	}
	return l.store.UpdateIndex(func(index *ocispec.Index) { addToIndex(index, desc) })
}
