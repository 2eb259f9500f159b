package cache

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
)

const prefix = "zarf_registry_cache_"

type cacheMetrics struct {
	set      *metrics.Set
	inFlight atomic.Int64 // requests in flight

	hits, misses, saved, fetched, evictions, corrupt, stale *metrics.Counter

	unavailable, originErrors, fetchErrors, resumes *metrics.Counter
}

func newCacheMetrics(c *Cache) *cacheMetrics {
	set := metrics.NewSet()
	m := &cacheMetrics{
		set:          set,
		hits:         set.NewCounter(prefix + "hits_total"),
		misses:       set.NewCounter(prefix + "misses_total"),
		saved:        set.NewCounter(prefix + "saved_bytes_total"),
		fetched:      set.NewCounter(prefix + "fetched_bytes_total"),
		evictions:    set.NewCounter(prefix + "evictions_total"),
		corrupt:      set.NewCounter(prefix + "corrupt_total"),
		stale:        set.NewCounter(prefix + "stale_responses_total"),
		unavailable:  set.NewCounter(prefix + "unavailable_responses_total"),
		originErrors: set.NewCounter(prefix + "registry_errors_total"),
		fetchErrors:  set.NewCounter(prefix + "fetch_errors_total"),
		resumes:      set.NewCounter(prefix + "fetch_resumes_total"),
	}
	source := c.config.Source
	gauges := map[string]func() float64{
		"requests_in_flight": func() float64 { return float64(m.inFlight.Load()) },
		"connections":        func() float64 { return float64(c.connections.Open()) },
		"size_bytes":         func() float64 { return float64(c.config.Size) },
		"used_bytes": func() float64 {
			used, _ := c.store.usage()
			return float64(used)
		},
		"blobs": func() float64 {
			_, blobs := c.store.usage()
			return float64(blobs)
		},
	}
	maps.Copy(gauges, source.Gauges())
	for name, value := range gauges {
		set.NewGauge(prefix+name, value)
	}
	set.NewGauge(fmt.Sprintf("%sbuild_info{version=%q,goversion=%q}", prefix, c.config.Version, runtime.Version()),
		func() float64 { return 1 })
	set.RegisterMetricsWriter(func(w io.Writer) {
		metrics.WriteCounterUint64(w, prefix+"certificate_reload_errors_total", source.ReloadErrors())
		metrics.WriteCounterUint64(w, prefix+"connections_dropped_total", c.connections.Dropped())
	})
	return m
}

// admin returns the handler of the metrics port:
//
//	/healthz   200 while the process serves
//	/readyz    200 while the cache serves and does not drain, 503 otherwise
//	/metrics   Prometheus metrics
//	/loaded    the program, the mounted certificates in use and the stored content, see internal/api/loaded
//
// An unavailable registry does not make a cache unready: clients learn it from the responses.
func (c *Cache) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		state, code := "ok", http.StatusOK
		switch {
		case c.draining.Load():
			state, code = "draining", http.StatusServiceUnavailable
		case !c.serving.Load():
			state, code = "not listening yet", http.StatusServiceUnavailable
		}
		w.WriteHeader(code)
		fmt.Fprintln(w, state)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		c.metrics.set.WritePrometheus(w)
		metrics.WriteProcessMetrics(w)
	})
	mux.Handle("GET "+loaded.Path, loaded.Handler(func() loaded.State {
		m := c.metrics
		used, _ := c.store.usage()
		use := &loaded.Cache{
			Size: c.config.Size, Used: used, Hits: m.hits.Get(), Misses: m.misses.Get(), Stale: m.stale.Get(),
		}
		return loaded.State{Program: c.config.Program, Certificates: c.config.Source.Loaded(), Cache: use}
	}))
	return mux
}
