package registry

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// diagnosticsTimeout bounds a whole request for health or metrics. Responses are a few KiB.
const diagnosticsTimeout = 30 * time.Second

// healthHandler serves /healthz, for liveness, which succeeds while the process runs, since a restart
// does not repair the storage; and /readyz, which reports whether clients should send requests here.
func (s *Server) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", healthCheck(func() error { return nil }))
	mux.Handle("GET /readyz", healthCheck(func() error {
		if s.draining.Load() {
			return errors.New("shutting down")
		}
		return s.health.Err(time.Now())
	}))
	return mux
}

// healthCheck responds 503 with the error of check, or 200.
func healthCheck(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n") // the client may have disconnected
	})
}

func (s *Server) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.handler())
	mux.Handle("GET "+loaded.Path, loaded.Handler(s.loaded))
	return mux
}

// loaded describes the certificates and credentials in use, and what follows them.
func (s *Server) loaded() loaded.State {
	report := loaded.State{Credentials: s.credentials.Loaded(), GarbageCollection: s.collector.Loaded(),
		Scrub: s.scrubber.Status()}
	if err := s.health.Err(time.Now()); err != nil {
		report.StorageError = err.Error()
	} else {
		report.StorageEmpty = storage.IsEmpty(s.source.Driver)
	}
	if usage := s.space.Usage(); usage.Limit > 0 {
		report.Space = &usage
	}
	if s.certificates != nil {
		report.Certificates = s.certificates.Loaded()
	}
	if s.plain != nil {
		open := s.plain.address() != nil
		report.PlainListenerOpen = &open
	}
	return report
}
