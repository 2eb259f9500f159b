package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// wrapping makes a dialer's connections those of this package.
func (r *Registry) wrapping(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		tcp, _ := c.(*net.TCPConn)
		return &conn{Conn: c, tcp: tcp, registry: r, closed: make(chan struct{})}, nil
	}
}

// answerGrace is for an answer that has arrived and was not looked at yet.
const answerGrace = 100 * time.Millisecond

// conn is a connection to which a file's part goes without passing through this
// program, if it is one of TCP: net/http hands a request's body to it where there
// is no TLS.
//
// What cannot be written any more it tells a moment later: whoever closed the
// connection on a blob has often said why, and net/http would drop the answer on
// hearing that its request did not go.
type conn struct {
	net.Conn
	tcp      *net.TCPConn // Conn, if it is one
	registry *Registry
	once     sync.Once
	closed   chan struct{}
}

// ReadFrom implements [io.ReaderFrom].
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	limited, _ := r.(*io.LimitedReader)
	if limited != nil && c.tcp != nil {
		if body, ok := limited.R.(*payload); ok && body.part != nil {
			n, err := body.sendTo(c.tcp, limited.N)
			limited.N -= n
			c.registry.fromFiles.Add(n)
			var failed *net.OpError
			if errors.As(err, &failed) {
				err = c.later(err)
			}
			return n, err
		}
	}
	return io.Copy(struct{ io.Writer }{c}, r)
}

// Write implements [io.Writer].
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.later(err)
}

// later returns the error later.
func (c *conn) later(err error) error {
	if err != nil {
		timer := time.NewTimer(answerGrace)
		defer timer.Stop()
		select {
		case <-c.closed:
		case <-timer.C:
		}
	}
	return err
}

// Close implements [io.Closer].
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
