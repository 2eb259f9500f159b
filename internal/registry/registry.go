// Package registry is the cluster's OCI registry: configuration, listeners, health and metrics, start and drain.
//
// It does not issue certificates, create credentials, expire content or replicate, and it is not a
// pull-through cache. What happens to a request is in the packages below it: front (who may do what), inspect (what
// zarf-registry asks about the storage), spec (the specification, on github.com/distribution/distribution/v3), verify
// (signatures), collect (garbage), quota, content (what is stored), storage (drivers), users, audit and request.
//
// It adds what distribution lacks or configures only once at startup: mutual TLS that
// reloads certificates and CAs, a plain listener that opens and closes with its users file,
// health and metrics on separate ports, timeouts that end stalled connections but not slow ones, and draining.
//
// Listeners speak HTTP/1.1 only. A pull is a few large responses. Over HTTP/2 they would share one
// connection, its flow-control window and its lock, and so one core. Every client (containerd, CRI-O,
// oras, the node proxy) has an HTTP/1.1 connection pool. It also avoids HTTP/2's stream-reset attacks.
package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/front"
	"github.com/zarf-dev/zarf-registry/internal/registry/inspect"
	"github.com/zarf-dev/zarf-registry/internal/registry/quota"
	"github.com/zarf-dev/zarf-registry/internal/registry/spec"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
	"github.com/zarf-dev/zarf-registry/internal/registry/verify"
)

// The listeners' names in logs and metrics.
const (
	listenerTLS      = "tls"
	listenerPlain    = "plain"
	listenerLoopback = "loopback"
	listenerExposed  = "exposed"
)

// diagnosticsTimeout bounds a whole request for health or metrics. Responses are a few KiB.
const diagnosticsTimeout = 30 * time.Second

// Server is a registry with its listeners. Call Serve once.
type Server struct {
	options      Options
	source       *spec.Registry
	collector    *collect.Collector
	signatures   *verify.Verifier
	scrubber     *inspect.Scrubber
	certificates *tlsfiles.Source  // nil without Options.Listen
	exposed      *tlsfiles.Source  // for Options.ExposeTLSDir; nil if ExposeListen uses the certificate of Listen
	clients      *tlsfiles.Clients // nil without Options.Listen
	credentials  *users.Users
	tokens       *front.Tokens
	plain        *plainListener                // nil unless it follows Options.PullHtpasswd
	connections  map[string]*connlimit.Limiter // by listener
	health       *storage.Health
	space        *quota.Space
	metrics      *metrics
	log          *slog.Logger
	draining     atomic.Bool
	now          func() time.Time
	after        func(time.Duration) <-chan time.Time
	idleTimeout  time.Duration // front.IdleTimeout
}

// Open validates the options and everything they refer to: files, certificates, credentials, and write
// access to a filesystem. It opens no listener and does not connect to S3.
func Open(options Options) (*Server, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		options: options, metrics: newMetrics(options.Version), log: options.Log,
		connections: map[string]*connlimit.Limiter{},
		now:         time.Now, after: time.After, idleTimeout: front.IdleTimeout,
	}
	for name, address := range map[string]string{
		listenerTLS: options.Listen, listenerPlain: options.PlainListen, listenerLoopback: options.LoopbackListen,
		listenerExposed: options.ExposeListen,
	} {
		if address != "" {
			s.connections[name] = connlimit.New(maxConnections)
			s.metrics.watchConnections(name, s.connections[name])
		}
	}
	if err := s.openCertificates(); err != nil {
		return nil, err
	}
	if err := s.openCredentials(); err != nil {
		return nil, err
	}
	if err := s.openStorage(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) openCertificates() (err error) {
	if s.options.Listen != "" {
		if s.certificates, err = tlsfiles.Open(s.options.TLSDir, tlsfiles.WithLogger(s.log)); err != nil {
			return err
		}
		s.clients = tlsfiles.NewClients(s.certificates, func() time.Time { return s.now() })
		s.metrics.watchCertificates(s.certificates)
	}
	if s.options.ExposeTLSDir != "" {
		s.exposed, err = tlsfiles.Open(s.options.ExposeTLSDir, tlsfiles.WithoutCAs(), tlsfiles.WithLogger(s.log))
		if err != nil {
			return err
		}
		s.metrics.watchExposed(s.exposed)
	}
	return nil
}

func (s *Server) openCredentials() (err error) {
	o := s.options
	if s.credentials, err = users.Open(s.log, o.Htpasswd, o.PullHtpasswd, o.ExposeHtpasswd); err != nil {
		return err
	}
	s.metrics.watchCredentials(s.credentials)
	if o.PullHtpasswd != "" {
		s.plain = newPlainListener(s.plainEndpoint, s.log)
		s.metrics.watchPlain(s.plain)
	}
	return nil
}

func (s *Server) openStorage() (err error) {
	config := s.options.Config
	if config.HTTP.Secret == "" {
		if config.HTTP.Secret, err = s.uploadSecret(); err != nil {
			return err
		}
	}
	s.tokens = front.NewTokens(config.HTTP.Secret)
	root, ok := storage.FilesystemRoot(config.Storage)
	if ok {
		if err := storage.PrepareRoot(s.log, root, storage.ReadOnly(config.Storage)); err != nil {
			return err
		}
	}
	driver, err := storage.Open(context.Background(), config.Storage)
	if err != nil {
		return err
	}
	s.health = storage.NewHealth(config, driver, s.log)
	s.metrics.watchStorage(s.health)
	s.space = quota.New(root, s.options.Quota, s.log)
	s.space.MeasureVolume()
	s.metrics.watchSpace(s.space)
	if s.source, err = spec.Open(config, s.log); err != nil {
		return err
	}
	s.signatures = verify.New(s.options.Signatures, s.options.SignatureKeys, s.options.OwnImages,
		s.source.Store, !storage.ReadOnly(config.Storage), s.log)
	s.metrics.watchSignatures(s.signatures)
	s.collector = collect.New(s.source.Store, root)
	s.collector.Cached = config.Storage["cache"] != nil
	s.source.Use(s.collector, s.space)
	s.metrics.watchCollections(s.collector)
	s.scrubber = inspect.NewScrubber(s.source.Store)
	s.metrics.watchScrub(s.scrubber)
	return nil
}

// minUploadSecret is 256 bits, too many to guess.
const minUploadSecret = 32

func (s *Server) uploadSecret() (string, error) {
	path := s.options.UploadSecret
	if path == "" {
		return s.credentials.Secret("state of uploads"), nil
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading upload secret: %w", err)
	}
	if secret = bytes.TrimSpace(secret); len(secret) < minUploadSecret {
		return "", fmt.Errorf("upload secret %s has %d bytes: want at least %d", path, len(secret), minUploadSecret)
	}
	return string(secret), nil
}

// Serve listens and serves until ctx ends, then drains: it reports not ready at once, accepts
// connections for another Options.ShutdownDelay, and cuts off what still runs after
// Options.DrainTimeout. It returns nil after that, or the error of a listener. A plain listener that
// follows Options.PullHtpasswd is retried instead.
func (s *Server) Serve(ctx context.Context) error {
	registry, diagnostics := s.endpoints()
	if err := listen(ctx, slices.Concat(diagnostics, registry)); err != nil {
		return err
	}
	return s.serve(ctx, registry, diagnostics)
}

// endpoints returns those of the registry and those for health and metrics; without a plain listener
// that opens and closes.
func (s *Server) endpoints() (registry, diagnostics []*endpoint) {
	if s.options.Listen != "" {
		front := s.front(listenerTLS, front.Policy{MutualTLS: true})
		front.Clients = s.clients
		e := s.endpoint(front, s.options.Listen)
		e.server.TLSConfig = tlsfiles.ServerConfig(s.certificates, tls.RequireAndVerifyClientCert, "http/1.1")
		e.server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return s.clients.Context(connlimit.Context(ctx, c))
		}
		e.server.ConnState = s.clients.State
		registry = append(registry, e)
	}
	if s.options.PlainListen != "" && s.plain == nil {
		registry = append(registry, s.plainEndpoint())
	}
	if s.options.LoopbackListen != "" {
		e := s.endpoint(s.front(listenerLoopback, front.Policy{Loopback: true}), s.options.LoopbackListen)
		e.sharesPort = true
		registry = append(registry, e)
	}
	if s.options.ExposeListen != "" {
		certificates := s.exposed
		if certificates == nil {
			certificates = s.certificates
		}
		front := s.front(listenerExposed, front.Policy{Exposed: true, AnonymousPull: s.options.ExposeAnonymousPull})
		e := s.endpoint(front, s.options.ExposeListen)
		e.server.TLSConfig = tlsfiles.ServerConfig(certificates, tls.NoClientCert, "http/1.1")
		registry = append(registry, e)
	}
	if s.options.HealthListen != "" {
		e := newEndpoint("health", s.options.HealthListen, s.healthHandler(), connlimit.New(maxDiagnostics), s.log)
		diagnostics = append(diagnostics, e)
	}
	if s.options.MetricsListen != "" {
		e := newEndpoint("metrics", s.options.MetricsListen, s.metricsHandler(), connlimit.New(maxDiagnostics), s.log)
		diagnostics = append(diagnostics, e)
	}
	for _, e := range diagnostics {
		e.server.ReadTimeout, e.server.WriteTimeout = diagnosticsTimeout, diagnosticsTimeout
	}
	return registry, diagnostics
}

func (s *Server) plainEndpoint() *endpoint {
	front := s.front(listenerPlain, front.Policy{AnonymousPull: s.options.AnonymousPull})
	e := s.endpoint(front, s.options.PlainListen)
	e.sharesPort = s.options.LoopbackListen != ""
	return e
}

// endpoint shares the connection limit among successive listeners of the same name.
func (s *Server) endpoint(front *front.Front, address string) *endpoint {
	return newEndpoint(front.Name, address, front, s.connections[front.Name], s.log)
}

func (s *Server) front(name string, policy front.Policy) *front.Front {
	next := http.Handler(s.source)
	if policy.MutualTLS {
		next = own(map[string]http.Handler{
			catalog.Path: inspect.Catalog(s.source.Store, &s.draining), scrub.Path: s.scrubber.Handler(&s.draining),
			space.Path: inspect.Space(s.space.Report, s.collector.Stored),
			gc.Path:    s.collector.Handler(&s.draining, s.space.Removed),
		}, next)
	}
	f := &front.Front{
		Name:        name,
		Policy:      policy,
		Credentials: s.credentials,
		Tokens:      s.tokens,
		Tagged:      s.source.Tagged,
		Next:        next,
		Metrics:     s.metrics,
		Log:         s.log,
		Draining:    &s.draining,
		Now:         s.now,
		IdleTimeout: s.idleTimeout,
	}
	if s.signatures.On() {
		f.Signatures = s.signatures
	}
	return f
}

// own serves this registry's own paths, and passes other requests on.
func own(paths map[string]http.Handler, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler, ok := paths[r.URL.Path]; ok {
			handler.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) serve(ctx context.Context, registry, diagnostics []*endpoint) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.credentials.Run(background, func() { s.watchPullUsers(background) }) })
	// Not waited for, because the storage may hang.
	go s.health.Run(background)
	go s.collector.Poll(background, s.health.Interval)
	go s.scrubber.Poll(background)
	go s.space.PollContent(background, s.source.Driver)
	var writing sync.WaitGroup
	writing.Go(func() { s.space.PollVolume(background, !storage.ReadOnly(s.options.Config.Storage)) })
	if !storage.ReadOnly(s.options.Config.Storage) {
		writing.Go(func() { s.source.KeepRebuilding(background) })
	}
	writing.Go(func() { s.signatures.Run(background) })
	if s.signatures.On() {
		running.Go(func() { s.signatures.PollFiles(background) })
	}
	if s.certificates != nil {
		running.Go(func() { s.certificates.Run(background) })
	}
	if s.exposed != nil {
		running.Go(func() { s.exposed.Run(background) })
	}
	defer running.Wait()
	// Nothing is written after the end, unless the storage hangs.
	defer waitFor(&writing, time.Second)
	defer stop()

	failed := make(chan error, len(registry)+len(diagnostics))
	for _, e := range slices.Concat(diagnostics, registry) {
		s.log.Info("listening", "listener", e.name, "address", e.listener.Addr().String())
		running.Go(func() { failed <- e.serve() })
	}

	var err error
	var delay time.Duration
	select {
	case err = <-failed:
	case <-ctx.Done():
		delay = s.options.ShutdownDelay
	}
	s.draining.Store(true)
	s.log.Info("shutting down", "delay", delay.String(), "drain", s.options.DrainTimeout.String())
	<-s.after(delay)
	if s.plain != nil {
		registry = append(registry, s.plain.handOff()...)
	}
	s.drain(registry)
	for _, e := range diagnostics {
		_ = e.server.Close()
	}
	return errors.Join(err, s.source.Shutdown())
}

// waitFor waits until a group is done, but not longer than timeout.
func waitFor(group *sync.WaitGroup, timeout time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(timeout):
	}
}

func (s *Server) drain(endpoints []*endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.DrainTimeout)
	defer cancel()
	var draining sync.WaitGroup
	for _, e := range endpoints {
		draining.Go(func() {
			if err := e.drain(ctx); err != nil {
				s.log.Warn("requests were cut off: raise --drain-timeout", "listener", e.name, "error", err)
			}
		})
	}
	draining.Wait()
}

// watchPullUsers opens the plain listener while pull-only users are loaded, and closes it otherwise.
func (s *Server) watchPullUsers(ctx context.Context) {
	switch {
	case s.plain == nil:
	case s.credentials.HasPullUsers():
		s.plain.open(ctx, s.options.PullHtpasswd+" has users")
	default:
		s.plain.close(s.options.PullHtpasswd + " has no users")
	}
}

// healthHandler serves /healthz, for liveness, which succeeds while the process runs, since a restart
// does not repair the storage; and /readyz, which reports whether clients should send requests here.
func (s *Server) healthHandler() http.Handler {
	return getOnly(map[string]http.Handler{
		"/healthz": healthCheck(func() error { return nil }),
		"/readyz": healthCheck(func() error {
			if s.draining.Load() {
				return errors.New("shutting down")
			}
			return s.health.Err(time.Now())
		}),
	})
}

// healthCheck responds 503 with the error of check, or 200.
func healthCheck(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n") // the client may have disconnected
	})
}

func (s *Server) metricsHandler() http.Handler {
	return getOnly(map[string]http.Handler{
		"/metrics":        s.metrics.handler(),
		reloadstatus.Path: reloadstatus.Handler(s.reloadReport),
	})
}

// reloadReport describes the certificates and credentials in use, and what follows them.
func (s *Server) reloadReport() reloadstatus.Report {
	report := reloadstatus.Report{Credentials: s.credentials.Report(), GarbageCollection: s.collector.Report(),
		Scrub: s.scrubber.Status()}
	if err := s.health.Err(time.Now()); err != nil {
		report.StorageError = err.Error()
	} else {
		report.StorageEmpty = storage.IsEmpty(s.source.Driver)
	}
	if full := s.space.Report(); full != (space.Report{}) {
		report.Space = &full
	}
	if s.signatures.On() {
		report.Signatures = s.signatures.Report()
	}
	if s.certificates != nil {
		report.Certificates = s.certificates.Report()
	}
	if s.plain != nil {
		open := s.plain.address() != nil
		report.PlainListenerOpen = &open
	}
	return report
}

// getOnly serves GET and HEAD of exactly these paths.
func getOnly(paths map[string]http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, ok := paths[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			handler.ServeHTTP(w, r)
		}
	})
}
