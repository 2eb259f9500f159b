package collect

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/audit"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// Handler serves garbage-collection requests, one at a time. Clients that may write may send them. Requests end
// when the registry begins to drain, or when their client disconnects.
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
					audit.Log(ctx, c.store.Log, audit.ActionPrune, e.Removed.Repository, e.Removed.Digest, e.Removed.Digest)
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
