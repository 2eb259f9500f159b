// Package registry is the cluster's OCI registry: configuration, listeners, health and metrics, start and drain.
//
// It does not issue certificates, create credentials, verify signatures, expire content or replicate, and it is not a
// pull-through cache. What happens to a request is in the packages below it: front (who may do what), inspect (what
// zarf-registry asks about the storage), spec (the specification, on github.com/distribution/distribution/v3),
// collect (garbage), volume (its space), content (what is stored), storage (drivers), users, audit and request.
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
	"fmt"
	"log/slog"
	"os"
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

// Open validates the options and everything they refer to: files, certificates, credentials, and write
// access to a filesystem. It opens no listener and does not connect to S3.
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
