package remote

import (
	"context"
	"net"
	"sync"
	"time"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialWithGrace returns a dialer whose connections are of type conn.
func dialWithGrace(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, closed: make(chan struct{})}, nil
	}
}

// responseGrace is for a response that has arrived but was not read yet.
const responseGrace = 100 * time.Millisecond

// conn delays write errors. A registry that closes the connection during an upload has often sent an error response
// first, which net/http drops when it learns that the write failed.
type conn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// Write implements [io.Writer].
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		timer := time.NewTimer(responseGrace)
		defer timer.Stop()
		select {
		case <-c.closed:
		case <-timer.C:
		}
	}
	return n, err
}

// Close implements [io.Closer].
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
