package tlsfiles

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// lingerTimeout is how long a connection of a previous generation of certificates may be idle. A client
// that is just sending its next request then gets a response with "Connection: close" instead of a
// broken connection, after which not every request can be retried.
const lingerTimeout = time.Second

// Clients makes the connections of an HTTP server with mutual TLS follow its certificates: requests are served only
// while the client's certificate is valid, and connections of previous generations end. Its methods may be called
// concurrently.
type Clients struct {
	// Linger is how long a connection of a previous generation may be idle. It must not be changed while the server
	// runs.
	Linger time.Duration

	source *Source
	now    func() time.Time

	mu    sync.Mutex
	conns map[net.Conn]*clientConn
}

type clientConn struct {
	generation *Material   // in use when the connection was opened
	closing    *time.Timer // nil unless idle and of a previous generation
	idle       bool
}

// NewClients returns Clients for a server with the certificates of source. The server must use Context and State, and
// its handler Verify.
func NewClients(source *Source, now func() time.Time) *Clients {
	c := &Clients{Linger: lingerTimeout, source: source, now: now, conns: map[net.Conn]*clientConn{}}
	source.OnChange(func(*Material) { c.changed() })
	return c
}

type generationKey struct{}

// Context is for http.Server.ConnContext: it stores the certificates that are in use when a connection is opened.
func (c *Clients) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, generationKey{}, c.source.Current())
}

// Verify verifies a client's certificate again, if it may have expired or the CAs may have changed since the
// connection was opened. A connection of a previous generation serves no further request. An error means that the
// request must not be served.
func (c *Clients) Verify(w http.ResponseWriter, r *http.Request) error {
	now, current := c.now(), c.source.Current()
	chain := r.TLS.PeerCertificates
	stale := r.Context().Value(generationKey{}) != current
	if stale {
		w.Header().Set("Connection", "close")
	} else if now.Before(chain[0].NotAfter) {
		return nil
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots:         current.CAPool,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		w.Header().Set("Connection", "close")
		return fmt.Errorf("the client certificate of this connection is no longer accepted: %w", err)
	}
	return nil
}

// State is for http.Server.ConnState: it closes idle connections of previous generations. The others are closed with
// their next response.
func (c *Clients) State(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.conns[conn]
	if known == nil {
		if state == http.StateNew {
			c.conns[conn] = &clientConn{generation: c.source.Current()}
		}
		return
	}
	known.idle = state == http.StateIdle
	if known.closing != nil {
		known.closing.Stop()
		known.closing = nil
	}
	switch state {
	case http.StateIdle:
		c.closeLater(conn, known)
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
}

// changed is called for each new generation.
func (c *Clients) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, known := range c.conns {
		if known.idle {
			c.closeLater(conn, known)
		}
	}
}

// closeLater requires c.mu.
func (c *Clients) closeLater(conn net.Conn, known *clientConn) {
	if known.closing == nil && known.generation != c.source.Current() {
		known.closing = time.AfterFunc(c.Linger, func() {
			c.mu.Lock()
			idle := known.idle
			c.mu.Unlock()
			if idle { // otherwise a request has just arrived
				_ = conn.Close() // without the lock, because it may wait for a client that does not read
			}
		})
	}
}
