package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// retryTransport retries requests that can be sent again as they are, and applies the idle timeout. It reads
// responses completely, so that interrupted ones are retried as well. Blobs are exempt: [upload] and [download]
// resume them.
type retryTransport struct {
	base     http.RoundTripper
	policy   *retryPolicy
	timeouts idleTimeouts
}

type transferKey struct{}

// transfer marks requests that [retryTransport] treats differently.
type transfer int

const (
	sendsBlob    transfer = iota + 1 // the body is a blob: sent once, with the sender's idle timeout
	receivesBlob                     // the response is a blob: not read here, with an idle timeout
	noRetry
)

func withTransfer(ctx context.Context, t transfer) context.Context {
	return context.WithValue(ctx, transferKey{}, t)
}

func transferOf(req *http.Request) transfer {
	t, _ := req.Context().Value(transferKey{}).(transfer)
	return t
}

func (t *retryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, ok := req.Body.(*body); ok {
		return t.base.RoundTrip(req)
	}
	transfer := transferOf(req)
	for attempt := 0; ; attempt++ {
		resp, err := t.roundTrip(req, transfer)
		if transfer == sendsBlob || transfer == noRetry {
			return resp, err
		}
		if !t.policy.retry(req.Context(), attempt, resp, err, slog.String("method", req.Method)) {
			if req.Context().Err() != nil {
				if resp != nil {
					resp.Body.Close()
				}
				return nil, req.Context().Err()
			}
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
	}
}

func (t *retryTransport) roundTrip(req *http.Request, transfer transfer) (*http.Response, error) {
	timer := t.timeouts.start(req.Context())
	if req.Method == http.MethodPut {
		timer.awaitResponse()
	}
	resp, err := t.base.RoundTrip(req.WithContext(timer.ctx))
	if err != nil {
		defer timer.stop()
		return nil, timer.cause(err)
	}
	body := &timedBody{resp.Body, timer}
	resp.Body = body
	if transfer == receivesBlob && resp.StatusCode/100 == 2 {
		timer.pause()
		return resp, nil
	}
	raw, err := io.ReadAll(io.LimitReader(body, oci.MaxManifestSize+1))
	_ = body.Close() // everything that matters was read
	switch {
	case err != nil:
		return nil, err
	case len(raw) > oci.MaxManifestSize:
		return nil, protocolErrorf("returned more than %d bytes for a manifest or list", oci.MaxManifestSize)
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	return resp, nil
}

// errIdleTimeout is why a request was aborted that transferred no data.
var errIdleTimeout = errors.New("idle timeout: no data was transferred")

// idleTimeouts abort requests that transfer no data. They work for connections without deadlines.
type idleTimeouts struct{ idle, response time.Duration }

// idleTimer is the idle timeout of one request.
type idleTimer struct {
	idleTimeouts
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// start returns a running timer. The request must use its ctx. The caller must call [idleTimer.stop].
func (t idleTimeouts) start(ctx context.Context) *idleTimer {
	ctx, cancel := context.WithCancelCause(ctx)
	return &idleTimer{t, ctx, cancel, time.AfterFunc(t.idle, func() { cancel(errIdleTimeout) })}
}

// reset restarts the timer after data was transferred.
func (t *idleTimer) reset() { t.timer.Reset(t.idle) }

// awaitResponse restarts the timer with the timeout that applies after the whole body was sent.
func (t *idleTimer) awaitResponse() { t.timer.Reset(t.response) }

// pause stops the timer until the next reset, while the client itself does not read.
func (t *idleTimer) pause() { t.timer.Stop() }

// stop ends the request and its timer.
func (t *idleTimer) stop() {
	t.timer.Stop()
	t.cancel(context.Canceled)
}

// cause returns errIdleTimeout if that is what aborted the request, and else err.
func (t *idleTimer) cause(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(t.ctx), errIdleTimeout) {
		return errIdleTimeout
	}
	return err
}

// timedBody is a response's body whose idle timer runs during reads only.
type timedBody struct {
	io.ReadCloser
	timer *idleTimer
}

func (b *timedBody) Read(p []byte) (int, error) {
	b.timer.reset()
	n, err := b.ReadCloser.Read(p)
	b.timer.pause()
	return n, b.timer.cause(err)
}

func (b *timedBody) Close() error {
	defer b.timer.stop()
	return b.ReadCloser.Close()
}
