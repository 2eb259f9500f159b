package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
)

// Output is the destination of a pull: an [output.Layout] or an [output.Archive].
type Output interface {
	// Plan is called first, with all images whose blobs will be stored.
	Plan(ctx context.Context, images []output.Image) error
	// Blob stores a blob, and reports whether it was transferred or present. received is called for every n bytes at
	// offset that are downloaded.
	Blob(ctx context.Context, from graph.Content, desc ocispec.Descriptor, received func(offset, n int64)) (moved bool,
		err error)
	// Image records that all blobs of an image are stored.
	Image(output.Image) error
	// Finish is called last. If the run has ended early or has no complete image, it changes nothing more. It reports
	// whether the output has the complete images.
	Finish(ctx context.Context, ended bool) (kept bool, err error)
}

// Pull writes whole images to a layout or archive. It verifies every digest and does not download
// blobs that are present. A layout lists an image only when it is complete, so an interrupted pull
// leaves no partial image, and the next one resumes it. An archive is written at the end, unless ctx ends, no image is
// complete, or with [Options.FailFast] one failed.
//
// Pull returns the results of the images that the output contains, and the errors of the others. If the disk is full,
// it stops.
func Pull(ctx context.Context, items []graph.Item, out Output, opts Options) ([]Result, error) {
	opts = opts.withDefaults()
	slots := semaphore.NewWeighted(int64(opts.Concurrency))
	run := newRun(opts.Progress)
	var planned []output.Image
	var images []*imagePull
	var failed []error
	for _, item := range items {
		nodes, err := graph.Nodes(ctx, item.Content, item.Descriptor)
		if err != nil {
			failed = append(failed, fmt.Errorf("image %s: %w", item.Name(), err))
			continue
		}
		planned = append(planned, output.Image{Item: item, Nodes: nodes})
		images = append(images, &imagePull{planned[len(planned)-1], run.add(item.Image, nodes)})
	}
	if err := errors.Join(failed...); ctx.Err() != nil || err != nil && opts.FailFast {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if err := out.Plan(ctx, planned); err != nil {
		return nil, errors.Join(append(failed, err)...)
	}
	results, err := forEachImage(ctx, opts, run, images, blobstore.IsDiskFull,
		func(ctx context.Context, image *imagePull, started func()) (Result, error) {
			result, err := image.pull(ctx, out, slots, started)
			if err != nil {
				return result, fmt.Errorf("pulling image %s: %w", image.Name(), err)
			}
			return result, nil
		})
	err = errors.Join(append(failed, err)...)
	kept, unfinished := out.Finish(ctx, ctx.Err() != nil || err != nil && (opts.FailFast || len(results) == 0))
	if !kept {
		results = nil
	}
	return results, errors.Join(err, unfinished)
}

type imagePull struct {
	output.Image
	progress *imageProgress
}

func (p *imagePull) pull(ctx context.Context, out Output, slots *semaphore.Weighted, started func()) (Result, error) {
	p.progress.start = time.Now()
	err := forEachBlob(ctx, slots, p.Nodes, started, func(ctx context.Context, desc ocispec.Descriptor) error {
		moved, err := out.Blob(ctx, p.Content, desc, p.progress.received(desc))
		switch {
		case err != nil:
			return err
		case moved:
			p.progress.done(desc)
		default:
			p.progress.skip(desc)
		}
		return nil
	})
	if err == nil {
		err = out.Image(p.Image)
	}
	if err != nil {
		return p.progress.result, err
	}
	return p.progress.finish(p.Reference), nil
}
