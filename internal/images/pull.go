package images

import (
	"context"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/zarf-dev/zarf-registry/internal/blobstore"
)

// Output is where images are pulled to: a [Layout] or an [Archive].
type Output interface {
	// blob takes a blob over, and tells the tally what became of it.
	blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error
	// image notes that all blobs of an image are there.
	image(ctx context.Context, item Item) error
}

// Pull writes images, whole, to a layout or archive. Each blob's digest is
// verified, and what is there already is not brought again. An image is listed in
// a layout when all of it is there, so a pull that was interrupted leaves nothing
// that looks whole, and the next one goes on; an archive is written in the end
// ([Archive.Write]).
//
// It ends with the first image that fails; the results are those of the images
// that did not. Errors name the image and the blob.
func Pull(ctx context.Context, items []Item, out Output, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	slots := semaphore.NewWeighted(int64(opts.Concurrency))
	run := newRun(opts.Progress, len(items))
	images := make([]*imagePull, len(items))
	for i, item := range items {
		nodes, err := graph(ctx, item.Content, item.Descriptor)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", item.name(), err)
		}
		images[i] = &imagePull{item, nodes, run.add(item.Image, nodes, 1)}
	}
	return forEachImage(ctx, opts, run, images, func(ctx context.Context, image *imagePull, begun func()) (Result, error) {
		result, err := image.pull(ctx, out, slots, begun)
		if err != nil {
			return result, fmt.Errorf("pulling image %s: %w", image.name(), err)
		}
		return result, nil
	})
}

// pulled is an image that is being pulled.
type imagePull struct {
	Item
	nodes    []ocispec.Descriptor
	progress *imageProgress
}

func (p *imagePull) pull(ctx context.Context, out Output, slots *semaphore.Weighted, begun func()) (Result, error) {
	p.progress.begin()
	err := forEachBlob(ctx, slots, p.nodes, begun, func(ctx context.Context, desc ocispec.Descriptor) error {
		return out.blob(ctx, p.Content, desc, p.progress)
	})
	if err != nil {
		return p.progress.result, err
	}
	if err := ctx.Err(); err != nil {
		return p.progress.result, err
	}
	if err := out.image(ctx, p.Item); err != nil {
		return p.progress.result, err
	}
	return p.progress.finish(p.Reference), nil
}

// bring brings a blob to this machine, counted, and skips what is here.
func fetchBlob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error {
	moved := false
	received := t.received(desc)
	_, err := from.Blob(ctx, desc, func(offset, n int64) {
		moved = true
		received(offset, n)
	})
	if err != nil {
		return err
	}
	if moved {
		t.done(desc)
	} else {
		t.skip(desc)
	}
	return nil
}

// copied copies a blob, verified, into a store.
func copyBlob(ctx context.Context, from Content, desc ocispec.Descriptor, store *blobstore.Store, t *imageProgress) error {
	received := t.received(desc)
	fetched, err := store.Ensure(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		b, err := from.Blob(ctx, desc, nil)
		if err != nil {
			return nil, err
		}
		rc, err := openAt(b, offset)
		if err != nil {
			return nil, err
		}
		return countReads(rc, offset, received), nil
	})
	if err != nil {
		return err
	}
	if fetched > 0 || desc.Size == 0 {
		t.done(desc)
	} else {
		t.skip(desc)
	}
	return nil
}
