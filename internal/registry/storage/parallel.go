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

// InOrder does the same as InParallel, and returns the results in the same order.
func InOrder[T, R any](
	ctx context.Context, items []T, atOnce int, do func(context.Context, T) (R, error),
) ([]R, error) {
	results := make([]R, len(items))
	indexes := make([]int, len(items))
	for i := range indexes {
		indexes[i] = i
	}
	err := InParallel(ctx, indexes, atOnce, func(ctx context.Context, i int) (err error) {
		results[i], err = do(ctx, items[i])
		return err
	})
	return results, err
}

// InParallel calls do for each item, for at most atOnce of them at a time. It returns the first error.
func InParallel[T any](ctx context.Context, items []T, atOnce int, do func(context.Context, T) error) error {
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, item := range items {
		if running.Err() != nil {
			break
		}
		group.Go(func() error { return do(running, item) })
	}
	return cmp.Or(group.Wait(), ctx.Err())
}
