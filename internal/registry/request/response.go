package request

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

// bufferedResponse holds back a response, which must be small.
type bufferedResponse struct {
	Status int // 0 if the handler sets none
	header http.Header
	body   []byte
}

// Buffer returns a buffered response with the header of w.
func Buffer(w http.ResponseWriter) *bufferedResponse { return &bufferedResponse{header: w.Header()} }

// Detach returns a buffered response with a header of its own.
func Detach() *bufferedResponse { return &bufferedResponse{header: http.Header{}} }

// Header implements [http.ResponseWriter].
func (r *bufferedResponse) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *bufferedResponse) WriteHeader(status int) {
	if r.Status == 0 {
		r.Status = status
	}
}

// Write implements [io.Writer].
func (r *bufferedResponse) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, p...)
	return len(p), nil
}

// Send responds to a client, which may have disconnected, with what was held back.
func (r *bufferedResponse) Send(w http.ResponseWriter) {
	for name, values := range r.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(cmp.Or(r.Status, http.StatusOK))
	_, _ = w.Write(r.body)
}

// ClearHeader removes what was set for another response, but not that the connection ends with this one.
func ClearHeader(header http.Header) {
	connection := header["Connection"]
	clear(header)
	if connection != nil {
		header["Connection"] = connection
	}
}

// WriteErrorAs responds with err as an OCI error and another status than its code's.
func WriteErrorAs(w http.ResponseWriter, status int, err error) {
	WriteError(withStatus{w, status}, err)
}

// withStatus responds with another status than the one that belongs to an error code.
type withStatus struct {
	http.ResponseWriter
	status int
}

func (w withStatus) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }

// Denied returns the error of a request that the client may not make.
func Denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}

// Unavailable returns an error after which the client may retry.
func Unavailable(format string, args ...any) error {
	return errcode.ErrorCodeUnavailable.WithMessage(fmt.Sprintf(format, args...))
}

// ErrCanceled is the response to a client that has disconnected.
var ErrCanceled = errcode.ErrorCodeUnavailable.WithMessage("the request was canceled")

// Methods passes requests with these methods on to next, and refuses others. What names what is served, in the plural.
func Methods(what string, next http.HandlerFunc, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(methods, r.Method) {
			next(w, r)
		} else {
			WriteError(w, NotAllowed(w, what, methods...))
		}
	})
}

// NotAllowed returns the error of a request with another method.
func NotAllowed(w http.ResponseWriter, what string, methods ...string) error {
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return errcode.ErrorCodeUnsupported.WithMessage(what + " require " + strings.Join(methods, " or "))
}

// WriteError responds with err as an OCI error.
func WriteError(w http.ResponseWriter, err error) {
	var coded errcode.Error
	switch {
	case errors.As(err, &coded):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		coded = ErrCanceled
	default:
		coded = errcode.ErrorCodeUnknown.WithMessage(err.Error())
	}
	switch coded.Code {
	case errcode.ErrorCodeSizeInvalid:
		w = withStatus{w, http.StatusRequestEntityTooLarge}
	case errcode.ErrorCodeTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case errcode.ErrorCodeUnavailable:
		w.Header().Set("Retry-After", "10")
	}
	_ = errcode.ServeJSON(w, coded) // the client may have disconnected
}

// keepAlivePeriod is how often a silent response sends something: load balancers close idle connections.
const keepAlivePeriod = 5 * time.Second

// Stream responds with the events that run sends, one line of JSON for each; bytes are lines already. While there are
// none, it sends what keepAlive returns, or an empty line without keepAlive. The context of run ends when the client
// disconnects or, with keepAlive, the registry shuts down.
func Stream(
	ctx context.Context, draining *atomic.Bool, w http.ResponseWriter, keepAlive func() any,
	run func(ctx context.Context, send func(any)),
) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	events := make(chan any)
	go func() {
		defer close(events)
		run(ctx, func(event any) { events <- event })
	}()

	encoder, control := json.NewEncoder(w), http.NewResponseController(w)
	ticker := time.NewTicker(keepAlivePeriod)
	defer ticker.Stop()
	for {
		var err error
		select {
		case event, ok := <-events:
			if !ok {
				return
			}
			if lines, ok := event.([]byte); ok {
				_, err = w.Write(lines)
			} else {
				err = errors.Join(encoder.Encode(event), control.Flush())
			}
		case <-ticker.C:
			if draining.Load() && keepAlive != nil { // otherwise the end is near
				cancel(errors.New("the registry is shutting down"))
			}
			if keepAlive != nil {
				err = encoder.Encode(keepAlive())
			} else {
				_, err = io.WriteString(w, "\n")
			}
			err = errors.Join(err, control.Flush())
		}
		if err != nil {
			cancel(fmt.Errorf("the client disconnected: %w", err))
		}
	}
}
