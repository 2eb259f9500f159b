package proxy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

const prefix = "zarf_registry_proxy_"

type proxyMetrics struct {
	set      *metrics.Set
	started  atomic.Uint64 // requests started
	inFlight atomic.Int64  // requests in flight

	bytes        *metrics.Counter
	aborted      *metrics.Counter
	tlsRefused   *metrics.Counter
	retries      *metrics.Counter
	resumes      *metrics.Counter
	resumeErrors *metrics.Counter
	pauses       *metrics.Counter
	registry     upstreamMetrics
	cache        upstreamMetrics // unused without caches
	cacheServed  *metrics.Counter
	cacheFailed  *metrics.Counter

	mu       sync.RWMutex
	requests map[requestKey]*metrics.Counter
}

type upstreamMetrics struct {
	dials, dialErrors *metrics.Counter
	latency           *histogram
}

func newUpstreamMetrics(set *metrics.Set, prefix string) upstreamMetrics {
	m := upstreamMetrics{
		dials:      set.NewCounter(prefix + `_dials_total{result="ok"}`),
		dialErrors: set.NewCounter(prefix + `_dials_total{result="error"}`),
		latency:    &histogram{name: prefix + "_response_seconds"},
	}
	set.RegisterMetricsWriter(m.latency.write)
	return m
}

type requestKey struct {
	method string
	code   int
}

func newProxyMetrics(p *Proxy) *proxyMetrics {
	set := metrics.NewSet()
	m := &proxyMetrics{
		set:          set,
		bytes:        set.NewCounter(prefix + "response_bytes_total"),
		aborted:      set.NewCounter(prefix + "responses_aborted_total"),
		tlsRefused:   set.NewCounter(prefix + "tls_refused_total"),
		retries:      set.NewCounter(prefix + "upstream_retries_total"),
		resumes:      set.NewCounter(prefix + `upstream_resumes_total{result="ok"}`),
		resumeErrors: set.NewCounter(prefix + `upstream_resumes_total{result="error"}`),
		pauses:       set.NewCounter(prefix + "responses_paused_total"),
		registry:     newUpstreamMetrics(set, prefix+"upstream"),
		requests:     make(map[requestKey]*metrics.Counter),
	}
	source := p.config.Source
	gauges := map[string]func() float64{
		"requests_in_flight": func() float64 { return float64(m.inFlight.Load()) },
		"requests_waiting":   func() float64 { return float64(p.waiting.Load()) },
		"requests_queued": func() float64 {
			_, queued := p.slots.counts()
			return float64(queued)
		},
		"upstream_connections_in_use": func() float64 {
			taken, _ := p.slots.counts()
			return float64(taken)
		},
		"connections":    func() float64 { return float64(p.connections.Open()) },
		"buffered_bytes": func() float64 { return float64(p.buffers.bytes.Load()) },
		"upstream_last_success_timestamp_seconds": func() float64 {
			return float64(p.upstream.lastSuccess.Load()) / float64(time.Second)
		},
	}
	maps.Copy(gauges, source.Gauges())
	for name, value := range gauges {
		set.NewGauge(prefix+name, value)
	}
	set.NewGauge(fmt.Sprintf("%sbuild_info{version=%q,goversion=%q}", prefix, p.config.Version, runtime.Version()),
		func() float64 { return 1 })
	set.RegisterMetricsWriter(func(w io.Writer) {
		metrics.WriteCounterUint64(w, prefix+"certificate_reload_errors_total", source.ReloadErrors())
		metrics.WriteCounterUint64(w, prefix+"connections_dropped_total", p.connections.Dropped())
	})
	return m
}

func (m *proxyMetrics) addCaches() {
	m.cache = newUpstreamMetrics(m.set, prefix+"cache")
	m.cacheServed = m.set.NewCounter(prefix + `cache_requests_total{result="served"}`)
	m.cacheFailed = m.set.NewCounter(prefix + `cache_requests_total{result="failed"}`)
}

// request counts a response. Methods other than GET and HEAD count as "other", because arbitrary
// client-chosen label values would exhaust memory.
func (m *proxyMetrics) request(method string, code int) {
	if method != http.MethodGet && method != http.MethodHead {
		method = "other"
	}
	key := requestKey{method, code}
	m.mu.RLock()
	counter := m.requests[key]
	m.mu.RUnlock()
	if counter == nil {
		counter = m.set.GetOrCreateCounter(fmt.Sprintf("%srequests_total{method=%q,code=\"%d\"}", prefix, method, code))
		m.mu.Lock()
		m.requests[key] = counter
		m.mu.Unlock()
	}
	counter.Inc()
}

// buckets are the upper bounds of the histogram, from a page-cache hit of a registry on the same
// node to limits.head.
var buckets = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// histogram is a Prometheus histogram. The metrics library's own uses buckets that only
// VictoriaMetrics understands.
type histogram struct {
	name   string
	counts [len(buckets) + 1]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(buckets) && d > buckets[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) write(w io.Writer) {
	var total uint64
	for i := range h.counts {
		total += h.counts[i].Load()
		bound := "+Inf"
		if i < len(buckets) {
			bound = strconv.FormatFloat(buckets[i].Seconds(), 'g', -1, 64)
		}
		fmt.Fprintf(w, "%s_bucket{le=%q} %d\n", h.name, bound, total)
	}
	fmt.Fprintf(w, "%s_sum %g\n%s_count %d\n", h.name, time.Duration(h.sum.Load()).Seconds(), h.name, total)
}
