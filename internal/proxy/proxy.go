// Package proxy is the registry as a container runtime sees it on its node: an HTTP/1.1 reverse proxy on loopback that
// forwards pulls to the registry over mutual TLS.
//
// It hides what would fail a pull. While the registry restarts, requests wait and are tried again; a body that breaks off
// is continued with a range request; certificates change without a restart. What it cannot hide it never dresses up: a
// body that cannot be completed ends with a broken connection, not with a clean end.
//
// It does not push (GET and HEAD only), cache, authorise (the node's certificate does that, at the registry) or rewrite:
// status, headers and bodies of the registry pass as they are.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

// Defaults of the command line.
const (
	// DefaultRetryTimeout is longer than a registry pod takes to be deleted, scheduled and ready again on a node that holds
	// nothing, and shorter than the minute or more without progress after which runtimes give a pull up.
	DefaultRetryTimeout = 60 * time.Second
	// DefaultDrainTimeout leaves ten seconds of a pod's usual grace period of 30 s for the rest of the shutdown.
	DefaultDrainTimeout = 20 * time.Second
)

// Config says what a Proxy does. Listen, Registry and Source are required.
type Config struct {
	// Listen are the addresses to serve on, as host:port. The host is an IP address, bound strictly, or empty for all
	// addresses of both families. It is never a name: localhost may be either family.
	Listen []string
	// MetricsListen is the address of /healthz, /readyz, /metrics and /loaded, in the same form. Empty: not served.
	MetricsListen string
	// Registry is the registry's Service as host:port. The host is the name that its certificate must be for. The port may
	// be left out where the environment names it. The Service's ClusterIP is taken from the environment
	// (<NAME>_SERVICE_HOST, <NAME>_SERVICE_PORT, as the kubelet sets them for Services of the pod's namespace), because a
	// pull must not depend on cluster DNS, whose own image may be what is pulled. The name is looked up where there is no
	// such variable, and where the ClusterIP cannot be dialled.
	Registry string
	// Source has the certificate that is shown to the registry, and also to clients if ServeTLS is set, and the CAs that
	// the registry's certificate is verified against. The caller runs it.
	Source *tlsfiles.Source
	// ServeTLS answers TLS on the listeners, beside plain HTTP. Without it a ClientHello is answered with a plain HTTP 400.
	ServeTLS bool
	// ReusePort lets another process listen on the same addresses, so that a successor can start before this one ends.
	ReusePort bool
	// RetryTimeout is how long a request waits for a registry that does not answer. Zero: not at all.
	RetryTimeout time.Duration
	// DrainTimeout is how long requests under way may take after Run was told to end. Zero: they are cut off.
	DrainTimeout time.Duration
	// Idle is called when there were requests and then none for some seconds; nil: nothing is.
	Idle func()
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
	// Getenv is os.Getenv if nil.
	Getenv func(string) string
}

// Proxy is a server that is used once: New, Listen, Run.
type Proxy struct {
	config   Config
	log      *limitedLogger
	upstream *upstream
	metrics  *proxyMetrics
	limits   limits
	waiting  atomic.Int64

	listening atomic.Bool
	draining  atomic.Bool

	listeners       []net.Listener
	metricsListener net.Listener
}

// New checks config. It does no I/O.
func New(config Config) (*Proxy, error) {
	switch {
	case len(config.Listen) == 0:
		return nil, errors.New("no address to listen on")
	case config.Source == nil:
		return nil, errors.New("no certificates")
	case config.RetryTimeout < 0:
		return nil, fmt.Errorf("retry timeout %s is negative", config.RetryTimeout)
	case config.DrainTimeout < 0:
		return nil, fmt.Errorf("drain timeout %s is negative", config.DrainTimeout)
	}
	for _, address := range config.Listen {
		if _, err := listenNetwork(address); err != nil {
			return nil, err
		}
	}
	if config.MetricsListen != "" {
		if _, err := listenNetwork(config.MetricsListen); err != nil {
			return nil, err
		}
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Getenv == nil {
		config.Getenv = os.Getenv
	}
	address, err := parseAddress(config.Registry, config.Getenv)
	if err != nil {
		return nil, err
	}
	p := &Proxy{config: config, log: newLimitedLogger(config.Logger), limits: defaultLimits}
	p.metrics = newProxyMetrics(p)
	p.upstream = newUpstream(address, config.Source, &p.limits, p.metrics, p.log)
	config.Source.OnChange(func(*tlsfiles.Material) { p.upstream.dropIdle() })
	return p, nil
}

// Listen opens the listeners. An address of a family that the node lacks is passed over with a warning, as long as
// another one works.
func (p *Proxy) Listen(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			p.closeListeners()
		}
	}()
	var absent []error
	for _, address := range p.config.Listen {
		l, err := listen(ctx, address, p.config.ReusePort)
		if familyAbsent(err) {
			p.config.Logger.Warn("the node has no such address, not listening on it", "address", address, "error", err)
			absent = append(absent, err)
			continue
		}
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
	}
	if len(p.listeners) == 0 {
		return join(absent)
	}
	if p.config.MetricsListen != "" {
		if p.metricsListener, err = listen(ctx, p.config.MetricsListen, p.config.ReusePort); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxy) closeListeners() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	if p.metricsListener != nil {
		_ = p.metricsListener.Close()
	}
}

// Addrs are the addresses that Listen opened, in the order of Config.Listen.
func (p *Proxy) Addrs() []net.Addr {
	addrs := make([]net.Addr, 0, len(p.listeners))
	for _, l := range p.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// MetricsAddr is the address of /metrics; nil if it is not served.
func (p *Proxy) MetricsAddr() net.Addr {
	if p.metricsListener == nil {
		return nil
	}
	return p.metricsListener.Addr()
}

// Run serves until ctx ends, then drains: /readyz fails, the listeners close, requests under way get the drain timeout.
// It returns nil after a drain that was complete.
func (p *Proxy) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: p.limits.readHeader,
		ReadTimeout:       p.limits.read,
		IdleTimeout:       p.limits.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         http1(),
		ErrorLog:          slog.NewLogLogger(p.config.Logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, c)
		},
	}
	front := &front{proxy: p}
	if p.config.ServeTLS {
		front.tls = tlsfiles.ServerConfig(p.config.Source, clientCertificates)
	}
	// It stays up while requests drain: that is when /readyz must tell so.
	admin := &http.Server{
		Handler:           p.admin(),
		ReadHeaderTimeout: p.limits.readHeader,
		ReadTimeout:       p.limits.read,
		WriteTimeout:      p.limits.write,
		IdleTimeout:       p.limits.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         http1(),
		ErrorLog:          server.ErrorLog,
	}

	failed := make(chan error, len(p.listeners)+1)
	var serving sync.WaitGroup
	serve := func(server *http.Server, l net.Listener) {
		serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
		})
	}
	for _, l := range p.listeners {
		p.config.Logger.Info("listening", "address", l.Addr().String(), "tls", p.config.ServeTLS,
			"registry", p.upstream.address.String())
		serve(server, front.listener(l))
	}
	if p.metricsListener != nil {
		serve(admin, p.metricsListener)
	}
	p.listening.Store(true)
	if p.config.Idle != nil {
		watch, cancel := context.WithCancel(ctx)
		defer cancel()
		go p.watchIdle(watch)
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}

	p.draining.Store(true)
	p.config.Logger.Info("draining", "requests", p.metrics.inFlight.Load(), "timeout", p.config.DrainTimeout)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.DrainTimeout)
	defer cancel()
	if p.config.ReusePort {
		_ = admin.Close() // else the kubelet's probes of a successor on the same port would come here
		p.giveWay()
	}
	if server.Shutdown(drain) != nil {
		p.config.Logger.Warn("requests were cut off, draining took too long", "requests", p.metrics.inFlight.Load())
		_ = server.Close()
	}
	_ = admin.Close()
	serving.Wait()
	p.upstream.close()
	return err
}

// underWay is what a connection on loopback gets to be accepted that began before giveWay.
const underWay = 100 * time.Millisecond

// giveWay lets a successor have all connections from now on, and takes those that came
// before.
func (p *Proxy) giveWay() {
	for _, l := range p.listeners {
		if err := giveWay(l); err != nil {
			p.config.Logger.Warn("connections that begin now may be reset", "address", l.Addr().String(), "error", err.Error())
			return
		}
	}
	time.Sleep(underWay)
}

// watchIdle calls Config.Idle once after each time with requests.
func (p *Proxy) watchIdle(ctx context.Context) {
	ticker := time.NewTicker(p.limits.quiet)
	defer ticker.Stop()
	var seen, told uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		n := p.metrics.begun.Load()
		if n == seen && n != told && p.metrics.inFlight.Load() == 0 {
			p.config.Idle()
			told = n
		}
		seen = n
	}
}

// http1 keeps HTTP/2 out: one stream's flow control windows cost more CPU than a connection for each stream does.
func http1() *http.Protocols {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &protocols
}
