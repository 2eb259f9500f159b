package images

import (
	"cmp"
	"context"
	"errors"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// DefaultConcurrency is how many blobs are transferred at once: enough to fill a link even if some
// blobs are small, and not more than skopeo's.
const DefaultConcurrency = 6

// Options configure [Push] and [Pull]. The zero value is ready for use.
type Options struct {
	// Prefix is put before the path of every repository that is pushed to.
	Prefix name.Prefix
	// Concurrency is how many blobs are transferred at once, over all images. 0 is [DefaultConcurrency]. The next image
	// starts when all blobs of one are in transfer or done, so that Concurrency is used until the end.
	Concurrency int
	// FailFast ends at the first image that fails. Otherwise the others are transferred.
	FailFast bool
	// Fits, unless nil, is called by [Push] before it sends anything, with the content of all images, each digest once.
	// Push returns its error.
	Fits func(context.Context, []ocispec.Descriptor) error
	// Progress is called often, but not concurrently. It must return quickly, because it blocks
	// transfers.
	Progress func(Progress)
	// Done is called for each completed image, not concurrently.
	Done func(Result)
}

func (o Options) withDefaults() Options {
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Done == nil {
		o.Done = func(Result) {}
	}
	return o
}

// forEachImage calls do for each image, started in order. It returns the results of those that succeeded, in order, and
// the errors of the others. do calls started when the next image may start. After an error that is fatal, and any with
// [Options.FailFast], it starts no more images and cancels those that are running.
func forEachImage[T any](ctx context.Context, opts Options, r *run, images []T, fatal func(error) bool,
	do func(ctx context.Context, image T, started func()) (Result, error)) ([]Result, error) {
	r.report(r.progress) // with all images; nothing runs yet
	running, stop := context.WithCancel(ctx)
	defer stop()
	var (
		mu      sync.Mutex
		group   sync.WaitGroup
		results = make([]*Result, len(images))
		errs    = make([]error, len(images))
	)
	for i, image := range images {
		if running.Err() != nil {
			break
		}
		next := make(chan struct{})
		started := sync.OnceFunc(func() { close(next) })
		group.Go(func() {
			defer started()
			result, err := do(running, image, started)
			last := err != nil && (opts.FailFast || fatal(err))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				results[i] = &result
				opts.Done(result)
			case running.Err() == nil: // otherwise it was canceled
				errs[i] = err
				if last {
					stop()
				}
			}
		})
		<-next
	}
	group.Wait()
	list := []Result{}
	for _, result := range results {
		if result != nil {
			list = append(list, *result)
		}
	}
	return list, errors.Join(append(errs, ctx.Err())...)
}

// forEachBlob calls do for each of an image's blobs, limited by the slots that images share. It calls
// started when the last blob has its slot. It returns an error if ctx ends before all are done.
func forEachBlob(ctx context.Context, slots *semaphore.Weighted, blobs []ocispec.Descriptor, started func(),
	do func(context.Context, ocispec.Descriptor) error) error {
	group, running := errgroup.WithContext(ctx)
	for _, desc := range blobs {
		if err := slots.Acquire(running, 1); err != nil {
			break // reported below
		}
		group.Go(func() error {
			defer slots.Release(1)
			if err := do(running, desc); err != nil {
				return graph.Wrap(desc, err)
			}
			return nil
		})
	}
	started()
	return cmp.Or(group.Wait(), ctx.Err())
}
