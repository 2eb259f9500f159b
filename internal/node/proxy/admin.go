package proxy

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
)

// admin returns the handler of the metrics port:
//
//	/healthz   200 while the process serves
//	/readyz    200 while the proxy listens and does not drain, 503 otherwise; ?verbose adds the registry's state
//	/metrics   Prometheus metrics
//	/loaded    the program and the mounted certificates in use, see internal/api/loaded
//
// An unavailable registry does not make the proxy unready: no other proxy could serve the node, and
// requests wait. Unlike ServeHTTP, it accepts any Host: probes and Prometheus use the pod's address,
// and nothing here is secret.
func (p *Proxy) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", p.readyz)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		p.metrics.set.WritePrometheus(w)
		metrics.WriteProcessMetrics(w)
	})
	mux.Handle("GET "+loaded.Path, loaded.Handler(func() loaded.State {
		return loaded.State{Program: p.config.Program, Certificates: p.config.Source.Loaded()}
	}))
	return mux
}

func (p *Proxy) readyz(w http.ResponseWriter, r *http.Request) {
	state, code := "ok", http.StatusOK
	switch {
	case p.draining.Load():
		state, code = "draining", http.StatusServiceUnavailable
	case !p.listening.Load():
		state, code = "not listening yet", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, state)
	if !r.URL.Query().Has("verbose") {
		return
	}
	m := p.config.Source.Current()
	fmt.Fprintf(w, "certificate: generation %d, expires %s, %d failed reloads\n",
		m.Generation, m.Leaf.NotAfter.UTC().Format(time.RFC3339), p.config.Source.ReloadErrors())
	fmt.Fprintf(w, "requests: %d in flight, %d waiting for the registry\n", p.metrics.inFlight.Load(), p.waiting.Load())
	p.upstream.describe(w)
	if p.cache != nil {
		p.cache.describe(w)
	}
}

// describe writes the address, and the outcome of the last requests.
func (u *upstream) describe(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", u.name, u.address)
	success, failure := "never", "none"
	if nanoseconds := u.lastSuccess.Load(); nanoseconds != 0 {
		success = time.Unix(0, nanoseconds).UTC().Format(time.RFC3339)
	}
	if f := u.lastFailure.Load(); f != nil {
		failure = f.time.UTC().Format(time.RFC3339) + " " + f.err.Error()
	}
	fmt.Fprintf(w, "last response: %s\nlast error: %s\n", success, failure)
}
