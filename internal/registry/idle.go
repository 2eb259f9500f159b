package registry

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

// lingerTimeout is how long a connection of former certificates may be idle. A client
// that is just about to send its next request gets an answer with "Connection: close"
// instead of a connection that breaks, which it could not always try again.
const lingerTimeout = time.Second

// idleConnections closes the idle connections of former generations of certificates.
// The others the front closes with their next answer: it serves no request that came
// on a connection whose certificate is no longer trusted, idle or not.
type idleConnections struct {
	certificates *tlsfiles.Source
	linger       time.Duration

	mu    sync.Mutex
	conns map[net.Conn]*idleConnection
}

type idleConnection struct {
	generation *tlsfiles.Material // in use when the connection began
	closing    *time.Timer        // nil unless it is idle and of a former generation
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

// changed is called with each new generation.
func (i *idleConnections) changed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for conn, c := range i.conns {
		if c.idle {
			i.closeLater(conn, c)
		}
	}
}

// closeLater is called with the lock held.
func (i *idleConnections) closeLater(conn net.Conn, c *idleConnection) {
	if c.closing == nil && c.generation != i.certificates.Current() {
		c.closing = time.AfterFunc(i.linger, func() {
			i.mu.Lock()
			idle := c.idle
			i.mu.Unlock()
			if idle { // else a request came as the time was over
				_ = conn.Close() // without the lock: it may wait for a client that does not read
			}
		})
	}
}
