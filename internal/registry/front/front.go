// Package front is the HTTP front end of a listener: it authorizes, limits, logs and counts requests.
//
// It listens to nothing and stores nothing. Package users verifies users.
package front

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
)

const (
	// IdleTimeout ends a request during which the client neither sends nor receives a byte for so long. containerd's own
	// timeout for pulls without progress is the same, and the registry's must not be shorter.
	IdleTimeout = 5 * time.Minute
	// discardTimeout bounds reading the rest of an unwanted request body, which keeps the connection usable.
	discardTimeout = 10 * time.Second
)

// forwarded are the headers by which proxies, none of which is trusted, describe a client to URLs and logs.
var forwarded = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix",
	"X-Forwarded-Proto", "X-Forwarded-Scheme", "X-Forwarded-Server", "X-Real-Ip",
}

// recorder counts requests.
type recorder interface {
	Begin(listener string)
	End(listener, method string, code int, received, sent int64, took time.Duration)
}

// Front is the front end of one listener.
type Front struct {
	Name        string // of the listener, in logs and metrics
	Policy      Policy
	Clients     *tlsfiles.Clients // nil without mutual TLS
	Credentials *users.Users
	Tokens      *Tokens
	Next        http.Handler
	Metrics     recorder
	Log         *slog.Logger
	Draining    *atomic.Bool
	Now         func() time.Time // for tokens
	IdleTimeout time.Duration
}

func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	e := &exchange{
		ResponseWriter: w, control: http.NewResponseController(w), idleTimeout: f.IdleTimeout,
		body: r.Body, bodyRead: r.Body == http.NoBody,
	}
	r.Body = requestBody{e}
	f.Metrics.Begin(f.Name)
	peer := &peer{Caller: request.Caller{Listener: f.Name, Remote: r.RemoteAddr}}
	code := http.StatusInternalServerError // unless the handler returns
	defer func() {
		took := time.Since(started)
		f.Metrics.End(f.Name, r.Method, code, e.received, e.sent, took)
		f.logRequest(r, code, e, peer, took)
		e.finish()
	}()

	for _, header := range forwarded {
		r.Header.Del(header)
	}
	if f.Draining.Load() {
		w.Header().Set("Connection", "close")
	}
	to := request.Parse(r)
	switch err := f.admit(w, r, to, peer); {
	case err != nil:
		if coded, ok := errors.AsType[errcode.Error](err); ok && coded.Code == errcode.ErrorCodeUnauthorized {
			w.Header().Set("WWW-Authenticate", f.challenge(r, to))
		}
		request.WriteError(e, err)
	case to.Token:
		f.serveToken(e, r, peer)
	default:
		r.Header.Del("Authorization")
		r.Header.Del("Cookie")
		f.Next.ServeHTTP(e, request.With(r, to, &peer.Caller))
	}
	if e.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	code = e.status
}

// peer is the client of a request, with what only the front end needs.
type peer struct {
	request.Caller
	account   *users.User // of the accepted credential
	anonymous bool        // without a credential, or with an empty one
}

// admit identifies the client of a request, and returns an error unless the request is allowed.
func (f *Front) admit(w http.ResponseWriter, r *http.Request, to request.Target, peer *peer) error {
	if f.Policy.MutualTLS {
		if err := f.Clients.Verify(w, r); err != nil {
			return request.Denied("%v", err)
		}
		certificate := r.TLS.PeerCertificates[0]
		peer.Roles, peer.Certificate = pki.Roles(certificate), certificate.Subject.String()
	}
	peer.HidesOwn = f.Policy.Loopback || slices.Equal(peer.Roles, []string{pki.OrganizationClient})
	login := f.login(r, peer)
	peer.anonymous = !login.sent || login.anonymous
	if err := f.Policy.authorize(r.Method, to, peer.Roles, login); err != nil {
		return err
	}
	peer.Pushes = f.pushes(r, to, peer, login)
	return nil
}

// pushes reports whether a client that asks whether a manifest exists may push one.
func (f *Front) pushes(r *http.Request, to request.Target, peer *peer, login login) bool {
	if to.Manifest == "" || r.Method != http.MethodHead {
		return false
	}
	if f.Policy.MutualTLS {
		return slices.Contains(peer.Roles, pki.OrganizationPush) || slices.Contains(peer.Roles, pki.OrganizationClient)
	}
	if peer.account == nil { // everyone may read
		_, _ = login.verify() // a wrong credential counts as no credential
	}
	return peer.account != nil && peer.account.Role == users.RolePush
}

// login parses the Authorization header: a credential, which containers/image sends empty, or a token for one.
func (f *Front) login(r *http.Request, peer *peer) login {
	header := r.Header.Get("Authorization")
	name, password, ok := r.BasicAuth()
	anonymous := ok && name == "" && password == ""
	if scheme, token, _ := strings.Cut(header, " "); strings.EqualFold(scheme, "Bearer") {
		anonymous = token == anonymousToken
		name, password, ok = f.Tokens.open(token, f.Now())
	}
	return login{sent: header != "", anonymous: anonymous, verify: func() (*users.User, error) {
		if !ok || anonymous {
			return nil, nil
		}
		from := users.Origin{Listener: f.Name, Exposed: f.Policy.Exposed}
		if address, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			from.Source = address.Addr()
		}
		if f.Credentials.Known(from, name) {
			peer.User = name
		}
		user, err := f.Credentials.Verify(r.Context(), from, name, password)
		if user != nil {
			peer.account = user
		}
		return user, err
	}}
}

func (f *Front) logRequest(r *http.Request, code int, e *exchange, peer *peer, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case code == http.StatusServiceUnavailable, code == http.StatusInsufficientStorage: // temporary, and expected
		level = slog.LevelWarn
	case code >= http.StatusInternalServerError:
		level = slog.LevelError
	case code == http.StatusUnauthorized && peer.anonymous:
		// Clients first ask without a credential.
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusTooManyRequests:
		level = slog.LevelWarn
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		level = slog.LevelInfo
	}
	if !f.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("listener", f.Name), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("code", code), slog.Int64("received", e.received), slog.Int64("sent", e.sent),
		slog.String("duration", took.String()),
		slog.String("remote", r.RemoteAddr), slog.String("agent", r.UserAgent()),
	}
	if len(peer.Roles) > 0 {
		attrs = append(attrs, slog.Any("roles", peer.Roles))
	}
	if len(peer.Roles) == 0 && peer.Certificate != "" { // nothing else identifies it
		attrs = append(attrs, slog.String("subject", peer.Certificate))
	}
	if peer.User != "" {
		attrs = append(attrs, slog.String("user", peer.User))
	}
	f.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

// exchange is a request and its response. It counts their bytes, and extends deadlines while bytes flow.
type exchange struct {
	http.ResponseWriter
	control     *http.ResponseController
	idleTimeout time.Duration
	body        io.ReadCloser
	bodyRead    bool // to its end, or to an error
	status      int
	received    int64
	sent        int64
}

func (e *exchange) WriteHeader(status int) {
	e.Header().Set(oci.HeaderAPIVersion, "registry/2.0") // tells clients and proxies who responds; distribution adds it
	if e.status == 0 && status >= http.StatusOK {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *exchange) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	e.extendWrite()
	n, err := e.ResponseWriter.Write(p)
	e.sent += int64(n)
	return n, err
}

// Flush implements http.Flusher.
func (e *exchange) Flush() {
	e.extendWrite()
	_ = e.control.Flush()
}

// Unwrap is for http.ResponseController.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *exchange) extendWrite() { _ = e.control.SetWriteDeadline(time.Now().Add(e.idleTimeout)) }

// finish gives net/http time to discard the rest of the body, which it does first, and to send buffered data.
func (e *exchange) finish() {
	now, discard := time.Now(), time.Duration(0)
	if !e.bodyRead { // otherwise net/http already waits for the next request
		discard = min(e.idleTimeout, discardTimeout)
		_ = e.control.SetReadDeadline(now.Add(discard))
	}
	_ = e.control.SetWriteDeadline(now.Add(discard + e.idleTimeout))
}

// requestBody is the body of an exchange.
type requestBody struct{ e *exchange }

func (b requestBody) Read(p []byte) (int, error) {
	// At the end of the body, net/http begins to watch for a disconnect, which a deadline would look like.
	if !b.e.bodyRead {
		_ = b.e.control.SetReadDeadline(time.Now().Add(b.e.idleTimeout))
	}
	n, err := b.e.body.Read(p)
	b.e.received += int64(n)
	if err != nil && !b.e.bodyRead {
		b.e.bodyRead = true
		_ = b.e.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b requestBody) Close() error { return b.e.body.Close() }
