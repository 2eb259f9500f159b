package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/gc"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
)

// repeatPhase is how often an answer that has nothing to tell says so: load balancers
// before an API server end what is silent for a minute or more.
const repeatPhase = 5 * time.Second

// collections are those that this process was asked for, one at a time.
type collections struct{ running sync.Mutex }

// withCollections answers requests to collect garbage. Who may write may ask.
func (s *Server) withCollections(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != gc.Path {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			refuse(w, errcode.ErrorCodeUnsupported.WithMessage("garbage collection is asked for by POST"))
			return
		}
		request, err := gc.ParseQuery(r.URL.Query())
		if err == nil && s.options.Config.Storage["cache"] != nil {
			err = errors.New("storage.cache is configured, which would promise blobs that are gone: remove it from the configuration")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !s.collections.running.TryLock() {
			http.Error(w, errHeld.Error(), http.StatusConflict)
			return
		}
		defer s.collections.running.Unlock()
		s.collect(r.Context(), request, w)
	})
}

// collect answers with what a collection does.
func (s *Server) collect(ctx context.Context, request gc.Request, w http.ResponseWriter) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	events := make(chan gc.Event)
	go func() {
		defer close(events)
		started := time.Now()
		result, err := collect(ctx, s.gate, &s.source.use, request, func(e gc.Event) {
			events <- e
		})
		log := s.log.With("dryRun", request.DryRun, "deleteUntagged", request.DeleteUntagged, "manifests", result.Manifests,
			"blobs", result.Blobs, "bytes", result.Bytes, "kept", result.Kept, "took", time.Since(started).String())
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
	ticker := time.NewTicker(repeatPhase)
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
			if err := errors.Join(encoder.Encode(e), control.Flush()); err != nil {
				cancel(fmt.Errorf("who asked for it has gone: %w", err))
			}
		case <-ticker.C:
			if s.draining.Load() {
				cancel(errors.New("the registry is shutting down"))
			}
			if err := errors.Join(encoder.Encode(phase), control.Flush()); err != nil {
				cancel(fmt.Errorf("who asked for it has gone: %w", err))
			}
		}
	}
}

// collectionReport is how it stands as far as this process has seen.
func (s *Server) collectionReport() *reloadstatus.Collection {
	r := s.gate.seen.Load()
	report := &reloadstatus.Collection{ReadOnly: s.gate.held(r), Problem: r.record.Failure}
	if r.record.Succeeded != 0 {
		at := time.Unix(r.record.Succeeded, 0).UTC()
		report.SucceededAt = &at
	}
	return report
}
