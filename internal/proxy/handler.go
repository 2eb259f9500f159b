package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	headerAPIVersion = "Docker-Distribution-Api-Version"
	headerDigest     = "Docker-Content-Digest"

	// retryAfter is what a client is told to wait after it has waited for the whole retry timeout in vain, in seconds.
	retryAfter = "10"

	// statusClientGone stands in metrics and logs for a request whose client left before there was an answer (nginx's
	// number).
	statusClientGone = 499
)

// Codes of the OCI distribution specification, section "Error Codes", and UNAVAILABLE, which distribution adds for 503.
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

// ServeHTTP answers one request of a client. It panics with http.ErrAbortHandler to break the client's connection where
// the answer cannot be completed.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.metrics.begun.Add(1)
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
		p.log.Warn("an answer could not be completed, the client's connection is broken",
			"path", r.URL.Path, "bytes", n, "error", err)
	}
	if c, ok := r.Context().Value(clientKey{}).(*clientConn); ok && w.Header().Get("Content-Length") == "" && !r.ProtoAtLeast(1, 1) {
		c.reset()
	}
	panic(http.ErrAbortHandler)
}

// forward answers a request and returns the status and the number of bytes that went to the client. On an error the
// answer is not complete.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) (code int, n int64, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return p.refuse(w, http.StatusMethodNotAllowed, codeUnsupported,
			"this address is for pulling only: push with \"init-hook images push\""), 0, nil
	}
	// Such a request has no meaning in a registry. Refused, no body of it can ever be taken for another request.
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close")
		return p.refuse(w, http.StatusBadRequest, codeUnsupported, "a "+r.Method+" request must not have a body"), 0, nil
	}
	if !safeHost(r.Host) {
		w.Header().Set("Connection", "close")
		return p.refuse(w, http.StatusBadRequest, codeUnsupported, "the URL's host has bytes that no host has"), 0, nil
	}
	request := newRequest(r)
	a, err := p.fetch(request, p.newPatience(), judgeFirst)
	if err != nil && r.Context().Err() != nil {
		return statusClientGone, 0, r.Context().Err()
	}
	if err != nil {
		p.log.Warn("the registry does not answer, giving up", "error", err)
		w.Header().Set("Retry-After", retryAfter)
		return p.refuse(w, http.StatusServiceUnavailable, codeUnavailable,
			fmt.Sprintf("the registry %s does not answer: %v", p.upstream.address, err)), 0, nil
	}
	copyHeader(w.Header(), a.Header)
	w.WriteHeader(a.StatusCode)
	if a.Body == http.NoBody {
		a.finish()
		return a.StatusCode, 0, nil
	}
	n, err = p.stream(w, request, a)
	return a.StatusCode, n, err
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		if !dropFromAnswer[name] && !namedBy(from, name) {
			to[name] = values
		}
	}
	// A nil value keeps net/http from adding one of its own.
	for _, name := range [...]string{"Content-Type", "Date"} {
		if _, ok := to[name]; !ok {
			to[name] = nil
		}
	}
}

// fromRegistry says whether an answer comes from a registry, and not from something between that had none to ask.
func fromRegistry(r *http.Response) bool {
	return r.Header.Get(headerAPIVersion) != "" || strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
}

// refuse answers for the proxy itself, in the form of the OCI distribution specification.
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

// stream copies the body to the client and continues it where it breaks off.
func (p *Proxy) stream(w http.ResponseWriter, request *request, a *answer) (sent int64, err error) {
	pool := largeBuffers
	if a.ContentLength >= 0 && a.ContentLength <= smallBufferSize {
		pool = smallBuffers
	}
	buffer := pool.Get().(*[]byte)
	defer pool.Put(buffer)
	whole := &interrupted{first: a.Response}
	var skip int64 // what the client has already of a body that had to be begun anew
	for {
		n, err := a.fill(*buffer)
		part := (*buffer)[:n]
		if skip > 0 {
			k := min(skip, int64(n))
			part, skip = part[k:], skip-k
		}
		if len(part) > 0 {
			written, err := w.Write(part)
			sent += int64(written)
			if err != nil {
				a.abandon()
				return sent, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			a.finish()
			return sent, nil
		case err == nil:
			if n < len(*buffer) {
				// The registry pauses: what it has sent so far must not wait in net/http's buffer.
				if err := http.NewResponseController(w).Flush(); err != nil {
					a.abandon()
					return sent, err
				}
			}
		default:
			a.abandon()
			if a, skip, err = p.resume(request, whole, sent, err); err != nil {
				return sent, err
			}
		}
	}
}
