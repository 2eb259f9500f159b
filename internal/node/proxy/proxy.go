// Package proxy is the HTTP/1.1 reverse proxy through which the container runtime of a node pulls
// from the registry, or from caches if there are any. It serves the node's loopback address, behind a
// hostPort or in the node's network, and forwards requests over mutual TLS.
//
// It hides failures that would fail a pull: requests wait and are retried while the registry
// restarts, interrupted bodies are resumed with a range request, and certificates reload without a
// restart. A body that cannot be completed always ends with a broken connection, never with a clean
// end.
//
// The proxy serves GET and HEAD only. It does not cache, and it does not authorize: the registry
// does, by the node's certificate. It does not rewrite responses: status, headers and body pass
// unchanged.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/drain"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
	"github.com/zarf-dev/zarf-registry/internal/net/serviceaddress"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

// Defaults of the command-line flags.
const (
	// DefaultRetryTimeout is longer than a registry pod takes to be deleted, scheduled and ready again
	// on a node that has none of its files, and shorter than the minute or more without progress after
	// which runtimes abort a pull.
	DefaultRetryTimeout = 60 * time.Second
	// DefaultDrainTimeout leaves ten seconds of a pod's default grace period of 30 s for the rest of
	// the shutdown.
	DefaultDrainTimeout = 20 * time.Second
)

// Config configures a Proxy. Listen, Registry and Source are required.
type Config struct {
	// Version is what the log and the metric build_info report.
	Version string
	// Program is the SHA-256 of the program, for /loaded. It is empty if the loader did not start it.
	Program string
	// Listen lists the addresses to serve on, as host:port. The host is an IP address, bound strictly,
	// or empty for all addresses of both families. It must not be a name: localhost may resolve to
	// either family.
	Listen []string
	// MetricsListen is the address of /healthz, /readyz, /metrics and /loaded, in the same form. Empty
	// disables it.
	MetricsListen string
	// Registry is the registry's Service as host:port, see [serviceaddress.Parse]. The name is resolved
	// only if the environment has no ClusterIP or it cannot be dialed.
	Registry string
	// Cache is the Service of the cache pods, as Registry is the registry's. Empty: there are none. What
	// caches serve is requested from them first, and from the registry if they fail.
	Cache string
	// Source provides the client certificate for the registry, the CAs that verify the registry's
	// certificate, and, with ServeTLS, the server certificate for clients. The caller runs it.
	Source *tlsfiles.Source
	// ServeTLS serves TLS next to plain HTTP on the listeners. If it is false, a ClientHello gets a
	// plain HTTP 400.
	ServeTLS bool
	// ReusePort lets another process of the same user listen on the same addresses, so that a successor
	// can start before this one ends. A successor with another user waits until this one ends.
	ReusePort bool
	// RetryTimeout is how long a request waits for an unavailable registry. Zero disables waiting.
	RetryTimeout time.Duration
	// DrainTimeout is how long requests in flight, and the delivery of their responses, may take after
	// Run's context has ended. Zero cuts them off. New requests are accepted until nothing is in
	// flight, at most for half of it, unless a successor receives them.
	DrainTimeout time.Duration
	// Waiting, if not nil, is called with the reason if Listen has to wait.
	Waiting func(reason string)
	// Ready, if not nil, is called once Run serves.
	Ready func()
	// Idle, if not nil, is called once requests have been followed by some seconds without any.
	Idle func()
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Getenv defaults to os.Getenv.
	Getenv func(string) string
}

// Proxy is a server for a single use: New, Listen, Run.
type Proxy struct {
	config   Config
	log      *logging.Limited
	upstream *upstream // the registry
	cache    *upstream // nil without caches
	slots    *slots    // of both
	metrics  *proxyMetrics
	limits   limits
	// cacheLimits are shorter than limits: there is another source.
	cacheLimits limits
	buffers     *buffers
	waiting     atomic.Int64

	cacheFailures atomic.Int32 // in a row
	cacheRetryAt  atomic.Int64 // Unix time in nanoseconds; until then, caches are not asked

	listening atomic.Bool
	draining  atomic.Bool

	connections     *connlimit.Limiter
	deliveries      drain.Deliveries
	listeners       []net.Listener
	metricsListener net.Listener
}

// New validates config. It does no I/O.
func New(config Config) (*Proxy, error) {
	switch {
	case len(config.Listen) == 0:
		return nil, errors.New("no listen address")
	case config.Source == nil:
		return nil, errors.New("no certificates")
	case config.RetryTimeout < 0:
		return nil, fmt.Errorf("invalid retry timeout %s: must not be negative", config.RetryTimeout)
	case config.DrainTimeout < 0:
		return nil, fmt.Errorf("invalid drain timeout %s: must not be negative", config.DrainTimeout)
	}
	for _, address := range config.Listen {
		if _, err := listen.Network(address); err != nil {
			return nil, err
		}
	}
	if config.MetricsListen != "" {
		if _, err := listen.Network(config.MetricsListen); err != nil {
			return nil, err
		}
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Getenv == nil {
		config.Getenv = os.Getenv
	}
	address, err := serviceaddress.Parse(config.Registry, config.Getenv)
	if err != nil {
		return nil, fmt.Errorf("registry %w", err)
	}
	p := &Proxy{
		config: config, log: logging.NewLimited(config.Logger), limits: defaultLimits, cacheLimits: defaultCacheLimits,
		buffers: newBuffers(), connections: connlimit.New(maxConnections),
	}
	p.metrics = newProxyMetrics(p)
	p.slots = newSlots(maxUpstream, p.metrics.pauses)
	p.upstream = newUpstream("registry", address, config.Source, &p.limits, p.metrics.registry, p.slots, p.log)
	if config.Cache != "" {
		if address, err = serviceaddress.Parse(config.Cache, config.Getenv); err != nil {
			return nil, fmt.Errorf("cache %w", err)
		}
		p.useCaches(address)
	}
	config.Source.OnChange(func(*tlsfiles.Material) {
		p.upstream.closeOutdated()
		if p.cache != nil {
			p.cache.closeOutdated()
		}
	})
	return p, nil
}

// useCaches makes caches the first source of what they serve.
func (p *Proxy) useCaches(address serviceaddress.Address) {
	p.metrics.addCaches()
	p.cache = newUpstream("cache", address, p.config.Source, &p.cacheLimits, p.metrics.cache, p.slots, p.log)
	p.cache.lookupHost = nil // the registry is the next to ask, and takes less time
}

// Listen opens the listeners. It skips addresses that the node lacks with a warning, as long as at
// least one works.
func (p *Proxy) Listen(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			p.closeListeners()
		}
	}()
	// First the metrics port: nobody accepts what clients send to the others while this waits.
	if p.config.MetricsListen != "" {
		p.metricsListener, err = p.listenWhenFree(ctx, p.config.MetricsListen)
		if err != nil {
			return err
		}
	}
	var unavailable []error
	for _, address := range p.config.Listen {
		l, err := p.listenWhenFree(ctx, address)
		if listen.Unavailable(err) {
			p.config.Logger.Warn("address not available on this node, skipping it", "address", address, "error", err)
			unavailable = append(unavailable, err)
			continue
		}
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
	}
	if len(p.listeners) == 0 {
		return join(unavailable)
	}
	return nil
}

// listenWhenFree listens. With ReusePort, it waits for a process that cannot share the port (SO_REUSEPORT), because it
// runs as another user or does not share it.
func (p *Proxy) listenWhenFree(ctx context.Context, address string) (net.Listener, error) {
	open := func() (net.Listener, error) {
		// Accepted connections inherit the limit of what is not sent.
		return listen.Open(ctx, address, listen.Options{ReusePort: p.config.ReusePort, Unsent: unsentSize})
	}
	if !p.config.ReusePort {
		return open()
	}
	return listen.WhenFree(ctx, func() {
		p.config.Logger.Warn("the port is in use by a process that does not share it, waiting until it ends",
			"address", address)
		if p.config.Waiting != nil {
			p.config.Waiting(address + " is in use by a process that does not share it: of another user, or no proxy")
		}
	}, open)
}

func (p *Proxy) closeListeners() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	if p.metricsListener != nil {
		_ = p.metricsListener.Close()
	}
}

// Addrs returns the addresses that Listen opened, in the order of Config.Listen.
func (p *Proxy) Addrs() []net.Addr {
	addrs := make([]net.Addr, 0, len(p.listeners))
	for _, l := range p.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// MetricsAddr returns the address of the metrics port, or nil if it is not served.
func (p *Proxy) MetricsAddr() net.Addr {
	if p.metricsListener == nil {
		return nil
	}
	return p.metricsListener.Addr()
}
