package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
)

// Output is the destination of a pull: a [Layout] or an [Archive].
type Output interface {
	// plan is called first, with all images whose blobs will be stored.
	plan(ctx context.Context, images []*imagePull) error
	// blob stores a blob and records its progress.
	blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error
	// image records that all blobs of an image are stored.
	image(ctx context.Context, image *imagePull) error
	// finish is called last. If the run has ended early or has no complete image, it changes nothing more. It reports
	// whether the output has the complete images.
	finish(ctx context.Context, ended bool) (kept bool, err error)
}

// Pull writes whole images to a layout or archive. It verifies every digest and does not download
// blobs that are present. A layout lists an image only when it is complete, so an interrupted pull
// leaves no partial image, and the next one resumes it. An archive is written at the end, unless ctx ends, no image is
// complete, or with [Options.FailFast] one failed.
//
// Pull returns the results of the images that the output contains, and the errors of the others. If the disk is full,
// it stops.
func Pull(ctx context.Context, items []Item, out Output, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	slots := semaphore.NewWeighted(int64(opts.Concurrency))
	run := newRun(opts.Progress)
	var images []*imagePull
	var failed []error
	for _, item := range items {
		nodes, err := graph(ctx, item.Content, item.Descriptor)
		if err != nil {
			failed = append(failed, fmt.Errorf("image %s: %w", item.name(), err))
			continue
		}
		images = append(images, &imagePull{item, nodes, run.add(item.Image, nodes, 1)})
	}
	if err := errors.Join(failed...); ctx.Err() != nil || err != nil && opts.FailFast {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if err := out.plan(ctx, images); err != nil {
		return nil, errors.Join(append(failed, err)...)
	}
	results, err := forEachImage(ctx, opts, run, images, blobstore.IsDiskFull,
		func(ctx context.Context, image *imagePull, started func()) (Result, error) {
			result, err := image.pull(ctx, out, slots, started)
			if err != nil {
				return result, fmt.Errorf("pulling image %s: %w", image.name(), err)
			}
			return result, nil
		})
	err = errors.Join(append(failed, err)...)
	kept, unfinished := out.finish(ctx, ctx.Err() != nil || err != nil && (opts.FailFast || len(results) == 0))
	if !kept {
		results = nil
	}
	return results, errors.Join(err, unfinished)
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
	if err := out.image(ctx, p); err != nil {
		return p.progress.result, err
	}
	return p.progress.finish(p.Reference), nil
}

// openVerified opens content that is verified while it is read, or was verified in the store that keeps it.
func openVerified(ctx context.Context, from Content, desc ocispec.Descriptor, received func(offset, n int64)) (
	io.ReadCloser, error) {
	if remote, ok := from.(*remoteContent); ok {
		f, err := remote.kept(ctx, desc, received, false)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, blobstore.ErrNoRoom) {
			return nil, err
		}
	}
	b, err := from.Blob(ctx, desc, received)
	if err != nil {
		return nil, err
	}
	return b.Fetch(desc)
}

// copyBlob copies a blob into a store and verifies it.
func copyBlob(ctx context.Context, from Content, desc ocispec.Descriptor, store *blobstore.Store,
	t *imageProgress) error {
	f, fetched, err := store.Fetch(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		b, err := from.Blob(ctx, desc, t.received(desc))
		if err != nil {
			return nil, err
		}
		return openAt(b, offset)
	})
	if err != nil {
		return err
	}
	f.Close()
	if fetched > 0 || desc.Size == 0 {
		t.done(desc)
	} else {
		t.skip(desc)
	}
	return nil
}
