package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 8 * time.Second

	// maxRetryAfter bounds how long a registry may ask to wait: a limit per
	// minute, the usual one, has passed by then.
	maxRetryAfter = 2 * time.Minute
)

// policy decides what is tried again and when. It is the one policy for requests
// that are repeated ([repeater]) and for blobs that are continued ([upload],
// [download]).
type policy struct {
	retries int
	log     *slog.Logger
	host    string
	sleep   func(context.Context, time.Duration) error
}

// again waits before what failed with resp or err, and was tried again attempt
// times, is tried again. False is that it is not to be.
func (p *policy) again(ctx context.Context, attempt int, resp *http.Response, err error, attrs ...any) bool {
	return transient(resp, err) && p.wait(ctx, attempt, resp, err, attrs...)
}

// wait is again for what is known to be worth it.
func (p *policy) wait(ctx context.Context, attempt int, resp *http.Response, err error, attrs ...any) bool {
	// A request of which the context has ended fails with whatever ended it.
	if attempt >= p.retries || ctx.Err() != nil {
		return false
	}
	pause := min(firstPause<<min(attempt, 10), maxPause)
	// Half of it by chance, so that transfers that failed together do not come back
	// together.
	pause = pause/2 + rand.N(pause/2+1)
	pause = max(pause, retryAfter(resp, time.Now()))
	var refused *refusal
	if errors.As(err, &refused) {
		pause = max(pause, refused.retryAfter)
	}
	if p.log != nil {
		reason := slog.String("status", "")
		if err != nil {
			reason = slog.String("error", scrub(withoutURL(err).Error()))
		} else {
			reason.Value = slog.StringValue(resp.Status)
		}
		attrs = append([]any{slog.String("registry", p.host), reason}, attrs...)
		p.log.Warn("registry did not take or give something, trying again",
			append(attrs, slog.Int("attempt", attempt+1), slog.Duration("pause", pause))...)
	}
	return p.sleep(ctx, pause) == nil
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// retryAfter is how long the registry asks to wait: a number of seconds, or a date
// (RFC 9110, section 10.2.3).
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	if resp == nil {
		return 0
	}
	value := resp.Header.Get("Retry-After")
	wait := time.Duration(0)
	if seconds, err := strconv.Atoi(value); err == nil {
		wait = time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	} else if date, err := http.ParseTime(value); err == nil {
		wait = date.Sub(now)
	}
	return max(0, min(wait, maxRetryAfter))
}

// transient tells whether a failure may pass by itself. Errors of connections
// may, whatever a dialer calls them, unless they are known not to.
func transient(resp *http.Response, err error) bool {
	var (
		refused   *refusal
		fromOras  *errcode.ErrorResponse
		dns       *net.DNSError
		content   *blob.Error
		answer    *answerError
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		alert     tls.AlertError
		notTLS    tls.RecordHeaderError
	)
	switch {
	case err == nil:
		return transientStatus(resp.StatusCode)
	case errors.As(err, &refused):
		return transientStatus(refused.StatusCode)
	case errors.As(err, &fromOras):
		return transientStatus(fromOras.StatusCode)
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case errors.Is(err, http.ErrSchemeMismatch),
		errors.As(err, &content), errors.As(err, &answer), errors.As(err, &untrusted), errors.As(err, &unknown),
		errors.As(err, &alert), errors.As(err, &notTLS):
		return false
	}
	return true
}

// statusClientClosed is nginx's and distribution's for a request that ended early:
// somebody between cut it short.
const statusClientClosed = 499

func transientStatus(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code == statusClientClosed ||
		code >= 500 && code != http.StatusNotImplemented
}

// errStalled is why a request was broken off of which nothing moved.
var errStalled = errors.New("nothing moved any more")

// watcher breaks off requests of which nothing moves.
type watcher struct{ stall, answer time.Duration }

// watch is one request that is watched.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	watcher
}

// start begins to watch: ctx of the result, which the request is to have, ends
// with errStalled when nothing has moved for so long. It works for connections
// without deadlines, since those are closed. [watch.stop] must be called.
func (w watcher) start(ctx context.Context) *watch {
	ctx, cancel := context.WithCancelCause(ctx)
	return &watch{ctx: ctx, cancel: cancel, watcher: w, timer: time.AfterFunc(w.stall, func() { cancel(errStalled) })}
}

// moved notes that something has moved.
func (w *watch) moved() { w.timer.Reset(w.stall) }

// sent notes that all was sent; the registry may think now.
func (w *watch) sent() { w.timer.Reset(w.answer) }

// rest waits for nothing until something moves again.
func (w *watch) rest() { w.timer.Stop() }

// stop ends the request, and the watch.
func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// why is err, or that the request stalled, which is what err came from.
func (w *watch) why(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}

// repeater repeats requests that can be sent again as they are. A blob that is sent
// or received is continued by others ([upload], [download]). What else is
// received is read whole here, so that an answer that breaks off is repeated, too.
type repeater struct {
	base    http.RoundTripper
	policy  *policy
	watcher watcher
}

type streamKey struct{}

type stream int

const (
	up   stream = iota + 1 // the request's body is a blob: it is sent once, and watched by who sends it
	down                   // the answer's body is a blob: it is watched, and not read here
	once                   // nothing is repeated
)

// streaming marks requests.
func streaming(ctx context.Context, direction stream) context.Context {
	return context.WithValue(ctx, streamKey{}, direction)
}

// RoundTrip implements [http.RoundTripper].
func (r *repeater) RoundTrip(req *http.Request) (*http.Response, error) {
	direction, _ := req.Context().Value(streamKey{}).(stream)
	if _, ok := req.Body.(*payload); ok {
		return r.base.RoundTrip(req)
	}
	for attempt := 0; ; attempt++ {
		resp, err := r.try(req, direction)
		if direction == up || direction == once {
			return resp, err
		}
		if err == nil && !transient(resp, nil) || !r.policy.again(req.Context(), attempt, resp, err, slog.String("method", req.Method)) {
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

func (r *repeater) try(req *http.Request, direction stream) (*http.Response, error) {
	watch := r.watcher.start(req.Context())
	if req.Method == http.MethodPut {
		watch.sent()
	}
	resp, err := r.base.RoundTrip(req.WithContext(watch.ctx))
	if err != nil {
		defer watch.stop()
		return nil, watch.why(err)
	}
	body := &watchedBody{resp.Body, watch}
	resp.Body = body
	if direction == down && resp.StatusCode/100 == 2 {
		watch.rest()
		return resp, nil
	}
	// One byte more shows that it is too much; whoever wants it cannot have it.
	raw, err := io.ReadAll(io.LimitReader(body, oci.MaxManifestSize+1))
	_ = body.Close() // all that counts was read, or failed to be
	switch {
	case err != nil:
		return nil, err
	case len(raw) > oci.MaxManifestSize:
		return nil, &answerError{"answers with more than 4 MiB where a manifest or a list was to come"}
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	return resp, nil
}

// watchedBody is an answer's body that is waited for only while it is read.
type watchedBody struct {
	io.ReadCloser
	watch *watch
}

// Read implements [io.Reader].
func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.moved()
	n, err := b.ReadCloser.Read(p)
	b.watch.rest()
	return n, b.watch.why(err)
}

// Close implements [io.Closer].
func (b *watchedBody) Close() error {
	defer b.watch.stop()
	return b.ReadCloser.Close()
}
