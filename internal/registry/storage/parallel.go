package storage

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"
)

const (
	// Concurrency is how many files are read or written at once.
	Concurrency = 16
	// ManifestConcurrency is how many manifests are, which may have 4 MiB.
	ManifestConcurrency = 4
)

// Each calls do for each number below n, for at most atOnce of them at a time. It returns the first error.
func Each(ctx context.Context, n, atOnce int, do func(context.Context, int) error) error {
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		if running.Err() != nil {
			break
		}
		group.Go(func() error { return do(running, i) })
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// InParallel does that with items.
func InParallel[T any](ctx context.Context, items []T, atOnce int, do func(context.Context, T) error) error {
	return Each(ctx, len(items), atOnce, func(ctx context.Context, i int) error { return do(ctx, items[i]) })
}

// InOrder does that, too, and returns the results in the order of the items.
func InOrder[T, R any](
	ctx context.Context, items []T, atOnce int, do func(context.Context, T) (R, error),
) ([]R, error) {
	results := make([]R, len(items))
	err := Each(ctx, len(items), atOnce, func(ctx context.Context, i int) (err error) {
		results[i], err = do(ctx, items[i])
		return err
	})
	return results, err
}
