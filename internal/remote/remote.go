// Package remote talks to registries over HTTP: it resolves references, lists, and
// moves manifests and blobs in both directions, through connections that break,
// stall and lie. Blobs are continued where they broke off.
//
// It knows nothing of images: what belongs to one, and in which order it goes, is
// its callers' business. It stores nothing.
package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Options tell how a registry is reached.
type Options struct {
	// Host is the registry's name and port, as in zarf-registry.zarf.svc:5000. It
	// is what the credential is for, and what the registry's certificate is
	// checked for unless TLS says otherwise. docker.io is registry-1.docker.io.
	Host string
	// DialContext opens a connection to the registry, for each of which Host, with
	// a port, is passed to it: through a port-forward, for example. No proxy is
	// used then. Nil dials Host itself, or the proxy that the environment names
	// (HTTPS_PROXY, NO_PROXY).
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS holds the trusted CAs and the client's certificate. Nil trusts the
	// system's CAs. It is not changed.
	TLS *tls.Config
	// PlainHTTP does without TLS. It must be asked for: nothing falls back to it.
	PlainHTTP bool
	// Credential is asked for Host's credential when the registry wants one, and
	// for no other host's. Host gets it, or the token server that Host names; no
	// host to which it redirects does. Nil is anonymous.
	Credential auth.CredentialFunc
	// Login is what errors advise where the credential is missing or refused. "" is to
	// log in with docker login or to give flags.
	Login string
	// Retries is how often a request is tried again that failed for a reason that
	// may pass, and a blob that broke off continued without getting further. 0 is
	// [DefaultRetries], less than 0 is never.
	Retries int
	// Stall is how long nothing may move: a request whose body stands still, and an
	// answer that does not begin or stands still, is broken off, and tried again or
	// continued. Answers to what was sent whole have 5 minutes to begin. 0 is
	// [DefaultStall].
	Stall time.Duration
	// Connections is how many connections are kept that are not in use. 0 is 6.
	Connections int
	// Elsewhere lets the registry redirect the download of a blob to another host,
	// as those do that keep blobs in S3 or behind a CDN. The other host gets
	// neither credential nor client certificate, is checked against the system's
	// CAs, and is never reached over HTTP if the registry is over HTTPS.
	Elsewhere bool
	// Log gets a line when something is tried again. Nil is silent.
	Log *slog.Logger

	sleep  func(ctx context.Context, pause time.Duration) error // tests do not wait; nil is [sleep]
	answer time.Duration                                        // tests wait shorter; 0 is [responseTimeout]
	cdnTLS *tls.Config                                          // tests have no system CAs; nil trusts those
}

const (
	// DefaultRetries is how often something is tried again. With the pauses between
	// (0.25 s, doubling up to 8 s; 16 to 32 s in all) that outlasts the restart of a
	// registry's pod.
	DefaultRetries = 8

	// DefaultStall is how long nothing may move. TCP repeats a lost packet after
	// 0.2 s, doubling: a link that was away for half of it has moved again.
	DefaultStall = time.Minute

	defaultConnections = 6

	// responseTimeout is for the answer after all of a body was sent. A registry
	// on S3 copies a large blob's parts before it answers, which takes minutes.
	responseTimeout = 5 * time.Minute

	// writeBuffer holds a request with its manifest, for most.
	writeBuffer = 64 << 10
)

// Registry is a registry. It is safe for concurrent use.
type Registry struct {
	remote *remote.Registry
	client *auth.Client
	policy *policy
	watch  watcher
	close  func()
	login  string // what to do about the credential

	fromFiles atomic.Int64 // bytes that went from files to sockets by themselves

	mu           sync.Mutex
	repositories map[string]*Repository
}

// New prepares a client. It does not connect.
func New(opts Options) (*Registry, error) {
	reg, err := remote.NewRegistry(opts.Host)
	if err != nil {
		return nil, fmt.Errorf("registry %q: %w", opts.Host, err)
	}
	if opts.Retries == 0 {
		opts.Retries = DefaultRetries
	}
	if opts.Stall <= 0 {
		opts.Stall = DefaultStall
	}
	if opts.Connections <= 0 {
		opts.Connections = defaultConnections
	}
	if opts.sleep == nil {
		opts.sleep = sleep
	}
	if opts.answer == 0 {
		opts.answer = responseTimeout
	}
	r := &Registry{
		login:        cmp.Or(opts.Login, fmt.Sprintf("log in with docker login %s, or give --username and --password-stdin", reg.Reference.Host())),
		remote:       reg,
		policy:       &policy{retries: opts.Retries, log: opts.Log, host: reg.Reference.Host(), sleep: opts.sleep},
		watch:        watcher{stall: opts.Stall, answer: opts.answer},
		repositories: map[string]*Repository{},
	}
	ways := newRoutes(r, opts)
	r.close = ways.closeIdle
	r.client = &auth.Client{
		Client: &http.Client{
			Transport:     &repeater{ways, r.policy, r.watch},
			CheckRedirect: ways.checkRedirect,
		},
		Cache: auth.NewCache(),
	}
	if opts.Credential != nil {
		r.client.Credential = func(ctx context.Context, host string) (auth.Credential, error) {
			if host != reg.Reference.Host() {
				return auth.EmptyCredential, nil
			}
			return opts.Credential(ctx, host)
		}
	}
	r.client.SetUserAgent("zarf-registry/" + version.Version)
	reg.Client = r.client
	reg.PlainHTTP = opts.PlainHTTP
	// The former list of referrers is left to the registry's own garbage collection:
	// most registries let nobody delete.
	reg.SkipReferrersGC = true
	reg.MaxMetadataBytes = oci.MaxManifestSize
	return r, nil
}

// Host is the registry's name and port.
func (r *Registry) Host() string { return r.remote.Reference.Host() }

// Ping asks whether the registry is there and lets the client in: what is wrong
// with the way to it should be known before there is much to send.
func (r *Registry) Ping(ctx context.Context) error {
	return r.explain(ctx, r.remote.Ping(ctx))
}

// Close ends the connections that are not in use.
func (r *Registry) Close() { r.close() }

// Repository is the repository of that name, which need not exist. It does not
// connect.
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
	r.repositories[name] = repo
	return repo, nil
}

// Repositories calls each with the names of the registry's repositories, in the
// pages that the registry gives. It ends with each's first error.
func (r *Registry) Repositories(ctx context.Context, each func(names []string) error) error {
	return r.listed(ctx, func(own *ownError) error {
		return r.remote.Repositories(ctx, "", func(names []string) error { return own.keep(each(names)) })
	})
}

// ownError is an error of a caller's function, which is returned as it is.
type ownError struct{ err error }

func (o *ownError) keep(err error) error {
	o.err = err
	return err
}

func (r *Registry) listed(ctx context.Context, list func(*ownError) error) error {
	var own ownError
	err := list(&own)
	if own.err != nil {
		return own.err
	}
	return r.explain(ctx, err)
}
