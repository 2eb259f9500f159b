package registry

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/inspect"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// metrics are this server's. Those of Go, and of distribution's storage, are in client_golang's global registry.
type metrics struct {
	own      *prometheus.Registry
	requests *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	received *prometheus.CounterVec
	sent     *prometheus.CounterVec
}

func newMetrics(version string) *metrics {
	own := prometheus.NewRegistry()
	auto := promauto.With(own)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		own: own,
		requests: counter("zarf_registry_http_requests_total",
			"Completed requests, by listener, method and status code.", "listener", "method", "code"),
		inFlight: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "zarf_registry_http_requests_in_flight", Help: "Requests being served.",
		}, []string{"listener"}),
		duration: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "zarf_registry_http_request_duration_seconds",
			Help: "Time from a request's header to the end of its response.",
			// From a HEAD request to the transfer of a large layer.
			Buckets: []float64{.001, .01, .1, 1, 10, 100},
		}, []string{"listener", "method"}),
		received: counter("zarf_registry_http_received_bytes_total", "Bytes of request bodies read.", "listener"),
		sent:     counter("zarf_registry_http_sent_bytes_total", "Bytes of response bodies written.", "listener"),
	}
	m.gauge("zarf_registry_build_info", "Always 1; the label is the version of the program.",
		prometheus.Labels{"version": version}, func() float64 { return 1 })
	return m
}

func (m *metrics) gauge(name, help string, labels prometheus.Labels, value func() float64) {
	promauto.With(m.own).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

func (m *metrics) counter(name, help string, labels prometheus.Labels, value func() float64) {
	promauto.With(m.own).NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

func (m *metrics) watchConnections(listener string, l *connlimit.Limiter) {
	labels := prometheus.Labels{"listener": listener}
	m.gauge("zarf_registry_http_connections", "Open connections.", labels, func() float64 { return float64(l.Open()) })
	m.counter("zarf_registry_http_connections_dropped_total",
		"Connections that were closed because of the limit, mostly of clients that sent no request or did not read.", labels,
		func() float64 { return float64(l.Dropped()) })
}

// watchCertificate watches the certificate of a listener, which cert-manager may not have issued yet.
func (m *metrics) watchCertificate(prefix, listener string, source *tlsfiles.Source) {
	current := func(value func(*tlsfiles.Material) float64) func() float64 {
		return func() float64 {
			if current := source.Current(); current != nil {
				return value(current)
			}
			return math.NaN()
		}
	}
	m.gauge(prefix+"_certificate_expiry_timestamp_seconds",
		"Unix time at which the certificate in use at "+listener+" expires.", nil,
		current(func(m *tlsfiles.Material) float64 { return float64(m.Leaf.NotAfter.Unix()) }))
	m.gauge(prefix+"_certificate_lifetime_seconds",
		"Total lifetime of the certificate in use at "+listener+", for alerts on the remaining fraction.", nil,
		current(func(m *tlsfiles.Material) float64 { return m.Lifetime().Seconds() }))
	m.counter(prefix+"_reload_errors_total",
		"Failed loads of the directory with the certificate of "+listener+"; the previous one stays in use.", nil,
		func() float64 { return float64(source.ReloadErrors()) })
}

func (m *metrics) watchClientCAs(source *tlsfiles.Source) {
	m.gauge("zarf_registry_tls_ca_expiry_timestamp_seconds",
		"Unix time at which the first of the client CAs in use expires.", nil,
		func() float64 { return float64(source.Current().CAExpiry().Unix()) })
	m.gauge("zarf_registry_tls_generation",
		"Number of successful loads of the certificate directory, including the first.", nil,
		func() float64 { return float64(source.Current().Generation) })
}

func (m *metrics) watchCredentials(c *users.Users) {
	for result := range c.Checks {
		m.counter("zarf_registry_credential_checks_total", "Checks of a user name and a password, by result.",
			prometheus.Labels{"result": users.CheckResult(result).String()},
			func() float64 { return float64(c.Checks[result].Load()) })
	}
	m.counter("zarf_registry_credential_reload_errors_total",
		"Failed loads of the htpasswd files; the previous users stay in force.", nil,
		func() float64 { return float64(c.ReloadErrors.Load()) })
}

func (m *metrics) watchPlain(p *plainListener) {
	m.gauge("zarf_registry_plain_listener_open",
		"1 while the plain listener, which follows the file of --pull-htpasswd, is open, else 0.", nil,
		func() float64 { return boolean(p.address() != nil) })
}

func (m *metrics) watchStorage(h *storage.Health) {
	m.gauge("zarf_registry_storage_healthy", "1 while the storage responds, else 0.", nil,
		func() float64 { return boolean(h.Err(time.Now()) == nil) })
}

// watchSpace exposes the space of a volume that has been measured. S3 has no such limit.
func (m *metrics) watchSpace(s *volume.Space) {
	if s.Usage().Limit == 0 {
		return
	}
	m.gauge("zarf_registry_storage_used_bytes", "Bytes used of the volume, by whatever.", nil,
		func() float64 { return float64(s.Usage().Used) })
	m.gauge("zarf_registry_storage_limit_bytes",
		"Size of the volume, without what is reserved for root. Pushes are refused from 95 percent.", nil,
		func() float64 { return float64(s.Usage().Limit) })
}

func (m *metrics) watchCollections(c *collect.Collector) {
	m.gauge("zarf_registry_gc_running", "1 while any replica collects garbage, else 0.", nil,
		func() float64 { return boolean(c.Status().Held) })
	m.gauge("zarf_registry_gc_last_success_timestamp_seconds",
		"Unix time of the last successful garbage collection by any replica; 0 if there was none.", nil,
		func() float64 { return float64(c.Status().Succeeded) })
	m.gauge("zarf_registry_gc_last_failed", "1 if the last garbage collection by any replica failed, else 0.", nil,
		func() float64 { return boolean(c.Status().Failure != "") })
	m.gauge("zarf_registry_gc_last_freed_bytes", "Bytes removed by the last garbage collection by any replica.", nil,
		func() float64 { return float64(c.Status().Result.Bytes) })
	m.gauge("zarf_registry_gc_last_removed_blobs",
		"Blobs, including manifests, removed by the last garbage collection by any replica.", nil,
		func() float64 { return float64(c.Status().Result.Blobs) })
}

func (m *metrics) watchScrub(s *inspect.Scrubber) {
	last := func(none float64, value func(*loaded.Scrub) float64) func() float64 {
		return func() float64 {
			if status := s.Status(); status != nil {
				return value(status)
			}
			return none
		}
	}
	m.gauge("zarf_registry_scrub_problems",
		"Stored content that the last zarf-registry images scrub found missing or damaged, and that was not pushed again "+
			"since; -1 if there was none.", nil,
		last(-1, func(s *loaded.Scrub) float64 { return float64(s.Problems) }))
	m.gauge("zarf_registry_scrub_last_success_timestamp_seconds",
		"Unix time at which the last zarf-registry images scrub ended; 0 if there was none.", nil,
		last(0, func(s *loaded.Scrub) float64 { return float64(s.FinishedAt.Unix()) }))
}

func boolean(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

// Begin counts a request that is being served.
func (m *metrics) Begin(listener string) { m.inFlight.WithLabelValues(listener).Inc() }

// End records a completed request.
func (m *metrics) End(listener, method string, code int, received, sent int64, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete:
	default:
		method = "other" // limits the number of label values
	}
	m.inFlight.WithLabelValues(listener).Dec()
	m.requests.WithLabelValues(listener, method, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(listener, method).Observe(took.Seconds())
	m.received.WithLabelValues(listener).Add(float64(received))
	m.sent.WithLabelValues(listener).Add(float64(sent))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{prometheus.DefaultGatherer, m.own}, promhttp.HandlerOpts{})
}
