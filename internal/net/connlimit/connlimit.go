// Package connlimit limits the connections of an HTTP server. At the limit, a new connection replaces
// one that waits for its client: for a request, or because the client does not read the response. A
// client that opens connections and stalls can therefore not lock others out.
package connlimit

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// admitTimeout is how long a new connection waits while all others are busy. The next ones wait in the
	// kernel.
	admitTimeout = 5 * time.Second
	// admitInterval is how often it looks for one to replace.
	admitInterval = 5 * time.Millisecond
)

// Limiter limits the connections of its listeners together. Its methods may be called concurrently.
type Limiter struct {
	limit   int
	timeout time.Duration // admitTimeout

	mu    sync.Mutex
	conns map[*Conn]struct{}
	peers map[string]int // connections by address

	dropped atomic.Uint64
}

// New returns a limiter for at most limit connections.
func New(limit int) *Limiter {
	return &Limiter{limit: limit, timeout: admitTimeout, conns: map[*Conn]struct{}{}, peers: map[string]int{}}
}

// Open returns the number of open connections.
func (l *Limiter) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Dropped returns how many connections were closed because of the limit.
func (l *Limiter) Dropped() uint64 { return l.dropped.Load() }

// Listener returns a listener whose connections are *Conn. The server needs Context as ConnContext, and
// Handler.
func (l *Limiter) Listener(listener net.Listener) net.Listener {
	return &limited{Listener: listener, limiter: l, closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	limiter *Limiter
	closing sync.Once
	closed  chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.await(accepted); c != nil {
			return c, nil
		}
		l.limiter.dropped.Add(1)
		reset(accepted)
	}
}

// await returns nil if the connection must be dropped.
func (l *limited) await(accepted net.Conn) *Conn {
	for end := time.Now().Add(l.limiter.timeout); ; {
		if c := l.limiter.admit(accepted); c != nil || time.Now().After(end) {
			return c
		}
		select {
		case <-l.closed:
			return nil
		case <-time.After(admitInterval):
		}
	}
}

func (l *limited) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// admit returns nil if the limit is reached and no connection waits for its client.
func (l *Limiter) admit(accepted net.Conn) *Conn {
	peer, _, err := net.SplitHostPort(accepted.RemoteAddr().String())
	if err != nil {
		peer = accepted.RemoteAddr().String()
	}
	c := &Conn{Conn: accepted, limiter: l, peer: peer}
	c.Idle()
	l.mu.Lock()
	var drop *Conn
	if len(l.conns) >= l.limit {
		if drop = l.stalestLocked(); drop == nil {
			l.mu.Unlock()
			return nil
		}
		l.removeLocked(drop)
	}
	l.conns[c] = struct{}{}
	l.peers[peer]++
	l.mu.Unlock()
	if drop != nil {
		l.dropped.Add(1)
		reset(drop.Conn)
	}
	return c
}

// stalestLocked returns the connection that has waited longest for its client, among those of the
// address with the most connections.
func (l *Limiter) stalestLocked() (stalest *Conn) {
	var peers int
	var since int64
	now := time.Now().UnixNano()
	for c := range l.conns {
		waiting, n := c.since.Load(), l.peers[c.peer]
		if waiting != 0 && waiting <= now && (stalest == nil || n > peers || n == peers && waiting < since) {
			stalest, peers, since = c, n, waiting
		}
	}
	return stalest
}

func (l *Limiter) remove(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(c)
}

func (l *Limiter) removeLocked(c *Conn) {
	if _, open := l.conns[c]; !open {
		return
	}
	delete(l.conns, c)
	if l.peers[c.peer]--; l.peers[c.peer] == 0 {
		delete(l.peers, c.peer)
	}
}

// reset drops what a connection has not sent yet, if it can: its client may never read that.
func reset(c net.Conn) {
	if r, can := c.(interface{ Reset() }); can {
		r.Reset()
		return
	}
	_ = c.Close()
}

// Conn is a limited connection.
type Conn struct {
	net.Conn
	limiter *Limiter
	peer    string
	since   atomic.Int64 // Unix time in nanoseconds since when it waits for its client; 0: it does not
	handled atomic.Bool  // the next read is for another request
}

// Idle notes that the connection waits for its client from now on.
func (c *Conn) Idle() { c.since.Store(time.Now().UnixNano()) }

// Busy notes that the connection does not wait for its client: the server works on a request.
func (c *Conn) Busy() {
	c.handled.Store(false)
	c.since.Store(0)
}

// Read waits for the client if the previous request has been handled.
func (c *Conn) Read(p []byte) (int, error) {
	if c.handled.CompareAndSwap(true, false) {
		c.Idle()
	}
	return c.Conn.Read(p)
}

// Write counts as waiting for the client, unless the kernel takes the data at once.
func (c *Conn) Write(p []byte) (int, error) {
	if since := time.Now().Add(admitInterval).UnixNano(); c.since.CompareAndSwap(0, since) {
		defer c.since.CompareAndSwap(since, 0)
	}
	return c.Conn.Write(p)
}

// CloseWrite ends the stream to the client, if the connection can.
func (c *Conn) CloseWrite() error {
	if closer, can := c.Conn.(interface{ CloseWrite() error }); can {
		return closer.CloseWrite()
	}
	return nil
}

// Close closes the connection, which then no longer counts.
func (c *Conn) Close() error {
	c.limiter.remove(c)
	return c.Conn.Close()
}

type contextKey struct{}

// Context is for http.Server.ConnContext.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secure, is := c.(interface{ NetConn() net.Conn }); is {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the connection of a request, or nil if it is not limited.
func From(ctx context.Context) *Conn {
	c, _ := ctx.Value(contextKey{}).(*Conn)
	return c
}

// Handler marks connections as busy while next handles their requests, and until the server has sent the response.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := From(r.Context()); c != nil {
			c.Busy()
			defer c.handled.Store(true)
		}
		next.ServeHTTP(w, r)
	})
}
