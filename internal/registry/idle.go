package registry

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

// lingerTimeout is how long a connection of a previous generation of certificates may be idle. A client
// that is just sending its next request then gets a response with "Connection: close" instead of a
// broken connection, after which not every request can be retried.
const lingerTimeout = time.Second

// idleConnections closes idle connections of previous generations of certificates. The front end closes
// the others with their next response; it serves no request whose client certificate is no longer
// trusted, on any connection.
type idleConnections struct {
	certificates *tlsfiles.Source
	linger       time.Duration

	mu    sync.Mutex
	conns map[net.Conn]*idleConnection
}

type idleConnection struct {
	generation *tlsfiles.Material // in use when the connection was opened
	closing    *time.Timer        // nil unless idle and of a previous generation
	idle       bool
}

func newIdleConnections(certificates *tlsfiles.Source) *idleConnections {
	i := &idleConnections{certificates: certificates, linger: lingerTimeout, conns: map[net.Conn]*idleConnection{}}
	certificates.OnChange(func(*tlsfiles.Material) { i.changed() })
	return i
}

// state is http.Server.ConnState.
func (i *idleConnections) state(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := i.conns[conn]
	if c == nil {
		if state == http.StateNew {
			i.conns[conn] = &idleConnection{generation: i.certificates.Current()}
		}
		return
	}
	c.idle = state == http.StateIdle
	if c.closing != nil {
		c.closing.Stop()
		c.closing = nil
	}
	switch state {
	case http.StateIdle:
		i.closeLater(conn, c)
	case http.StateClosed, http.StateHijacked:
		delete(i.conns, conn)
	}
}

// changed is called for each new generation.
func (i *idleConnections) changed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for conn, c := range i.conns {
		if c.idle {
			i.closeLater(conn, c)
		}
	}
}

// closeLater requires i.mu.
func (i *idleConnections) closeLater(conn net.Conn, c *idleConnection) {
	if c.closing == nil && c.generation != i.certificates.Current() {
		c.closing = time.AfterFunc(i.linger, func() {
			i.mu.Lock()
			idle := c.idle
			i.mu.Unlock()
			if idle { // otherwise a request has just arrived
				_ = conn.Close() // without the lock, because it may wait for a client that does not read
			}
		})
	}
}
