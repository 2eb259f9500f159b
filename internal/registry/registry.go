// Package registry is the cluster's OCI registry: configuration, listeners, health and metrics, start and drain.
//
// It does not issue certificates, create credentials, verify signatures, expire content or replicate, and it is not a
// pull-through cache. What happens to a request is in the packages below it: front (who may do what), inspect (what
// zarf-registry asks about the storage), spec (the specification, on github.com/distribution/distribution/v3),
// collect (garbage), volume (its space), content (what is stored), storage (drivers), users and request.
//
// Listeners speak HTTP/1.1 only. A pull is a few large responses. Over HTTP/2 they would share one
// connection, its flow-control window and its lock, and so one core. Every client (containerd, CRI-O,
// oras, the node proxy) has an HTTP/1.1 connection pool. It also avoids HTTP/2's stream-reset attacks.
package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/front"
	"github.com/zarf-dev/zarf-registry/internal/registry/inspect"
	"github.com/zarf-dev/zarf-registry/internal/registry/spec"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// Server is a registry with its listeners. Call Serve once.
type Server struct {
	options      Options
	source       *spec.Registry
	collector    *collect.Collector
	scrubber     *inspect.Scrubber
	certificates *tlsfiles.Source  // nil without Options.Listen
	exposed      *tlsfiles.Source  // for Options.ExposeTLSDir; nil if ExposeListen uses the certificate of Listen
	clients      *tlsfiles.Clients // nil without Options.Listen
	credentials  *users.Users
	tokens       *front.Tokens
	plain        *plainListener                // nil unless it follows Options.PullHtpasswd
	connections  map[string]*connlimit.Limiter // by listener
	health       *storage.Health
	space        *volume.Space
	root         string // of the filesystem driver, or ""
	metrics      *metrics
	log          *slog.Logger
	draining     atomic.Bool
	now          func() time.Time
	after        func(time.Duration) <-chan time.Time
	idleTimeout  time.Duration // front.IdleTimeout
	writeTimeout time.Duration // of background writes at the end
}

// Open validates the options and what they refer to. It opens no listener and does not connect to S3.
func Open(options Options) (*Server, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		options: options, metrics: newMetrics(options.Version), log: options.Log,
		connections: map[string]*connlimit.Limiter{},
		now:         time.Now, after: time.After, idleTimeout: front.IdleTimeout, writeTimeout: time.Second,
	}
	for _, l := range s.listeners() {
		if l.address != "" {
			s.connections[l.name] = connlimit.New(maxConnections)
			s.metrics.watchConnections(l.name, s.connections[l.name])
		}
	}
	for _, open := range []func() error{s.openCertificates, s.openCredentials, s.openStorage} {
		if err := open(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) openCertificates() (err error) {
	if s.options.Listen != "" {
		if s.certificates, err = tlsfiles.Open(s.options.TLSDir, tlsfiles.WithLogger(s.log)); err != nil {
			return err
		}
		s.clients = tlsfiles.NewClients(s.certificates, func() time.Time { return s.now() })
		s.metrics.watchCertificate("zarf_registry_tls", "--listen", s.certificates)
		s.metrics.watchClientCAs(s.certificates)
	}
	if s.options.ExposeTLSDir != "" {
		s.exposed, err = tlsfiles.Open(s.options.ExposeTLSDir, tlsfiles.WithoutCAs(), tlsfiles.WithLogger(s.log))
		if err != nil {
			return err
		}
		s.metrics.watchCertificate("zarf_registry_exposed_tls", "--expose-listen", s.exposed)
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
		s.plain = newPlainListener(func() *endpoint { return s.endpoint(s.plainListener()) }, s.log)
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
	s.root = root
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
	s.space = volume.New(root, s.log)
	s.space.Update()
	s.metrics.watchSpace(s.space)
	if s.source, err = spec.Open(config, driver, s.log); err != nil {
		return err
	}
	s.collector = collect.New(s.source.Store, root)
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

// Serve listens and serves until ctx ends, then drains: it reports not ready at once, accepts connections for another
// Options.ShutdownDelay, and cuts off what still runs after Options.DrainTimeout. It returns nil after that, or the
// error of a listener. A plain listener that follows Options.PullHtpasswd is retried instead.
func (s *Server) Serve(ctx context.Context) error {
	registry, diagnostics := s.endpoints()
	if err := listen(ctx, slices.Concat(diagnostics, registry)); err != nil {
		return err
	}
	return s.serve(ctx, registry, diagnostics)
}

func (s *Server) serve(ctx context.Context, registry, diagnostics []*endpoint) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.credentials.Run(background, func() { s.watchPullUsers(background) }) })
	// Not waited for, because the storage may hang.
	go s.health.Run(background)
	go s.collector.Poll(background, s.health.Interval)
	go s.scrubber.Poll(background)
	var writing sync.WaitGroup
	writing.Go(func() { s.space.Poll(background, !storage.ReadOnly(s.options.Config.Storage)) })
	if !storage.ReadOnly(s.options.Config.Storage) {
		writing.Go(func() { s.source.KeepRebuilding(background) })
	}
	if s.certificates != nil {
		running.Go(func() { s.certificates.Run(background) })
	}
	if s.exposed != nil {
		running.Go(func() { s.exposed.Run(background) })
	}
	defer running.Wait()
	// Nothing is written after the end, unless the storage hangs.
	defer waitFor(&writing, s.writeTimeout)
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
