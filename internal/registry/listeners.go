package registry

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/registry/front"
	"github.com/zarf-dev/zarf-registry/internal/registry/inspect"
)

// The listeners' names in logs and metrics.
const (
	listenerTLS      = "tls"
	listenerPlain    = "plain"
	listenerLoopback = "loopback"
	listenerExposed  = "exposed"
)

// listener is where clients of the registry connect, and what they may do there.
type listener struct {
	name, address string // not used if the address is empty
	policy        front.Policy
	certificates  *tlsfiles.Source // nil without TLS
	// sharesPort lets the loopback listener have the port of the plain one: see endpoint.
	sharesPort bool
}

func (s *Server) listeners() []listener {
	o, exposed := s.options, s.exposed
	if exposed == nil {
		exposed = s.certificates
	}
	return []listener{
		{listenerTLS, o.Listen, front.Policy{MutualTLS: true}, s.certificates, false},
		s.plainListener(),
		{listenerLoopback, o.LoopbackListen, front.Policy{Loopback: true}, nil, true},
		{listenerExposed, o.ExposeListen, front.Policy{Exposed: true, AnonymousPull: o.ExposeAnonymousPull}, exposed, false},
	}
}

func (s *Server) plainListener() listener {
	o := s.options
	policy := front.Policy{AnonymousPull: o.AnonymousPull}
	return listener{listenerPlain, o.PlainListen, policy, nil, o.LoopbackListen != ""}
}

// endpoints returns those of the registry, without s.plain, and those for health and metrics.
func (s *Server) endpoints() (registry, diagnostics []*endpoint) {
	for _, l := range s.listeners() {
		if l.address != "" && (l.name != listenerPlain || s.plain == nil) {
			registry = append(registry, s.endpoint(l))
		}
	}
	for _, d := range []struct {
		name, address string
		handler       http.Handler
	}{{"health", s.options.HealthListen, s.healthHandler()}, {"metrics", s.options.MetricsListen, s.metricsHandler()}} {
		if d.address != "" {
			e := newEndpoint(d.name, d.address, d.handler, connlimit.New(maxDiagnostics), s.log)
			e.server.ReadTimeout, e.server.WriteTimeout = diagnosticsTimeout, diagnosticsTimeout
			diagnostics = append(diagnostics, e)
		}
	}
	return registry, diagnostics
}

// endpoint shares the connection limit among successive endpoints of a listener.
func (s *Server) endpoint(l listener) *endpoint {
	f := &front.Front{
		Name: l.name, Policy: l.policy, Credentials: s.credentials, Tokens: s.tokens,
		Next: s.source, Metrics: s.metrics, Log: s.log, Draining: &s.draining, Now: s.now, IdleTimeout: s.idleTimeout,
	}
	e := newEndpoint(l.name, l.address, f, s.connections[l.name], s.log)
	e.sharesPort = l.sharesPort
	authentication := tls.NoClientCert
	if l.policy.MutualTLS {
		f.Clients = s.clients
		f.Next = own(map[string]http.Handler{
			catalog.Path: inspect.Catalog(s.source.Store, s.root, &s.draining),
			scrub.Path:   s.scrubber.Handler(&s.draining),
			space.Path:   inspect.Space(s.space.Usage, s.collector.Stored),
			gc.Path:      s.collector.Handler(&s.draining), deletion.Path: s.source.Deletions(&s.draining),
		}, s.source)
		authentication = tls.RequireAndVerifyClientCert
		e.server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return s.clients.Context(connlimit.Context(ctx, c))
		}
		e.server.ConnState = s.clients.State
	}
	if l.certificates != nil {
		e.server.TLSConfig = tlsfiles.ServerConfig(l.certificates, authentication, "http/1.1")
	}
	return e
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
