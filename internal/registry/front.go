package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

const (
	// stallTimeout ends a request whose client neither sends nor takes a byte
	// for that long. containerd gives up on a pull without progress after the
	// same time, and the registry must not be the stricter party.
	stallTimeout = 5 * time.Minute
	// discardTimeout bounds the reading of a request body that nobody wanted,
	// which keeps the connection usable.
	discardTimeout = 10 * time.Second
)

// forwarded are the headers by which a proxy speaks for a client. No proxy is
// trusted to: they would end up in URLs and logs.
var forwarded = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Proto",
	"X-Forwarded-Scheme", "X-Forwarded-Server", "X-Real-Ip",
}

// front is what stands before distribution on one listener: it decides who may
// do what, bounds waiting, and logs and counts every request.
type front struct {
	name         string // of the listener, in logs and metrics
	policy       policy
	certificates *tlsfiles.Source // nil without mutual TLS
	credentials  *credentials
	next         http.Handler
	metrics      *metrics
	log          *slog.Logger
	draining     *atomic.Bool
	now          func() time.Time // for certificates
	stall        time.Duration
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	e := &exchange{ResponseWriter: w, control: http.NewResponseController(w), body: r.Body, bodyRead: r.Body == http.NoBody, stall: f.stall}
	r.Body = requestBody{e}
	inFlight := f.metrics.inFlight.WithLabelValues(f.name)
	inFlight.Inc()
	caller := caller{}
	code := http.StatusInternalServerError // unless the handler returns
	defer func() {
		inFlight.Dec()
		took := time.Since(started)
		f.metrics.observe(f.name, r.Method, code, e.received, e.sent, took)
		f.logRequest(r, code, e, caller, took)
		e.finish()
	}()

	for _, header := range forwarded {
		r.Header.Del(header)
	}
	if f.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	if err := f.admit(w, r, &caller); err != nil {
		refuse(e, err)
	} else {
		r.Header.Del("Authorization")
		r.Header.Del("Cookie")
		f.next.ServeHTTP(e, r)
	}
	code = e.code()
}

// caller is who made a request, as far as it is known, for the log.
type caller struct {
	roles   []string
	subject string // of a certificate without a role: nothing else tells whose it is
	user    string
}

// admit returns nil where the request may go on.
func (f *front) admit(w http.ResponseWriter, r *http.Request, caller *caller) error {
	if f.policy.mutualTLS {
		if err := f.verifyAgain(w, r); err != nil {
			return err
		}
		certificate := r.TLS.PeerCertificates[0]
		if caller.roles = pki.Roles(certificate); len(caller.roles) == 0 {
			caller.subject = certificate.Subject.String()
		}
	}
	return f.policy.authorize(r.Method, targetOf(r), caller.roles, func() (role, error) {
		name, password, ok := r.BasicAuth()
		if !ok {
			return roleNone, nil
		}
		if f.credentials.known(name) {
			caller.user = name
		}
		return f.credentials.verify(r.Context(), name, password)
	})
}

type generationKey struct{}

// connContext remembers with each connection the certificates that were in use
// when it began.
func (f *front) connContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, generationKey{}, f.certificates.Current())
}

// verifyAgain judges a client certificate that was verified when the connection
// began, where time or a new generation of CAs may have changed the verdict. A
// connection of an old generation serves no further request.
func (f *front) verifyAgain(w http.ResponseWriter, r *http.Request) error {
	now, current := f.now(), f.certificates.Current()
	chain := r.TLS.PeerCertificates
	stale := r.Context().Value(generationKey{}) != current
	if stale {
		w.Header().Set("Connection", "close")
	} else if now.Before(chain[0].NotAfter) {
		return nil
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots:         current.CAPool,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		w.Header().Set("Connection", "close")
		return denied("the client certificate of this connection is no longer accepted: %v", err)
	}
	return nil
}

// refuse answers with err as an OCI error.
func refuse(w http.ResponseWriter, err error) {
	var coded errcode.Error
	if !errors.As(err, &coded) { // the client has gone
		coded = errcode.ErrorCodeUnavailable.WithMessage("the request was given up")
	}
	switch coded.Code {
	case errcode.ErrorCodeUnauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="zarf-registry"`)
	case errcode.ErrorCodeTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case errcode.ErrorCodeUnavailable:
		w.Header().Set("Retry-After", "10")
	}
	_ = errcode.ServeJSON(w, coded) // if the client is gone, there is nobody to tell
}

func (f *front) logRequest(r *http.Request, code int, e *exchange, caller caller, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case code == http.StatusServiceUnavailable: // try again
		level = slog.LevelWarn
	case code >= http.StatusInternalServerError:
		level = slog.LevelError
	case code == http.StatusUnauthorized && r.Header.Get("Authorization") == "":
		// A client that asks whether it must log in, as all do.
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusTooManyRequests:
		level = slog.LevelWarn
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		level = slog.LevelInfo
	}
	if !f.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("listener", f.name), slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("code", code),
		slog.Int64("received", e.received), slog.Int64("sent", e.sent), slog.String("took", took.String()),
		slog.String("remote", r.RemoteAddr), slog.String("agent", r.UserAgent()),
	}
	if len(caller.roles) > 0 {
		attrs = append(attrs, slog.Any("roles", caller.roles))
	}
	if caller.subject != "" {
		attrs = append(attrs, slog.String("subject", caller.subject))
	}
	if caller.user != "" {
		attrs = append(attrs, slog.String("user", caller.user))
	}
	f.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// exchange is one request and its response. It counts their bytes, and moves the
// connection's deadlines ahead while bytes flow, so that a transfer may take as
// long as it likes but not stand still.
type exchange struct {
	http.ResponseWriter
	control  *http.ResponseController
	body     io.ReadCloser
	bodyRead bool // to its end, or to an error
	stall    time.Duration
	status   int
	received int64
	sent     int64
}

func (e *exchange) WriteHeader(status int) {
	if e.status == 0 && status >= http.StatusOK {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *exchange) Write(p []byte) (int, error) {
	e.extendWrite()
	n, err := e.ResponseWriter.Write(p)
	e.sent += int64(n)
	return n, err
}

// Flush is there for handlers that look for http.Flusher.
func (e *exchange) Flush() {
	e.extendWrite()
	_ = e.control.Flush()
}

// Unwrap is there for http.ResponseController.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *exchange) code() int {
	if e.status == 0 {
		return http.StatusOK // what net/http sends for a handler that says nothing
	}
	return e.status
}

func (e *exchange) extendWrite() { _ = e.control.SetWriteDeadline(time.Now().Add(e.stall)) }

// finish gives net/http time to skip the rest of the body, which it does before
// it answers, and to send what is buffered.
func (e *exchange) finish() {
	now, discard := time.Now(), time.Duration(0)
	if !e.bodyRead { // else net/http waits for the next request already
		discard = min(e.stall, discardTimeout)
		_ = e.control.SetReadDeadline(now.Add(discard))
	}
	_ = e.control.SetWriteDeadline(now.Add(discard + e.stall))
}

// requestBody is the body of an exchange.
type requestBody struct{ e *exchange }

func (b requestBody) Read(p []byte) (int, error) {
	// After the end net/http waits for the client to go away, and would take a
	// deadline for that.
	if !b.e.bodyRead {
		_ = b.e.control.SetReadDeadline(time.Now().Add(b.e.stall))
	}
	n, err := b.e.body.Read(p)
	b.e.received += int64(n)
	b.e.bodyRead = b.e.bodyRead || err != nil
	return n, err
}

func (b requestBody) Close() error { return b.e.body.Close() }
