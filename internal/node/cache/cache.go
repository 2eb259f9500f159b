// Package cache is the server of a cache pod, which stands between the proxies of the nodes and the
// registry: the registry sends each cache one copy of what many nodes pull.
//
// A cache serves GET and HEAD of blobs and manifests over mutual TLS, with the headers of the registry, so
// that an interrupted body may be resumed at either. Content is stored under its digest, in a bounded
// directory. It is fetched once however many clients request it, who follow the growing file, and it is
// verified before it becomes complete and whenever it is read. What a tag names is asked of the registry
// each time, and whether it still serves a digest every few seconds.
//
// A cache decides nothing: it authorizes the proxies by their certificates, and serves them what the
// registry serves its own certificate. Whatever goes wrong, the client gets a 503 or a broken connection,
// and asks the registry itself. With Config.StaleFor, it serves what the registry served last while that is
// unreachable.
package cache

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
	"github.com/zarf-dev/zarf-registry/internal/net/serviceaddress"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

const (
	// DefaultDrainTimeout leaves ten seconds of a pod's default grace period of 30 s for the rest of
	// the shutdown.
	DefaultDrainTimeout = 20 * time.Second
	// maxConnections is how many clients may be connected: 341 nodes with three layers each. One that reads
	// slowly takes 120 KiB, and as much in the kernel. Proxies close idle ones after ten seconds.
	maxConnections = 1024
	// unsentSize is how much the kernel keeps for a client that does not read.
	unsentSize = chunkSize
	// maxIdle is how many idle connections to the registry are kept.
	maxIdle = 32
	// maxHeaderBytes bounds a request's header. Proxies send less than 1 KiB.
	maxHeaderBytes = 32 << 10
	// lameDuck is how long new connections are accepted after /readyz fails: until the proxies' nodes
	// have noticed.
	lameDuck = 2 * time.Second

	readTimeout = 10 * time.Second
	idleTimeout = 30 * time.Second // longer than proxies keep a connection
)

// Config configures a Cache. Listen, Registry, Source, Dir and Size are required.
type Config struct {
	// Version is what the log and the metric build_info report.
	Version string
	// Program is the SHA-256 of the program, for /loaded. It is empty if the loader did not start it.
	Program string
	// Listen is the address to serve on with TLS, as host:port; MetricsListen that of /healthz, /readyz,
	// /metrics and /loaded, which are not served if it is empty.
	Listen, MetricsListen string
	// Registry is the registry's Service as host:port. See [serviceaddress.Parse].
	Registry string
	// Source provides the certificate, which is both the server's and the client's for the registry, and
	// the CAs that verify clients and the registry. The caller runs it.
	Source *tlsfiles.Source
	// Dir is the directory of the stored content, which belongs to the cache: it deletes other files in it.
	// Content of a previous run is used again.
	Dir string
	// Size is how many bytes of content are stored at most. The least recently used is evicted.
	Size int64
	// StaleFor is how long after the registry has confirmed it last what a tag names is served while the
	// registry is unreachable. Zero disables it.
	StaleFor time.Duration
	// DrainTimeout is how long requests in flight may take after Run's context has ended. Zero cuts them off.
	DrainTimeout time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Getenv defaults to os.Getenv.
	Getenv func(string) string
	// Now defaults to time.Now. It is for clients' certificates.
	Now func() time.Time
}

// Cache is a server for a single use: New, Listen, Run.
type Cache struct {
	config        Config
	log           *logging.Limited
	metrics       *cacheMetrics
	store         *store
	origin        *origin
	confirmations *lru.Cache[string, *confirmation]
	flights       singleflight.Group
	connections   *connlimit.Limiter
	clients       *tlsfiles.Clients
	confirmFor    time.Duration // confirmFor, the constant
	lameDuck      time.Duration // lameDuck, the constant
	staleFor      time.Duration

	ctx     context.Context //nolint:containedctx // of all fetches
	cancel  context.CancelFunc
	fetches sync.WaitGroup

	reached atomic.Int64 // when the registry last responded, Unix time in nanoseconds
	retryAt atomic.Int64 // until when it counts as unreachable

	serving, draining         atomic.Bool
	listener, metricsListener net.Listener
}

// New validates config. It does no I/O.
func New(config Config) (*Cache, error) {
	switch {
	case config.Source == nil:
		return nil, errors.New("no certificates")
	case config.Dir == "":
		return nil, errors.New("no directory")
	case config.Size <= 0:
		return nil, fmt.Errorf("invalid size %d: want a positive number of bytes", config.Size)
	case config.StaleFor < 0:
		return nil, fmt.Errorf("invalid time for stale content %s: must not be negative", config.StaleFor)
	case config.DrainTimeout < 0:
		return nil, fmt.Errorf("invalid drain timeout %s: must not be negative", config.DrainTimeout)
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Getenv == nil {
		config.Getenv = os.Getenv
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	address, err := serviceaddress.Parse(config.Registry, config.Getenv)
	if err != nil {
		return nil, fmt.Errorf("registry %w", err)
	}
	c := &Cache{config: config, log: logging.NewLimited(config.Logger), connections: connlimit.New(maxConnections),
		confirmFor: confirmFor, lameDuck: lameDuck, staleFor: config.StaleFor}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.metrics = newCacheMetrics(c)
	c.origin = &origin{address: address, source: config.Source, metrics: c.metrics, progressTimeout: progressTimeout}
	if c.confirmations, err = lru.New[string, *confirmation](maxConfirmations); err != nil {
		return nil, err
	}
	c.clients = tlsfiles.NewClients(config.Source, config.Now)
	config.Source.OnChange(func(*tlsfiles.Material) { c.origin.current() })
	return c, nil
}

// Listen opens the listeners, and the directory. It waits up to a minute for a predecessor that drains: only one
// process may use the directory for long.
func (c *Cache) Listen(ctx context.Context) (err error) {
	defer func() {
		for _, l := range []net.Listener{c.listener, c.metricsListener} {
			if err != nil && l != nil {
				_ = l.Close()
			}
		}
	}()
	// First the metrics port: nobody accepts what clients send to the other one while this waits.
	if c.config.MetricsListen != "" {
		if c.metricsListener, err = c.listenWhenFree(ctx, c.config.MetricsListen); err != nil {
			return err
		}
	}
	if c.listener, err = c.listenWhenFree(ctx, c.config.Listen); err != nil {
		return err
	}
	if c.store, err = openStore(c.config.Dir, c.config.Size, c.metrics); err != nil {
		return fmt.Errorf("opening the directory %s: %w", c.config.Dir, err)
	}
	return nil
}

func (c *Cache) listenWhenFree(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{
		Control: func(_, _ string, c syscall.RawConn) error { return listen.LimitUnsent(c, unsentSize) },
	}
	return listen.WhenFree(ctx, func() {
		c.config.Logger.Info("the port is in use, waiting for the previous program to end", "address", address)
	}, func() (net.Listener, error) { return config.Listen(ctx, "tcp", address) })
}

// Addr returns the address that Listen opened, and MetricsAddr that of the metrics port, or nil.
func (c *Cache) Addr() net.Addr { return c.listener.Addr() }

// MetricsAddr returns the address of the metrics port, or nil if it is not served.
func (c *Cache) MetricsAddr() net.Addr {
	if c.metricsListener == nil {
		return nil
	}
	return c.metricsListener.Addr()
}

// Run serves until ctx ends, then drains: /readyz fails, new connections are accepted for two more seconds,
// and requests in flight are completed. It returns nil after it has drained, even if requests were cut off.
func (c *Cache) Run(ctx context.Context) error {
	errorLog := slog.NewLogLogger(c.config.Logger.Handler(), slog.LevelDebug)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:           connlimit.Handler(c),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         &protocols,
		ErrorLog:          errorLog,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return c.clients.Context(connlimit.Context(ctx, conn))
		},
		ConnState: c.clients.State,
	}
	admin := &http.Server{
		Handler: c.admin(), ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: readTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, Protocols: &protocols, ErrorLog: errorLog,
	}
	failed := make(chan error, 2)
	var serving sync.WaitGroup
	serve := func(server *http.Server, l net.Listener) {
		serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
		})
	}
	serve(server, tls.NewListener(c.connections.Listener(c.listener),
		tlsfiles.ServerConfig(c.config.Source, tls.RequireAndVerifyClientCert)))
	if c.metricsListener != nil {
		serve(admin, c.metricsListener)
	}
	used, blobs := c.store.usage()
	c.config.Logger.Info("listening", "address", c.Addr().String(), "registry", c.origin.address.String(),
		"size", c.config.Size, "used", used, "blobs", blobs, "staleFor", c.config.StaleFor.String())
	c.serving.Store(true)

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	c.draining.Store(true)
	c.config.Logger.Info("draining", "requests", c.metrics.inFlight.Load(), "timeout", c.config.DrainTimeout)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.DrainTimeout)
	defer cancel()
	if err == nil {
		select {
		case <-time.After(min(c.lameDuck, c.config.DrainTimeout/2)):
		case <-drain.Done():
		}
	}
	if server.Shutdown(drain) != nil {
		c.config.Logger.Warn("drain timeout exceeded, requests cut off", "requests", c.metrics.inFlight.Load())
		_ = server.Close()
	}
	c.cancel()
	_ = admin.Close()
	serving.Wait()
	c.fetches.Wait()
	return err
}
