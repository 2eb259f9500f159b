package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// GarbageCollect removes what no image needs from a registry's storage. The registry may be running. It calls report
// for every manifest and blob right after removing it.
func GarbageCollect(
	ctx context.Context, config *configuration.Configuration, request gc.Request, report func(gc.Event),
) (gc.Result, error) {
	if config.Storage.Type() == storage.DriverInMemory {
		return gc.Result{}, exitcode.Refuse("storage.inmemory has nothing to collect here, because it exists only in " +
			"the running registry: run zarf-registry garbage-collect")
	}
	driver, err := storage.Open(ctx, config.Storage)
	if err != nil {
		return gc.Result{}, err
	}
	root, _ := storage.FilesystemRoot(config.Storage)
	_, err = driver.Stat(ctx, storage.RepositoriesPath)
	if storage.IsNotFound(err) {
		return gc.Result{}, nil // nothing was ever pushed
	}
	if err != nil {
		return gc.Result{}, fmt.Errorf("reading the storage: %w", err)
	}
	return collect(ctx, newLeaseClient(driver, root), &blobsInUse{}, request, report)
}

// collect acquires the lease, marks and sweeps: see leaseTimes. Use holds what this process keeps.
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
	s := &sweeper{
		driver: leases.driver, use: use, dryRun: request.DryRun, report: report, leaseErr: func() error { return nil },
		deleteTimeout: leases.times.renewDeadline, result: &result,
	}
	report(gc.Event{Phase: gc.Marking})
	if !request.DryRun {
		if _, err := leases.waitUntilFree(ctx); err != nil {
			return gc.Result{}, poll.Cause(ctx, err)
		}
	}
	marked, err := readAndMark(ctx, leases.driver, request, cutoff, nil)
	if err != nil {
		err = poll.Cause(ctx, err)
		if !request.DryRun {
			leases.recordFailure(ctx, err)
		}
		return gc.Result{}, err
	}
	list := marked.condemn(cutoff)
	if !request.DryRun {
		if len(list) > 0 {
			report(gc.Event{Phase: gc.Settling})
		}
		lease, err := leases.acquire(ctx, list)
		if err != nil {
			return gc.Result{}, poll.Cause(ctx, err)
		}
		s.leaseErr = lease.err
		defer func() { lease.release(result, err) }()
		cutoff = cutoff.Add(-lease.behind)
	}
	if !request.DryRun && len(list) > 0 {
		report(gc.Event{Phase: gc.Remarking})
		if marked, err = readAndMark(ctx, leases.driver, request, cutoff, marked.references); err != nil {
			return gc.Result{}, poll.Cause(ctx, err)
		}
	}

	report(gc.Event{Phase: gc.Sweeping})
	if err := s.sweep(ctx, marked, list, cutoff); err != nil {
		return result, poll.Cause(ctx, fmt.Errorf("removing garbage: %w", err))
	}
	return result, nil
}

// readAndMark finds what is needed. It does not read manifests whose references are known.
func readAndMark(
	ctx context.Context, driver storagedriver.StorageDriver, request gc.Request, cutoff time.Time,
	known map[digest.Digest]content.References,
) (*marking, error) {
	stored := &content.Inventory{Driver: driver}
	if err := stored.Read(ctx); err != nil {
		return nil, fmt.Errorf("reading the storage: %w", err)
	}
	return mark(ctx, stored, request.DeleteUntagged, cutoff, known)
}
