// Package remote is a registry client that resumes interrupted uploads and downloads and verifies what it uploads.
//
// Credentials, tokens, pages of lists and error codes are those of oras-go (registry/remote, auth, errcode). What it
// does not do is here: blobs that resume in both directions, content that is withheld if it is damaged, retries that
// count attempts without progress instead of all, idle timeouts, SHA-512, and limits on where a registry may send the
// client.
// Its retry.Transport repeats whole requests only.
//
// It transfers single manifests and blobs. Package images decides what belongs to an image and in which order to
// copy it. Package remote stores nothing and reads no credential files.
package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Options configure a [Registry].
type Options struct {
	// Host is the registry's host name and port, as in zarf-registry.zarf.svc:5000. The credential is sent only to
	// this host, and its certificate is verified for this name unless TLS says otherwise. docker.io is
	// registry-1.docker.io.
	Host string
	// DialContext opens connections to the registry, for example through a port-forward. It gets Host, with a port,
	// and disables HTTP proxies. Nil dials Host, or the proxy from the environment (HTTPS_PROXY, NO_PROXY).
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS holds the trusted CAs and the client certificate. Nil trusts the system's CAs. It is not modified.
	TLS *tls.Config
	// PlainHTTP disables TLS. The client never falls back to it.
	PlainHTTP bool
	// Credential returns Host's credential. It is called when the registry asks for one, and for no other host. The
	// credential goes to Host or to the token server that Host names, never to a redirect's target. Nil is anonymous.
	Credential auth.CredentialFunc
	// FlagPrefix is what the names of the flags for this registry begin with in errors, as in --from-username.
	FlagPrefix string
	// LoginHint ends errors about a missing or rejected credential. Empty suggests docker login and flags.
	LoginHint string
	// Retries is the retry budget of a request that fails for a transient reason, and of a blob transfer that makes
	// no progress. 0 is [DefaultRetries]; negative disables retries.
	Retries int
	// Rate limits the client's connections. Nil does not.
	Rate *Rate
	// Log gets a line for each retry. Nil discards it.
	Log *slog.Logger

	sleep           func(ctx context.Context, delay time.Duration) error // set by tests; nil is [sleep]
	idleTimeout     time.Duration                                        // set by tests; 0 is [defaultIdleTimeout]
	responseTimeout time.Duration                                        // set by tests; 0 is [defaultResponseTimeout]
	cancelTimeout   time.Duration                                        // set by tests; 0 is [defaultCancelTimeout]
}

const (
	// DefaultRetries outlasts the restart of a registry's pod: the delays grow from 0.25 s to 8 s and add up to
	// between 16 and 32 seconds.
	DefaultRetries = 8

	// defaultIdleTimeout aborts a request whose body or response transfers no data for this long. It is then retried or
	// resumed. It leaves room for TCP, which retransmits a lost packet after 0.2 s, doubling: after an outage of half
	// this time, data flows again.
	defaultIdleTimeout = time.Minute

	// defaultResponseTimeout applies after the whole body was sent. A registry on S3 copies a large blob's parts
	// before it responds: it gets this time and a second for each of storageBytesPerSecond bytes.
	defaultResponseTimeout = 5 * time.Minute

	// storageBytesPerSecond is what slow object storage copies.
	storageBytesPerSecond = 10 << 20
)

// Registry is a client of one registry. It is safe for concurrent use.
type Registry struct {
	remote        *remote.Registry
	client        *auth.Client
	retry         *retryPolicy
	timeouts      idleTimeouts
	closeIdle     func()
	loginHint     string
	flagPrefix    string
	cancelTimeout time.Duration

	mu           sync.Mutex
	repositories map[string]*Repository
}

// New returns a client. It does not connect.
func New(opts Options) (*Registry, error) {
	reg, err := remote.NewRegistry(opts.Host)
	if err != nil {
		return nil, fmt.Errorf("registry %q: %w", opts.Host, err)
	}
	host := reg.Reference.Host()
	if opts.sleep == nil {
		opts.sleep = sleep
	}
	opts.responseTimeout = cmp.Or(opts.responseTimeout, defaultResponseTimeout)
	r := &Registry{
		remote: reg,
		retry: &retryPolicy{budget: cmp.Or(opts.Retries, DefaultRetries), log: opts.Log, host: host,
			sleep: opts.sleep},
		timeouts:      idleTimeouts{idle: cmp.Or(opts.idleTimeout, defaultIdleTimeout), response: opts.responseTimeout},
		cancelTimeout: cmp.Or(opts.cancelTimeout, defaultCancelTimeout),
		loginHint:     opts.LoginHint,
		flagPrefix:    opts.FlagPrefix,
		repositories:  map[string]*Repository{},
	}
	if r.loginHint == "" {
		r.loginHint = fmt.Sprintf("log in with docker login %s, or pass --%susername and --password-stdin", host,
			opts.FlagPrefix)
	}
	router := newHostRouter(host, opts)
	r.closeIdle = router.closeIdle
	r.client = &auth.Client{
		Client: &http.Client{
			Transport:     &retryTransport{router, r.retry, r.timeouts},
			CheckRedirect: router.checkRedirect,
		},
		Cache: auth.NewCache(),
	}
	if opts.Credential != nil {
		r.client.Credential = func(ctx context.Context, asking string) (auth.Credential, error) {
			if asking != host {
				return auth.EmptyCredential, nil
			}
			return opts.Credential(ctx, asking)
		}
	}
	r.client.SetUserAgent("zarf-registry/" + version.Version)
	reg.Client = r.client
	reg.PlainHTTP = opts.PlainHTTP
	reg.ReferrerListMaxPages = maxReferrerPages
	reg.MaxMetadataBytes = oci.MaxManifestSize
	return r, nil
}

// Host returns the registry's host name and port.
func (r *Registry) Host() string { return r.remote.Reference.Host() }

// Ping checks that the registry can be reached and accepts the credential.
func (r *Registry) Ping(ctx context.Context) error {
	return r.wrap(ctx, r.remote.Ping(ctx))
}

// Close closes idle connections.
func (r *Registry) Close() { r.closeIdle() }

// Repository returns the repository of that name, which need not exist. It does not connect.
func (r *Registry) Repository(name string) (*Repository, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if repo := r.repositories[name]; repo != nil {
		return repo, nil
	}
	oras, err := r.remote.Repository(context.Background(), name)
	if err != nil {
		return nil, fmt.Errorf("repository %q: %w", name, err)
	}
	repo := &Repository{registry: r, name: name, remote: oras.(*remote.Repository)}
	// Errors then say if it does not: see Repository.Referrers.
	if err := repo.remote.SetReferrersCapability(true); err != nil {
		return nil, fmt.Errorf("repository %q: %w", name, err)
	}
	r.repositories[name] = repo
	return repo, nil
}

// Repositories calls yield with each page of the registry's repository names, and stops at yield's first error.
func (r *Registry) Repositories(ctx context.Context, yield func(names []string) error) error {
	return list(ctx, r, yield, func(yield func([]string) error) error { return r.remote.Repositories(ctx, "", yield) })
}

// list calls query with yield. It returns yield's error as it is, and wraps the registry's.
func list[T any](ctx context.Context, r *Registry, yield func([]T) error, query func(func([]T) error) error) error {
	var yieldErr error
	err := query(func(page []T) error {
		yieldErr = yield(page)
		return yieldErr
	})
	if yieldErr != nil {
		return yieldErr
	}
	return r.wrap(ctx, err)
}

// wrap adds the registry's name and a remedy to an error. It returns errors about content ([blob.Error]) as they are.
func (r *Registry) wrap(ctx context.Context, err error) error {
	var (
		content   *blob.Error
		wrapped   *wrappedError
		protocol  *protocolError
		response  *errcode.ErrorResponse
		untrusted *tls.CertificateVerificationError
		unknown   x509.UnknownAuthorityError
		otherName x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
		notTLS    tls.RecordHeaderError
	)
	if err == nil || errors.As(err, &content) || errors.As(err, &wrapped) {
		return err
	}
	name := "registry " + r.Host()
	if host := requestHost(err); host != "" && host != r.Host() {
		name += " (request to " + host + ")"
	}
	wrapf := func(format string, args ...any) error {
		return &wrappedError{redact(name + fmt.Sprintf(format, args...)), err}
	}
	cause := withoutURL(err)
	switch {
	case ctx.Err() != nil:
		return &wrappedError{name + ": " + ctx.Err().Error(), ctx.Err()}
	case errors.As(err, &protocol):
		return wrapf(" %s", protocol.text)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return wrapf(" requires a credential: %s", r.loginHint)
	case errors.As(err, &response):
		text := r.describeResponse(response)
		if response.StatusCode == http.StatusNotFound {
			err = &notFoundError{err}
		}
		return wrapf("%s", text)
	case errors.Is(err, errdef.ErrNotFound):
		return wrapf(": not found")
	case errors.As(err, &otherName), errors.As(err, &invalid):
		return wrapf(" has an invalid certificate: %v", cause)
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return wrapf(" has a certificate of an untrusted CA (%v): pass the CA's certificate with --ca-file", cause)
	case errors.As(err, &alert):
		return wrapf(" aborted the TLS handshake (%v): it may require a client certificate", cause)
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &notTLS):
		return wrapf(" serves HTTP, not HTTPS: pass --%splain-http if that is intended", r.flagPrefix)
	case errors.Is(err, errIdleTimeout):
		return wrapf(": %v", errIdleTimeout)
	}
	return wrapf(": %v", cause)
}

// describeResponse continues "registry HOST" with what a response says, and what to do.
func (r *Registry) describeResponse(response *errcode.ErrorResponse) string {
	reason := fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode))
	if len(response.Errors) > 0 {
		reason += ": " + response.Errors.Error()
	}
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Sprintf(" rejected the credential (%s): %s", reason, r.loginHint)
	case http.StatusForbidden:
		return fmt.Sprintf(" denied access (%s): the credential lacks this permission or is missing: %s", reason,
			r.loginHint)
	case http.StatusNotFound:
		return fmt.Sprintf(": not found (%s)", reason)
	case http.StatusBadRequest:
		if r.remote.PlainHTTP && len(response.Errors) == 0 {
			return fmt.Sprintf(" responded with %s: if it requires HTTPS, omit --%splain-http", reason, r.flagPrefix)
		}
	case http.StatusInsufficientStorage:
		if len(response.Errors) > 0 { // its message says what to do
			return fmt.Sprintf(" refuses pushes (%d): %s", response.StatusCode, response.Errors[0].Message)
		}
	case http.StatusTooManyRequests:
		return fmt.Sprintf(" limits the request rate (%s): retry later, or log in", reason)
	}
	return fmt.Sprintf(" responded to %s with %s", response.Method, reason)
}
