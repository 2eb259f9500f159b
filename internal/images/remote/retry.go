package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

const (
	firstDelay = 250 * time.Millisecond
	maxDelay   = 8 * time.Second
)

// retryPolicy decides which failures are retried, and when: requests ([retryTransport]), uploads and downloads.
type retryPolicy struct {
	budget int
	log    *slog.Logger
	host   string
	sleep  func(context.Context, time.Duration) error
}

// retry waits before the next attempt after a transient failure with resp or err. attempt counts previous retries. It
// returns false if there is to be no other attempt.
func (p *retryPolicy) retry(ctx context.Context, attempt int, resp *http.Response, err error, attrs ...any) bool {
	return transient(resp, err) && p.backOff(ctx, attempt, resp, err, attrs...)
}

// backOff is retry for failures that are known to be transient.
func (p *retryPolicy) backOff(ctx context.Context, attempt int, resp *http.Response, err error, attrs ...any) bool {
	// A request whose context was canceled may fail with any error.
	if attempt >= p.budget || ctx.Err() != nil {
		return false
	}
	delay := min(firstDelay<<min(attempt, 10), maxDelay)
	// Half of it is jitter, so that transfers that failed together do not return together.
	delay = delay/2 + rand.N(delay/2+1)
	delay = max(delay, retryAfter(resp, time.Now()))
	if response, ok := errors.AsType[*responseError](err); ok {
		delay = max(delay, response.retryAfter)
	}
	if p.log != nil {
		if err == nil {
			err = errors.New(resp.Status)
		}
		reason := redact(withoutURL(err).Error())
		attrs = append([]any{slog.String("registry", p.host), slog.String("error", reason)}, attrs...)
		p.log.Warn("registry request failed, retrying",
			append(attrs, slog.Int("attempt", attempt+1), slog.Duration("delay", delay))...)
	}
	return p.sleep(ctx, delay) == nil
}

func sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// transient reports whether a failure may pass by itself. Connection errors may, unless they are known not to:
// dialers return errors of any type.
func transient(resp *http.Response, err error) bool {
	var (
		response  *errcode.ErrorResponse
		dns       *net.DNSError
		content   *blob.Error
		protocol  *protocolError
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		alert     tls.AlertError
		notTLS    tls.RecordHeaderError
	)
	switch {
	case err == nil:
		return transientStatus(resp.StatusCode)
	case errors.As(err, &response):
		return transientStatus(response.StatusCode)
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case errors.Is(err, http.ErrSchemeMismatch),
		errors.As(err, &content), errors.As(err, &protocol), errors.As(err, &untrusted), errors.As(err, &unknown),
		errors.As(err, &alert), errors.As(err, &notTLS):
		return false
	}
	return true
}

// statusClientClosed is the status that nginx and distribution use when a request ends early, for example because
// an intermediary closed the connection.
const statusClientClosed = 499

// transientStatus reports whether a status may pass by itself. Someone has to make room in a full registry.
func transientStatus(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code == statusClientClosed ||
		code >= 500 && code != http.StatusNotImplemented && code != http.StatusInsufficientStorage
}
