package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"
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
	codeUnsupported = "UNSUPPORTED"
	codeUnavailable = "UNAVAILABLE"
)

type clientKey struct{}

var (
	largeBuffers = newBuffers(bufferSize)
	smallBuffers = newBuffers(smallBufferSize)
)

func newBuffers(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		buffer := make([]byte, size)
		return &buffer
	}}
}

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
		c.reset()
	}
	panic(http.ErrAbortHandler)
}

// forward handles a request and returns the status and the number of body bytes sent to the client.
// If it returns an error, the response is incomplete.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) (code int, n int64, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return p.refuse(w, http.StatusMethodNotAllowed, codeUnsupported,
			"this endpoint is read-only: push with \"init-hook images push\""), 0, nil
	}
	// A GET or HEAD body has no meaning in a registry. Refusing it also rules out request smuggling.
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close")
		return p.refuse(w, http.StatusBadRequest, codeUnsupported, r.Method+" requests must not have a body"), 0, nil
	}
	if !safeHost(r.Host) {
		w.Header().Set("Connection", "close")
		return p.refuse(w, http.StatusBadRequest, codeUnsupported, "the host contains invalid characters"), 0, nil
	}
	request := newRequest(r)
	resp, err := p.fetch(request, p.newRetryBudget(), judgeFirst)
	if err != nil && r.Context().Err() != nil {
		return statusClientGone, 0, r.Context().Err()
	}
	if err != nil {
		p.log.Warn("registry unavailable, giving up", "error", err)
		w.Header().Set("Retry-After", retryAfter)
		return p.refuse(w, http.StatusServiceUnavailable, codeUnavailable,
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
		if !dropFromResponse[name] && !namedBy(from, name) {
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

// stream copies the body to the client and resumes it when it breaks off.
func (p *Proxy) stream(w http.ResponseWriter, request *request, resp *response) (sent int64, err error) {
	pool := largeBuffers
	if resp.ContentLength >= 0 && resp.ContentLength <= smallBufferSize {
		pool = smallBuffers
	}
	buffer := pool.Get().(*[]byte)
	defer pool.Put(buffer)
	whole := &interruptedBody{first: resp.Response}
	var skip int64 // bytes the client already has of a body that restarted from its beginning
	for {
		n, err := resp.fill(*buffer)
		part := (*buffer)[:n]
		if skip > 0 {
			k := min(skip, int64(n))
			part, skip = part[k:], skip-k
		}
		if len(part) > 0 {
			written, err := w.Write(part)
			sent += int64(written)
			if err != nil {
				resp.discard()
				return sent, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			resp.release()
			return sent, nil
		case err == nil:
			if n < len(*buffer) {
				// The registry pauses. Flush what it has sent so far out of net/http's buffer.
				if err := http.NewResponseController(w).Flush(); err != nil {
					resp.discard()
					return sent, err
				}
			}
		default:
			resp.discard()
			if resp, skip, err = p.resume(request, whole, sent, err); err != nil {
				return sent, err
			}
		}
	}
}
