package collect

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/configuration"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Offline removes what no image needs from a registry's storage. The registry may be running. For report, see Collect.
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
	r := &run{Collector: c, request: request, report: report, cutoff: time.Now().Add(-request.Grace),
		leaseErr: func() error { return nil }, stored: content.Inventory{Driver: c.leases.driver}}
	collect := r.collect
	if request.DryRun {
		collect = r.simulate
	}
	err := poll.Cause(ctx, collect(ctx))
	return r.result, err
}

// run is one collection.
type run struct {
	*Collector
	request gc.Request
	report  func(gc.Event)
	cutoff  time.Time         // what was written or linked since is kept
	stored  content.Inventory // when it was marked last
	// leaseErr returns an error if the lease is lost.
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
	return r.sweep(ctx, marked, marked.condemn(r.cutoff))
}

// collect takes the steps of the package comment.
func (r *run) collect(ctx context.Context) (err error) {
	r.report(gc.Event{Phase: gc.Marking})
	if _, err := r.leases.waitUntilFree(ctx); err != nil {
		return err
	}
	marked, err := r.mark(ctx, nil)
	if err != nil {
		r.leases.recordFailure(ctx, poll.Cause(ctx, err))
		return err
	}
	list := marked.condemn(r.cutoff)
	if len(list) > 0 {
		r.report(gc.Event{Phase: gc.Settling})
	}
	lease, err := r.leases.acquire(ctx, list)
	if err != nil {
		return err
	}
	defer func() { lease.release(r.result, poll.Cause(ctx, err)) }()
	r.leaseErr = lease.err
	r.cutoff = r.cutoff.Add(-lease.behind)
	if len(list) > 0 {
		r.report(gc.Event{Phase: gc.Remarking})
		if marked, err = r.mark(ctx, marked.references); err != nil {
			return err
		}
	}
	return r.sweep(ctx, marked, list)
}

// mark finds what is needed. It does not read manifests whose references are known. Previous marks are invalid then.
func (r *run) mark(ctx context.Context, known map[content.Key]references) (*marks, error) {
	if err := r.stored.Read(ctx); err != nil {
		return nil, fmt.Errorf("reading the storage: %w", err)
	}
	if known == nil {
		for _, d := range r.stored.Damaged {
			r.report(gc.Event{Problem: d.String()})
		}
	}
	return mark(ctx, &r.stored, r.request.DeleteUntagged, r.cutoff, known)
}

// Handler serves garbage-collection requests, one at a time, until their client disconnects or the registry drains.
func (c *Collector) Handler(draining *atomic.Bool) http.Handler {
	return request.Methods("garbage collections", func(w http.ResponseWriter, r *http.Request) {
		query, err := gc.ParseQuery(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !c.collecting.TryLock() {
			http.Error(w, errLeaseHeld.Error(), http.StatusConflict)
			return
		}
		defer c.collecting.Unlock()
		var phase atomic.Pointer[gc.Event]
		phase.Store(&gc.Event{Phase: gc.Marking})
		keepAlive := func() any { return phase.Load() }
		request.Stream(r.Context(), draining, w, keepAlive, func(ctx context.Context, send func(any)) {
			send(c.serve(ctx, query, func(e gc.Event) {
				if e.Removed != nil && !query.DryRun {
					request.Audit(ctx, c.store.Log, request.ActionPrune, e.Removed.Repository, e.Removed.Digest, e.Removed.Digest)
				}
				if e.Problem != "" {
					c.store.Log.Warn("stored content is damaged", "problem", e.Problem)
				}
				if e.Phase != "" {
					phase.Store(&e)
				}
				send(e)
			}))
		})
	}, http.MethodPost)
}

// serve collects garbage, logs the result, and returns the last event.
func (c *Collector) serve(ctx context.Context, query gc.Request, report func(gc.Event)) gc.Event {
	started := time.Now()
	result, err := c.Collect(ctx, query, report)
	log := c.store.Log.With("dryRun", query.DryRun, "deleteUntagged", query.DeleteUntagged,
		"manifests", result.Manifests, "blobs", result.Blobs, "bytes", result.Bytes, "kept", result.Kept,
		"duration", time.Since(started).String())
	if err != nil {
		log.Error("garbage collection failed", "error", err)
		return gc.Event{Error: err.Error()}
	}
	log.Info("garbage collected")
	return gc.Event{Result: &result}
}
