package images

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/zarf-dev/zarf-registry/internal/version"
)

// RegistryOptions tell how a registry is reached.
type RegistryOptions struct {
	// Host is the registry's name and port, as in zarf-registry.zarf.svc:5000. It
	// is what the credential is for, and what the registry's certificate is
	// checked for unless TLS says otherwise.
	Host string
	// DialContext opens a connection to the registry, for each of which Host is
	// passed to it: through a port-forward, for example. Nil dials Host itself. No
	// proxy is used.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS holds the trusted CAs and the client's certificate. Nil trusts the
	// system's CAs.
	TLS *tls.Config
	// PlainHTTP does without TLS. It must be asked for: nothing falls back to it.
	PlainHTTP bool
	// Username and Password are sent to Host, as Basic authentication, when it
	// asks for them.
	Username, Password string
	// Retries is how often a request or an upload is tried again that failed for
	// a reason that may pass. 0 is [DefaultRetries], less than 0 is never.
	Retries int
	// Log gets a line when something is tried again. Nil is silent.
	Log *slog.Logger
}

// DefaultRetries is how often something is tried again. With the pauses between
// (0.25 s, doubling up to 8 s; 16 to 32 s in all) that outlasts the restart of a
// registry's pod.
const DefaultRetries = 8

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 8 * time.Second

	// maxRetryAfter bounds how long a registry may ask to wait: a limit per
	// minute, the usual one, has passed by then.
	maxRetryAfter = 2 * time.Minute

	// responseTimeout is for the answer after all of a request was sent. A registry
	// on S3 copies a large blob's parts before it answers, which takes minutes.
	responseTimeout = 5 * time.Minute

	// writeBuffer lets a TLS connection send whole records (16 KiB), several to a
	// system call, through tunnels that cost something for each.
	writeBuffer = 64 << 10
)

// Registry is a registry that images are pushed to. It is safe for concurrent
// use.
type Registry struct {
	remote *remote.Registry
	policy *patience
	close  func()
}

// NewRegistry prepares a client. It does not connect.
func NewRegistry(opts RegistryOptions) (*Registry, error) {
	reg, err := remote.NewRegistry(opts.Host)
	if err != nil {
		return nil, fmt.Errorf("registry %q: %w", opts.Host, err)
	}
	// Blobs that are sent at once go over connections of their own: in HTTP/2 they
	// would share one, and wait for each other in its window.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	transport := &http.Transport{
		Protocols:             &protocols,
		DialContext:           opts.DialContext,
		TLSClientConfig:       opts.TLS,
		TLSHandshakeTimeout:   10 * time.Second, // as http.DefaultTransport
		ResponseHeaderTimeout: responseTimeout,
		MaxIdleConnsPerHost:   DefaultConcurrency,
		IdleConnTimeout:       90 * time.Second, // as http.DefaultTransport
		WriteBufferSize:       writeBuffer,
	}
	policy := &patience{retries: opts.Retries, log: opts.Log}
	if policy.retries == 0 {
		policy.retries = DefaultRetries
	}
	client := &auth.Client{
		Client: &http.Client{Transport: &repeater{transport, policy}},
		Cache:  auth.NewCache(),
	}
	if opts.Username != "" {
		client.Credential = auth.StaticCredential(opts.Host, auth.Credential{Username: opts.Username, Password: opts.Password})
	}
	client.SetUserAgent("zarf-registry/" + version.Version)
	reg.Client = client
	reg.PlainHTTP = opts.PlainHTTP
	return &Registry{remote: reg, policy: policy, close: transport.CloseIdleConnections}, nil
}

// Host is the registry's name and port.
func (r *Registry) Host() string { return r.remote.Reference.Host() }

// Ping asks whether the registry is there and lets the client in: what is wrong
// with the way to it should be known before there is much to send.
func (r *Registry) Ping(ctx context.Context) error {
	if err := r.remote.Ping(ctx); err != nil {
		return fmt.Errorf("registry %s: %w", r.Host(), err)
	}
	return nil
}

// Close ends the connections that are not in use.
func (r *Registry) Close() { r.close() }

// repeater repeats requests that can be sent again as they are, which an upload's
// cannot: its body is gone.
type repeater struct {
	base   http.RoundTripper
	policy *patience
}

// RoundTrip implements [http.RoundTripper].
func (r *repeater) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return r.base.RoundTrip(req)
	}
	repeating := retry.Transport{Base: r.base, Policy: func() retry.Policy { return policyFor{req.Context(), r.policy} }}
	return repeating.RoundTrip(req)
}

// policyFor is the policy for one request.
type policyFor struct {
	ctx    context.Context
	policy *patience
}

// Retry implements [retry.Policy].
func (p policyFor) Retry(attempt int, resp *http.Response, err error) (time.Duration, error) {
	return p.policy.pause(p.ctx, attempt, resp, err), nil
}

// patience decides what is tried again and when. It is the one policy for
// requests that are repeated ([repeater]) and for uploads that begin again
// ([destination.upload]).
type patience struct {
	retries int
	log     *slog.Logger
}

// never is the pause before what is not tried again.
const never = time.Duration(-1)

// pause is how long to wait before what failed with resp or err, and was tried
// again attempt times, is tried again.
func (p *patience) pause(ctx context.Context, attempt int, resp *http.Response, err error) time.Duration {
	// A request of which the context has ended fails with whatever ended it.
	if attempt >= p.retries || ctx.Err() != nil || !transient(resp, err) {
		return never
	}
	pause := min(firstPause<<min(attempt, 10), maxPause)
	// Half of it by chance, so that uploads that failed together do not come back
	// together.
	pause = pause/2 + rand.N(pause/2+1)
	pause = max(pause, retryAfter(resp))
	if p.log != nil {
		reason := slog.Any("error", err)
		if err == nil {
			reason = slog.String("status", resp.Status)
		}
		p.log.Warn("registry did not take a request, trying again", reason, slog.Int("attempt", attempt+1), slog.Duration("pause", pause))
	}
	return pause
}

// retryAfter is how many seconds the registry asks to wait; the header's other
// form, a date, is not used by registries.
func retryAfter(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// transient tells whether a failure may pass by itself. Errors of connections
// may, whatever a dialer calls them, unless they are known not to.
func transient(resp *http.Response, err error) bool {
	var refused *errcode.ErrorResponse
	var dns *net.DNSError
	var (
		content    *contentError
		untrusted  *tls.CertificateVerificationError
		unknown    x509.UnknownAuthorityError
		alert      tls.AlertError
		notTLS     tls.RecordHeaderError
		cancelled  = errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		wrongProto = errors.Is(err, http.ErrSchemeMismatch)
	)
	switch {
	case err == nil:
		return transientStatus(resp.StatusCode)
	case errors.As(err, &refused):
		return transientStatus(refused.StatusCode) || lostUpload(refused)
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case cancelled, wrongProto,
		errors.As(err, &content), errors.As(err, &untrusted), errors.As(err, &unknown), errors.As(err, &alert), errors.As(err, &notTLS):
		return false
	}
	return true
}

func transientStatus(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusTooManyRequests ||
		code >= 500 && code != http.StatusNotImplemented
}

// lostUpload is the answer of a registry that restarted, or whose replicas do
// not share their uploads' state: a new upload may succeed.
func lostUpload(refused *errcode.ErrorResponse) bool {
	for _, e := range refused.Errors {
		if e.Code == errcode.ErrorCodeBlobUploadUnknown || e.Code == errcode.ErrorCodeBlobUploadInvalid {
			return true
		}
	}
	return false
}
