package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/hopbyhop"
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
	c, ok := r.Context().Value(clientKey{}).(*clientConn)
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
		w.Header().Set(headerAPIVersion, "registry/2.0")
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

// errPaused: see slots.
var errPaused = errors.New("another request took its connection while the client did not read")

// stream copies the body to the client. It resumes the body when it breaks off, when another request took
// its connection, and when it is another cache's turn.
func (p *Proxy) stream(w http.ResponseWriter, request *request, resp *response) (sent int64, err error) {
	ctx := request.Context()
	client, _ := ctx.Value(clientKey{}).(*clientConn)
	whole := newInterruptedBody(resp.Response)
	var speed pace
	var skip int64 // bytes the client already has of a body that restarted from its beginning
	var fast int64 // bytes the client has taken without delay
	for {
		buffer := p.buffers.get(resp.ContentLength, fast >= fastAfter)
		began := time.Now()
		n, cause := resp.fill(*buffer)
		switchCache := false
		if cause == nil && resp.upstream == p.cache && whole.unresumable == nil {
			switchCache, cause = speed.add(n, time.Since(began), resp.upstream.limits.cacheTurn)
		}
		part := (*buffer)[:n]
		if skip > 0 {
			k := min(skip, int64(n))
			part, skip = part[k:], skip-k
		}
		complete := errors.Is(cause, io.EOF)
		switch {
		case cause == nil:
			p.slots.lend(resp)
		case complete:
			resp.release() // the client may take long to read the end
		default:
			resp.discard()
		}
		began = time.Now()
		// If the registry pauses, flush what it has sent so far out of net/http's buffer.
		written, err := send(w, part, cause == nil && n < len(*buffer))
		p.buffers.put(buffer)
		sent, fast = sent+int64(written), fast+int64(written)
		if err == nil && cause == nil {
			err = client.await(ctx)
		}
		if time.Since(began) > minLent {
			fast = 0
		}
		paused := cause == nil && !p.slots.reclaim(resp)
		switch {
		case err != nil:
			if cause == nil && !paused {
				resp.discard()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				client.Reset() // it would take as long to deliver what is queued
			}
			return sent, err
		case complete:
			return sent, nil
		case paused:
			cause = errPaused
		case switchCache:
			if resp, skip, cause = p.takeTurn(request, whole, sent, resp, skip); cause == nil {
				continue
			}
		case cause == nil:
			continue
		case resp.upstream == p.cache:
			whole.brokeAtCache()
			speed = pace{best: speed.best, failed: true}
		}
		if resp, skip, err = p.resume(request, whole, sent, cause); err != nil {
			return sent, err
		}
	}
}

// errSlow: a cache that is too slow may be overloaded, or its disk may be failing.
var errSlow = errors.New("the cache is too slow")

// pace measures how fast caches deliver a body, and when it is another one's turn. If bodies stayed where their
// connections were made, at random, some caches would be done while others are busy, and the nodes there would be the
// last.
type pace struct {
	bytes  int64
	waited time.Duration

	best   int64 // bytes of the best turn so far
	failed bool  // a cache has: the next one may be as bad
}

// add adds n bytes for which the proxy has waited. Each turn ends with true if another cache may be better, or with
// errSlow.
func (p *pace) add(n int, waited, turn time.Duration) (bool, error) {
	p.bytes, p.waited = p.bytes+int64(n), p.waited+waited
	if p.waited < turn {
		return false, nil
	}
	bytes, best := p.bytes, p.best
	p.bytes, p.waited = 0, 0
	if float64(bytes) < slowBody*turn.Seconds() {
		return false, errSlow
	}
	p.best = max(best, bytes)
	return !p.failed || best == 0 || bytes < best/2, nil
}

func send(w http.ResponseWriter, part []byte, flush bool) (written int, err error) {
	if len(part) > 0 {
		written, err = w.Write(part)
	}
	if err == nil && flush {
		err = http.NewResponseController(w).Flush()
	}
	return written, err
}
