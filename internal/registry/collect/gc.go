package collect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/configuration"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Offline removes what no image needs from a registry's storage. The registry may be running. It calls report
// for every manifest and blob right after removing it.
func Offline(
	ctx context.Context, config *configuration.Configuration, request gc.Request, report func(gc.Event),
) (gc.Result, error) {
	if config.Storage.Type() == storage.DriverInMemory {
		return gc.Result{}, exitcode.Refuse("storage.inmemory has nothing to collect here, because it exists only in " +
			"the running registry: run zarf-registry images garbage-collect")
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
	return New(&content.Store{Driver: driver}, root).Collect(ctx, request, report)
}

// Collect collects garbage: see the package comment. It calls report right after each removal. With an error, what the
// result says was removed nevertheless.
func (c *Collector) Collect(ctx context.Context, request gc.Request, report func(gc.Event)) (gc.Result, error) {
	if err := request.Validate(); err != nil {
		return gc.Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, request.Timeout,
		fmt.Errorf("not finished within %s: the next collection removes the rest", request.Timeout))
	defer cancel()
	r := &run{Collector: c, request: request, report: report, cutoff: time.Now().Add(-request.Grace)}
	collect := r.collect
	if request.DryRun {
		collect = r.simulate
	}
	err := collect(ctx)
	return r.result, err
}

// run is one collection.
type run struct {
	*Collector
	request gc.Request
	report  func(gc.Event)
	cutoff  time.Time // what was written or linked since is kept
	// leaseErr returns an error if the lease is lost. It is for the sweep.
	leaseErr func() error

	mu     sync.Mutex // held by removeBlob, which runs for several at once, while it changes the result and reports
	result gc.Result
}

// simulate finds what a collection would remove.
func (r *run) simulate(ctx context.Context) error {
	r.report(gc.Event{Phase: gc.Marking})
	marked, err := r.mark(ctx, nil)
	if err != nil {
		return err
	}
	return r.sweep(ctx, marked, marked.condemn(r.cutoff), func() error { return nil })
}

// collect takes the steps of the package comment.
func (r *run) collect(ctx context.Context) (err error) {
	r.report(gc.Event{Phase: gc.Marking})
	if _, err := r.leases.waitUntilFree(ctx); err != nil {
		return poll.Cause(ctx, err)
	}
	marked, err := r.mark(ctx, nil)
	if err != nil {
		r.leases.recordFailure(ctx, err)
		return err
	}
	list := marked.condemn(r.cutoff)
	if len(list) > 0 {
		r.report(gc.Event{Phase: gc.Settling})
	}
	lease, err := r.leases.acquire(ctx, list)
	if err != nil {
		return poll.Cause(ctx, err)
	}
	defer func() { lease.release(r.result, err) }()
	r.cutoff = r.cutoff.Add(-lease.behind)
	if len(list) > 0 {
		r.report(gc.Event{Phase: gc.Remarking})
		if marked, err = r.mark(ctx, marked.references); err != nil {
			return err
		}
	}
	return r.sweep(ctx, marked, list, lease.err)
}

// mark finds what is needed. It does not read manifests whose references are known.
func (r *run) mark(ctx context.Context, known map[content.Key]references) (*marks, error) {
	stored := &content.Inventory{Driver: r.leases.driver}
	if err := stored.Read(ctx); err != nil {
		return nil, poll.Cause(ctx, fmt.Errorf("reading the storage: %w", err))
	}
	if known == nil {
		for _, d := range stored.Damaged {
			r.report(gc.Event{Problem: d.String()})
		}
	}
	marked, err := mark(ctx, stored, r.request.DeleteUntagged, r.cutoff, known)
	if err != nil {
		return nil, poll.Cause(ctx, err)
	}
	return marked, nil
}

// sweep removes what is in the list and not marked, while leaseErr returns nil.
func (r *run) sweep(ctx context.Context, marked *marks, list garbageSet, leaseErr func() error) error {
	r.report(gc.Event{Phase: gc.Sweeping})
	r.leaseErr = leaseErr
	if err := r.removeGarbage(ctx, marked, list); err != nil {
		return poll.Cause(ctx, fmt.Errorf("removing garbage: %w", err))
	}
	return nil
}
