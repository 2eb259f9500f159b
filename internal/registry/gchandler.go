package registry

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/audit"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// withGarbageCollection serves garbage-collection requests, one at a time. Clients that may write may
// send them.
func (s *Server) withGarbageCollection(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != gc.Path {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			request.WriteError(w, errcode.ErrorCodeUnsupported.WithMessage("garbage collection requires POST"))
			return
		}
		query, err := gc.ParseQuery(r.URL.Query())
		if err == nil && s.options.Config.Storage["cache"] != nil {
			err = errors.New("storage.cache is configured and would report blobs that were removed: " +
				"remove it from the configuration")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !s.collecting.TryLock() {
			http.Error(w, errLeaseHeld.Error(), http.StatusConflict)
			return
		}
		defer s.collecting.Unlock()
		caller := request.CallerOf(r.Context())
		s.collect(r.Context(), query, caller, w)
	})
}

// collect collects garbage for a caller and streams the events. It aborts when the client disconnects.
func (s *Server) collect(ctx context.Context, query gc.Request, caller *request.Caller, w http.ResponseWriter) {
	var phase atomic.Pointer[gc.Event]
	phase.Store(&gc.Event{Phase: gc.Marking})
	request.Stream(ctx, &s.draining, w, func() any { return phase.Load() }, func(ctx context.Context, send func(any)) {
		started := time.Now()
		report := func(e gc.Event) {
			if e.Removed != nil && !query.DryRun {
				audit.Prune(ctx, s.log, *e.Removed, caller.Audit()...)
				s.space.removed(e.Removed.Bytes)
			}
			if e.Phase != "" {
				phase.Store(&e)
			}
			send(e)
		}
		result, err := collect(ctx, s.leases, &s.source.use, query, report)
		log := s.log.With("dryRun", query.DryRun, "deleteUntagged", query.DeleteUntagged,
			"manifests", result.Manifests, "blobs", result.Blobs, "bytes", result.Bytes, "kept", result.Kept,
			"duration", time.Since(started).String())
		last := gc.Event{Result: &result}
		if err != nil {
			last = gc.Event{Error: err.Error()}
			log.Error("garbage collection failed", "error", err)
		} else {
			log.Info("garbage collected")
		}
		send(last)
	})
}
