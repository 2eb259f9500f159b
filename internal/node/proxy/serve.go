package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
	"github.com/zarf-dev/zarf-registry/internal/net/protocolmux"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

// clientCertificates is NoClientCert because container runtimes have no certificate to present.
const clientCertificates = tls.NoClientCert

type servers struct {
	clients, admin           *http.Server
	accepting, administering sync.WaitGroup
	failed                   chan error
	unanswered               unanswered
}

// Run serves until ctx ends, then drains: /readyz fails, new requests are accepted until nothing is
// in flight or until a successor has the port, the listeners close, and what was written is
// delivered. It returns nil after it has drained, even if requests were cut off.
func (p *Proxy) Run(ctx context.Context) error {
	s := p.serve()
	p.listening.Store(true)
	if p.config.Ready != nil {
		p.config.Ready()
	}
	if p.config.Idle != nil {
		watch, cancel := context.WithCancel(ctx)
		defer cancel()
		go p.watchIdle(watch)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	p.draining.Store(true)
	p.config.Logger.Info("draining", "requests", p.metrics.inFlight.Load(), "timeout", p.config.DrainTimeout)
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.DrainTimeout)
	defer cancel()
	p.drain(draining, s, err == nil)
	p.upstream.close()
	if p.cache != nil {
		p.cache.close()
	}
	return err
}

func (p *Proxy) serve() *servers {
	s := &servers{failed: make(chan error, len(p.listeners)+1)}
	s.clients = p.server(connlimit.Handler(p))
	s.clients.ConnState = s.unanswered.record
	s.clients.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(connlimit.Context(ctx, c), clientKey{}, c.(*connlimit.Conn).Conn)
	}
	mux := &protocolmux.Mux{Refused: p.metrics.tlsRefused.Inc, WriteTimeout: p.limits.write}
	if p.config.ServeTLS {
		mux.TLS = tlsfiles.ServerConfig(p.config.Source, clientCertificates)
	}
	for _, l := range p.listeners {
		p.config.Logger.Info("listening", "address", l.Addr().String(), "tls", p.config.ServeTLS,
			"registry", p.upstream.address.String())
		s.start(&s.accepting, s.clients, p.connections.Listener(mux.Listener(p.deliveries.Listener(l))))
	}
	// The admin server stays up while requests drain, so that /readyz reports it.
	s.admin = p.server(p.admin())
	s.admin.WriteTimeout = p.limits.write
	if p.metricsListener != nil {
		s.start(&s.administering, s.admin, p.metricsListener)
	}
	return s
}

func (p *Proxy) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: p.limits.readHeader,
		ReadTimeout:       p.limits.read,
		IdleTimeout:       p.limits.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         http1(),
		ErrorLog:          slog.NewLogLogger(p.config.Logger.Handler(), slog.LevelDebug),
	}
}

func (s *servers) start(serving *sync.WaitGroup, server *http.Server, l net.Listener) {
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
		}
	})
}

// drain ends the servers when the requests in flight are done, or when ctx ends. If they are healthy, it first
// accepts requests until nothing is in flight.
func (p *Proxy) drain(ctx context.Context, s *servers, healthy bool) {
	if p.config.ReusePort {
		_ = s.admin.Close() // else it would receive the kubelet's probes of a successor on the same port
		p.handOff()
	}
	if healthy {
		s.clients.SetKeepAlivesEnabled(false)
		p.quiesce()
	}
	// The server drops requests that it reads after Shutdown has begun, so those of accepted connections come first.
	for _, l := range p.listeners {
		_ = l.Close()
	}
	s.accepting.Wait()
	s.unanswered.wait(ctx, p.limits.silent)
	if s.clients.Shutdown(ctx) != nil {
		p.config.Logger.Warn("drain timeout exceeded, requests cut off", "requests", p.metrics.inFlight.Load())
		_ = s.clients.Close()
	}
	if left := p.deliveries.Wait(ctx); left > 0 {
		p.config.Logger.Warn("drain timeout exceeded, responses not delivered", "connections", left)
	}
	_ = s.admin.Close()
	s.administering.Wait()
}

// quiesceInterval is how often quiesce looks at requests and deliveries.
const quiesceInterval = 10 * time.Millisecond

// quiesce goes on serving until nothing is in flight and everything is delivered. Without a successor
// nobody else has the port until this pod is gone, so a closed listener would refuse pulls for as
// long as others take to end. The second half of the drain timeout is for what is then still left.
func (p *Proxy) quiesce() {
	deadline := time.Now().Add(p.config.DrainTimeout / 2)
	for (p.metrics.inFlight.Load() > 0 || p.deliveries.Pending() > 0) && time.Now().Before(deadline) {
		time.Sleep(quiesceInterval)
	}
}

// unanswered are the connections whose client waits for a response, or has not sent a request yet. The zero value is
// ready for use.
type unanswered struct {
	mu    sync.Mutex
	conns map[net.Conn]time.Time // when it was accepted; zero once there is a request
}

// record is for http.Server.ConnState.
func (u *unanswered) record(c net.Conn, s http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch s {
	case http.StateNew:
		if u.conns == nil {
			u.conns = map[net.Conn]time.Time{}
		}
		u.conns[c] = time.Now()
	case http.StateActive:
		u.conns[c] = time.Time{}
	default:
		delete(u.conns, c)
	}
}

// wait waits until there are none, apart from silent ones, or until ctx ends.
func (u *unanswered) wait(ctx context.Context, silent time.Duration) {
	for ctx.Err() == nil && u.any(silent) {
		time.Sleep(quiesceInterval)
	}
}

func (u *unanswered) any(silent time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, accepted := range u.conns {
		if accepted.IsZero() || time.Since(accepted) < silent {
			return true
		}
	}
	return false
}

// acceptGrace is how long connections that started before the hand-off have to be accepted.
const acceptGrace = 100 * time.Millisecond

// handOff sends new connections to the successor and leaves time to accept the pending ones.
func (p *Proxy) handOff() {
	for _, l := range p.listeners {
		if err := listen.HandOff(l); err != nil {
			p.config.Logger.Warn("cannot hand off the listener, new connections may be reset",
				"address", l.Addr().String(), "error", err.Error())
			return
		}
	}
	time.Sleep(acceptGrace)
}

// watchIdle calls Config.Idle once after each period with requests.
func (p *Proxy) watchIdle(ctx context.Context) {
	ticker := time.NewTicker(p.limits.quiet)
	defer ticker.Stop()
	var seen, reported uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		n := p.metrics.started.Load()
		if n == seen && n != reported && p.metrics.inFlight.Load() == 0 {
			p.config.Idle()
			reported = n
		}
		seen = n
	}
}

// http1 disables HTTP/2: flow control of multiplexed streams costs more CPU time than one
// connection per stream.
func http1() *http.Protocols {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &protocols
}
