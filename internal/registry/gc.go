package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// GarbageCollect removes what no image needs from a registry's storage. The registry may be running, if
// its release supports the garbage-collection lease; with an older release nobody may push meanwhile.
// It calls report for every manifest and blob right after removing it.
func GarbageCollect(
	ctx context.Context, config *configuration.Configuration, request gc.Request, report func(gc.Event),
) (gc.Result, error) {
	if config.Storage.Type() == driverInMemory {
		return gc.Result{}, errors.New("storage.inmemory has nothing to collect here, because it exists only in " +
			"the running registry: run init-hook garbage-collect")
	}
	driver, err := openDriver(ctx, config.Storage)
	if err != nil {
		return gc.Result{}, err
	}
	root, _ := filesystemRoot(config.Storage)
	_, err = driver.Stat(ctx, repositoriesPath)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return gc.Result{}, nil // nothing was ever pushed
	}
	if err != nil {
		return gc.Result{}, fmt.Errorf("reading the storage: %w", err)
	}
	return collect(ctx, newLeaseClient(driver, root), &blobsInUse{}, request, report)
}

// collect acquires the lease, marks and sweeps. Use holds the blobs that this process keeps.
func collect(
	ctx context.Context, leases *leaseClient, use *blobsInUse, request gc.Request, report func(gc.Event),
) (result gc.Result, err error) {
	if err := request.Validate(); err != nil {
		return gc.Result{}, err
	}
	cutoff := time.Now().Add(-request.Grace)
	ctx, cancel := context.WithTimeoutCause(ctx, request.Timeout,
		fmt.Errorf("not finished within %s: the next collection removes the rest", request.Timeout))
	defer cancel()
	leaseErr := func() error { return nil }
	if !request.DryRun {
		report(gc.Event{Phase: gc.Settling})
		lease, err := leases.acquire(ctx)
		if err != nil {
			return gc.Result{}, err
		}
		leaseErr = lease.err
		defer func() { lease.release(result, err) }()
		// The times of files are those of the storage's clock, which may be behind.
		if info, err := leases.driver.Stat(ctx, leasePath); err == nil && info.ModTime().Add(-request.Grace).Before(cutoff) {
			cutoff = info.ModTime().Add(-request.Grace)
		}
	}

	report(gc.Event{Phase: gc.Marking})
	stored := &inventory{driver: leases.driver}
	if err := stored.read(ctx); err != nil {
		return gc.Result{}, cause(ctx, fmt.Errorf("reading the storage: %w", err))
	}
	keep, err := stored.mark(ctx, request.DeleteUntagged, cutoff)
	if err != nil {
		return gc.Result{}, cause(ctx, err)
	}

	report(gc.Event{Phase: gc.Sweeping})
	s := &sweeper{
		driver: leases.driver, dryRun: request.DryRun, report: report, leaseErr: leaseErr,
		deleteTimeout: leases.times.renewDeadline, result: &result,
	}
	for _, m := range stored.manifests {
		if keep[stored.stored(m.digest)] || err != nil {
			delete(stored.backLinks, m.repositoryDigest) // what remains leads nowhere
			continue
		}
		err = s.manifest(ctx, m, stored.history[m.repositoryDigest])
	}
	for _, links := range stored.backLinks {
		if err == nil {
			err = s.remove(ctx, links...)
		}
	}
	for _, d := range stored.order {
		b := stored.blobs[d]
		if keep[d] || err != nil {
			continue
		}
		if b.newest.After(cutoff) {
			result.Kept++
			continue
		}
		// A client that this process told about the blob will refer to it in a manifest.
		removed := use.removeUnused(d, cutoff, func() { err = s.blob(ctx, d, b) })
		if errors.Is(err, errConcurrentWrite) {
			removed, err = false, nil // a push uses the blob
		}
		if !removed {
			result.Kept++
		}
	}
	if err != nil {
		return result, cause(ctx, fmt.Errorf("removing garbage: %w", err))
	}
	return result, nil
}

// cause returns the cause of ctx's end, if it has ended, since err only follows from it; otherwise err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
