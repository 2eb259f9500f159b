package images

import (
	"context"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

// Output is the destination of a pull: a [Layout] or an [Archive].
type Output interface {
	// blob stores a blob and records its progress.
	blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error
	// image records that all blobs of an image are stored.
	image(ctx context.Context, item Item) error
}

// Pull writes whole images to a layout or archive. It verifies every digest and does not download
// blobs that are present. A layout lists an image only when it is complete, so an interrupted pull
// leaves no partial image, and the next one resumes it. [Archive.Write] writes an archive at the end.
//
// Pull stops at the first image that fails, and returns the results of those that succeeded.
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
	return forEachImage(ctx, opts, run, images,
		func(ctx context.Context, image *imagePull, started func()) (Result, error) {
			result, err := image.pull(ctx, out, slots, started)
			if err != nil {
				return result, fmt.Errorf("pulling image %s: %w", image.name(), err)
			}
			return result, nil
		})
}

// imagePull is the pull of one image.
type imagePull struct {
	Item
	nodes    []ocispec.Descriptor
	progress *imageProgress
}

func (p *imagePull) pull(ctx context.Context, out Output, slots *semaphore.Weighted, started func()) (Result, error) {
	p.progress.begin()
	err := forEachBlob(ctx, slots, p.nodes, started, func(ctx context.Context, desc ocispec.Descriptor) error {
		return out.blob(ctx, p.Content, desc, p.progress)
	})
	if err != nil {
		return p.progress.result, err
	}
	if err := out.image(ctx, p.Item); err != nil {
		return p.progress.result, err
	}
	return p.progress.finish(p.Reference), nil
}

// fetchBlob downloads a blob unless it is on this machine.
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

// copyBlob copies a blob into a store and verifies it.
func copyBlob(ctx context.Context, from Content, desc ocispec.Descriptor, store *blobstore.Store,
	t *imageProgress) error {
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
