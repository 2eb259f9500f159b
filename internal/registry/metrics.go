package registry

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// metrics are this server's, apart from those of the process (Go runtime,
// distribution's storage and cache), which client_golang keeps globally.
type metrics struct {
	own      *prometheus.Registry
	requests *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	received *prometheus.CounterVec
	sent     *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		own: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zarf_registry_http_requests_total",
			Help: "Requests answered, by listener, method and status code.",
		}, []string{"listener", "method", "code"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "zarf_registry_http_requests_in_flight",
			Help: "Requests being served.",
		}, []string{"listener"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "zarf_registry_http_request_duration_seconds",
			Help: "Time from a request's header to the end of its response.",
			// From the answer to a HEAD to the transfer of a large layer.
			Buckets: []float64{.001, .01, .1, 1, 10, 100},
		}, []string{"listener", "method"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zarf_registry_http_received_bytes_total",
			Help: "Bytes of request bodies read.",
		}, []string{"listener"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "zarf_registry_http_sent_bytes_total",
			Help: "Bytes of response bodies written.",
		}, []string{"listener"}),
	}
	m.own.MustRegister(m.requests, m.inFlight, m.duration, m.received, m.sent)
	m.gauge("zarf_registry_build_info", "Always 1; the label names the release.",
		prometheus.Labels{"version": version.Version}, func() float64 { return 1 })
	return m
}

func (m *metrics) gauge(name, help string, labels prometheus.Labels, value func() float64) {
	m.own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
}

func (m *metrics) counter(name, help string, labels prometheus.Labels, value func() float64) {
	m.own.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value))
}

func (m *metrics) watchCertificates(source *tlsfiles.Source) {
	m.gauge("zarf_registry_tls_certificate_expiry_timestamp_seconds", "When the server certificate in use expires, in Unix time.", nil,
		func() float64 { return float64(source.Current().Leaf.NotAfter.Unix()) })
	m.gauge("zarf_registry_tls_certificate_lifetime_seconds", "How long the server certificate in use is valid in all: an alert asks for the part that is left.", nil,
		func() float64 { return source.Current().Lifetime().Seconds() })
	m.gauge("zarf_registry_tls_authority_expiry_timestamp_seconds", "When the first of the client CAs in use expires, in Unix time.", nil,
		func() float64 { return float64(source.Current().CAExpiry().Unix()) })
	m.gauge("zarf_registry_tls_generation", "How many certificate directories have been loaded, the first included.", nil,
		func() float64 { return float64(source.Current().Generation) })
	m.counter("zarf_registry_tls_reload_errors_total", "Loads of the certificate directory that failed; the generation before stays in use.", nil,
		func() float64 { return float64(source.ReloadErrors()) })
}

func (m *metrics) watchExposed(source *tlsfiles.Source) {
	m.gauge("zarf_registry_exposed_tls_certificate_expiry_timestamp_seconds", "When the certificate in use at --expose-listen expires, in Unix time.", nil,
		func() float64 { return float64(source.Current().Leaf.NotAfter.Unix()) })
	m.gauge("zarf_registry_exposed_tls_certificate_lifetime_seconds", "How long that certificate is valid in all.", nil,
		func() float64 { return source.Current().Lifetime().Seconds() })
	m.counter("zarf_registry_exposed_tls_reload_errors_total", "Loads of the directory of --expose-tls-dir that failed; the certificate before stays in use.", nil,
		func() float64 { return float64(source.ReloadErrors()) })
}

func (m *metrics) watchCredentials(c *credentials) {
	for result := range c.checks {
		m.counter("zarf_registry_credential_checks_total", "Checks of a user name and a password, by result.",
			prometheus.Labels{"result": checkResult(result).String()},
			func() float64 { return float64(c.checks[result].Load()) })
	}
	m.counter("zarf_registry_credential_reload_errors_total", "Loads of the htpasswd files that failed; the users before stay in force.", nil,
		func() float64 { return float64(c.reloadErrors.Load()) })
}

func (m *metrics) watchPlain(p *plainListener) {
	m.gauge("zarf_registry_plain_listener_open", "1 while the plain listener, which follows the file of --pull-htpasswd, is open, else 0.", nil, func() float64 {
		if p.address() == nil {
			return 0
		}
		return 1
	})
}

func (m *metrics) watchStorage(h *storageHealth) {
	m.gauge("zarf_registry_storage_healthy", "1 while the storage answers, else 0.", nil, func() float64 {
		if h.err(time.Now()) != nil {
			return 0
		}
		return 1
	})
	if h.root == "" {
		return
	}
	size := func(of func(volume) uint64) func() float64 {
		return func() float64 {
			if v := h.volume.Load(); v != nil {
				return float64(of(*v))
			}
			return 0
		}
	}
	m.gauge("zarf_registry_storage_size_bytes", "Size of the filesystem that the registry is on.", nil, size(func(v volume) uint64 { return v.size }))
	m.gauge("zarf_registry_storage_free_bytes", "Bytes of that filesystem that the registry may still fill.", nil, size(func(v volume) uint64 { return v.free }))
}

func (m *metrics) watchCollections(s *Server) {
	m.gauge("zarf_registry_read_only", "1 while no image can be pushed, because garbage is being collected or the configuration says so, else 0.", nil, func() float64 {
		if s.gate.held(s.gate.seen.Load()) || readOnly(s.options.Config.Storage) {
			return 1
		}
		return 0
	})
	last := func(of func(holdRecord) int64) func() float64 {
		return func() float64 { return float64(of(s.gate.seen.Load().record)) }
	}
	m.gauge("zarf_registry_gc_last_success_timestamp_seconds", "When garbage was last collected with success, by whichever replica, in Unix time; 0 if never.", nil,
		last(func(r holdRecord) int64 { return r.Succeeded }))
	m.gauge("zarf_registry_gc_last_failed", "1 if the last collection of garbage failed, by whichever replica, else 0.", nil,
		last(func(r holdRecord) int64 {
			if r.Failure != "" {
				return 1
			}
			return 0
		}))
	m.gauge("zarf_registry_gc_last_freed_bytes", "Bytes that the last collection of garbage removed, by whichever replica.", nil,
		last(func(r holdRecord) int64 { return r.Result.Bytes }))
	m.gauge("zarf_registry_gc_last_removed_blobs", "Blobs that the last collection of garbage removed, by whichever replica, manifests included.", nil,
		last(func(r holdRecord) int64 { return int64(r.Result.Blobs) }))
}

// observe counts one request that is over.
func (m *metrics) observe(listener, method string, code int, received, sent int64, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete:
	default:
		method = "other" // clients may invent methods without end
	}
	m.requests.WithLabelValues(listener, method, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(listener, method).Observe(took.Seconds())
	m.received.WithLabelValues(listener).Add(float64(received))
	m.sent.WithLabelValues(listener).Add(float64(sent))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{prometheus.DefaultGatherer, m.own}, promhttp.HandlerOpts{})
}
