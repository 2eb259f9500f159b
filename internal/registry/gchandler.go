package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// keepAlivePeriod is how often a silent response repeats its phase: load balancers in front of an API
// server close connections that are idle for a minute or more.
const keepAlivePeriod = 5 * time.Second

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
			writeError(w, errcode.ErrorCodeUnsupported.WithMessage("garbage collection requires POST"))
			return
		}
		request, err := gc.ParseQuery(r.URL.Query())
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
		who, _ := r.Context().Value(callerKey{}).(*caller)
		s.collect(r.Context(), request, who, w)
	})
}

// collect collects garbage for a caller and streams the events. It aborts when the client disconnects.
func (s *Server) collect(ctx context.Context, request gc.Request, who *caller, w http.ResponseWriter) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	events := make(chan gc.Event)
	go func() {
		defer close(events)
		started := time.Now()
		report := func(e gc.Event) {
			if e.Removed != nil && !request.DryRun {
				logPrune(ctx, s.log, *e.Removed, who.audit())
				s.space.removed(e.Removed.Bytes)
			}
			events <- e
		}
		result, err := collect(ctx, s.leases, &s.source.use, request, report)
		log := s.log.With("dryRun", request.DryRun, "deleteUntagged", request.DeleteUntagged,
			"manifests", result.Manifests, "blobs", result.Blobs, "bytes", result.Bytes, "kept", result.Kept,
			"took", time.Since(started).String())
		last := gc.Event{Result: &result}
		if err != nil {
			last = gc.Event{Error: err.Error()}
			log.Error("garbage collection failed", "error", err)
		} else {
			log.Info("garbage collected")
		}
		events <- last
	}()

	encoder, control := json.NewEncoder(w), http.NewResponseController(w)
	send := func(e gc.Event) {
		if err := errors.Join(encoder.Encode(e), control.Flush()); err != nil {
			cancel(fmt.Errorf("the client disconnected: %w", err))
		}
	}
	ticker := time.NewTicker(keepAlivePeriod)
	defer ticker.Stop()
	var phase gc.Event
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			if e.Phase != "" {
				phase = e
			}
			send(e)
		case <-ticker.C:
			if s.draining.Load() {
				cancel(errors.New("the registry is shutting down"))
			}
			send(phase)
		}
	}
}
