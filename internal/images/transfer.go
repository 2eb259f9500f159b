package images

import (
	"context"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// DefaultConcurrency is how many blobs are transferred at once: enough to fill a
// link while some blobs are small, and no more than skopeo's.
const DefaultConcurrency = 6

// Options change how [Push] and [Pull] work. The zero value is ready for use.
type Options struct {
	// Prefix is put before the path of every repository that is pushed to.
	Prefix Prefix
	// Concurrency is how many blobs are transferred at once, over all images; 0 is
	// [DefaultConcurrency].
	Concurrency int
	// ImageConcurrency is how many images are begun at once; 0 is 1. The next one
	// begins when all blobs of one are on their way or there, so that there are
	// Concurrency of them on their way to the end.
	ImageConcurrency int
	// Progress is told how far the run is, often. It is not called concurrently, and
	// must be quick: it holds up what is being transferred.
	Progress func(Progress)
	// Done is told of each image that is whole where it should be. It is not called
	// concurrently.
	Done func(Result)
}

func (o Options) withDefaults() Options {
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.ImageConcurrency <= 0 {
		o.ImageConcurrency = 1
	}
	if o.Done == nil {
		o.Done = func(Result) {}
	}
	return o
}

// inOrder does something about each of a run's images, begun in their order, and
// returns the results of those that it was done for, in that order, too. do calls
// begun when the next image may begin. Where an image fails, those before it are
// brought to their end, and those after it are stopped.
func forEachImage[T any](ctx context.Context, opts Options, r *run, images []T, do func(ctx context.Context, image T, begun func()) (Result, error)) ([]Result, error) {
	r.started()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		mu      sync.Mutex
		running sync.WaitGroup
		cancels = make([]context.CancelFunc, len(images))
		results = make([]*Result, len(images))
		errs    = make([]error, len(images))
		first   = len(images) // of those that failed
	)
	places := semaphore.NewWeighted(int64(opts.ImageConcurrency))
	for i, image := range images {
		if places.Acquire(ctx, 1) != nil {
			break
		}
		mu.Lock()
		if first < i {
			mu.Unlock()
			break
		}
		own, cancel := context.WithCancel(ctx)
		cancels[i] = cancel
		mu.Unlock()
		begun := sync.OnceFunc(func() { places.Release(1) })
		running.Go(func() {
			defer cancel()
			defer begun()
			result, err := do(own, image, begun)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				results[i] = &result
				opts.Done(result)
				return
			}
			errs[i] = err
			if i < first {
				first = i
				for _, cancel := range cancels[i+1:] {
					if cancel != nil {
						cancel()
					}
				}
			}
		})
	}
	running.Wait()
	list := []Result{}
	for _, result := range results {
		if result != nil {
			list = append(list, *result)
		}
	}
	if first < len(images) {
		return list, errs[first]
	}
	return list, ctx.Err()
}

// inSlots does something about each of an image's blobs, as many at a time as there
// are slots, which images share. begun is called when the last of them has its slot.
func forEachBlob(ctx context.Context, slots *semaphore.Weighted, blobs []ocispec.Descriptor, begun func(), do func(context.Context, ocispec.Descriptor) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, desc := range blobs {
		if err := slots.Acquire(ctx, 1); err != nil {
			break // the group has the reason, or the caller
		}
		group.Go(func() error {
			defer slots.Release(1)
			if err := do(ctx, desc); err != nil {
				return wrapDescriptor(desc, err)
			}
			return nil
		})
	}
	begun()
	return group.Wait()
}
