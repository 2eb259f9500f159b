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
			catalog.Path: inspect.Catalog(s.source.Store, s.root, &s.draining),
			scrub.Path:   s.scrubber.Handler(&s.draining),
			space.Path:   inspect.Space(s.space.Usage, s.collector.Stored),
			gc.Path:      s.collector.Handler(&s.draining), deletion.Path: s.source.Deletions(&s.draining),
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
