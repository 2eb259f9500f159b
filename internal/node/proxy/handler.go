package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/hopbyhop"
	"github.com/zarf-dev/zarf-registry/internal/net/protocolmux"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

const (
	// retryAfter is the Retry-After value, in seconds, that a client gets once the retry budget is
	// spent.
	retryAfter = "10"

	// statusClientGone is the code in metrics and logs for a request whose client disconnected before
	// the response (nginx uses the same number).
	statusClientGone = 499
)

// Codes of the OCI distribution specification, section "Error Codes", and UNAVAILABLE, which
// distribution adds for 503.
const (
	codeDenied      = "DENIED"
	codeUnsupported = "UNSUPPORTED"
	codeUnavailable = "UNAVAILABLE"
)

type clientKey struct{}

// ServeHTTP handles one client request. If the response cannot be completed, it panics with
// http.ErrAbortHandler to break the client's connection.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.metrics.started.Add(1)
	p.metrics.inFlight.Add(1)
	defer p.metrics.inFlight.Add(-1)
	began := time.Now()
	code, n, err := p.forward(w, r)
	p.metrics.request(r.Method, code)
	p.metrics.bytes.AddInt64(n)
	if p.config.Logger.Enabled(r.Context(), slog.LevelDebug) {
		p.config.Logger.Debug("request", "method", r.Method, "path", r.URL.Path, "range", r.Header.Get("Range"),
			"code", code, "bytes", n, "duration", time.Since(began), "error", err)
	}
	if err == nil {
		return
	}
	if r.Context().Err() == nil {
		p.metrics.aborted.Inc()
		p.log.Warn("cannot complete the response, breaking the client's connection",
			"path", r.URL.Path, "bytes", n, "error", err)
	}
	c, ok := r.Context().Value(clientKey{}).(*protocolmux.Conn)
	if ok && w.Header().Get("Content-Length") == "" && !r.ProtoAtLeast(1, 1) {
		c.Reset()
	}
	panic(http.ErrAbortHandler)
}

// forward handles a request and returns the status and the number of body bytes sent to the client.
// If it returns an error, the response is incomplete.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) (code int, n int64, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return p.refuse(w, http.StatusMethodNotAllowed, codeUnsupported,
			"this endpoint is read-only: push with \"zarf-registry images push\""), 0, nil
	}
	// A GET or HEAD body has no meaning in a registry. Refusing it also rules out request smuggling.
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close")
		return p.refuse(w, http.StatusBadRequest, codeUnsupported, r.Method+" requests must not have a body"), 0, nil
	}
	// Otherwise any web page in a browser on this node could read images: with requests to this
	// address, or to a name of its own that resolves to it.
	if r.Host != "" && !isLoopback(r.Host) {
		return p.refuse(w, http.StatusForbidden, codeDenied, fmt.Sprintf(
			"this endpoint serves the container runtime of its node: host %q is not a loopback address, use 127.0.0.1 or [::1]",
			r.Host)), 0, nil
	}
	if fromOtherSite(r.Header) {
		return p.refuse(w, http.StatusForbidden, codeDenied,
			"this endpoint serves the container runtime of its node, not web pages of other sites"), 0, nil
	}
	request, budget, status := newRequest(r), p.newRetryBudget(), http.StatusServiceUnavailable
	switch {
	case budget.timeout <= 0:
	case repeatsWhenAsked(r):
		budget.timeout = min(budget.timeout/repeats, p.limits.waitTimeout)
		request.answerBy, status = budget.began.Add(p.limits.waitTimeout), http.StatusTooManyRequests
	case isDockerPing(r):
		budget.timeout = min(budget.timeout, p.limits.ping)
		request.answerBy, status = budget.began.Add(p.limits.ping), http.StatusOK
	}
	resp, err := p.fetch(request, budget, judgeFirst)
	if err != nil && r.Context().Err() != nil {
		return statusClientGone, 0, r.Context().Err()
	}
	if err != nil && status == http.StatusOK {
		w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
		w.WriteHeader(status)
		return status, 0, nil
	}
	if err != nil {
		p.log.Warn("registry unavailable, giving up", "error", err)
		if errors.Is(err, errTooManyWaiting) {
			status = http.StatusServiceUnavailable // do not repeat it at once
		}
		pause := retryAfter
		if status == http.StatusTooManyRequests {
			pause = "1" // the repeated request waits for the registry
		}
		w.Header().Set("Retry-After", pause)
		return p.refuse(w, status, codeUnavailable,
			fmt.Sprintf("the registry %s is unavailable: %v", p.upstream.address, err)), 0, nil
	}
	copyHeader(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	if resp.Body == http.NoBody {
		resp.release()
		return resp.StatusCode, 0, nil
	}
	n, err = p.stream(w, request, resp)
	return resp.StatusCode, n, err
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		if !hopbyhop.Is(from, name) {
			to[name] = values
		}
	}
	// A nil value keeps net/http from adding its own.
	for _, name := range [...]string{"Content-Type", "Date"} {
		if _, ok := to[name]; !ok {
			to[name] = nil
		}
	}
}

// refuse sends an error in the format of the OCI distribution specification.
func (p *Proxy) refuse(w http.ResponseWriter, status int, code, message string) int {
	type ociError struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, _ := json.Marshal(struct {
		Errors []ociError `json:"errors"`
	}{[]ociError{{code, message}}})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	return status
}
