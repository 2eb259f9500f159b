package remote

import (
	"context"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Rate limits what clients that share it receive and send. It is safe for concurrent use.
type Rate struct{ received, sent *rate.Limiter }

// NewRate returns a limit of so many bytes per second in each direction, TLS included.
func NewRate(bytesPerSecond int64) *Rate {
	// Small enough for other connections not to wait long, and large enough to need few timers: a tenth of a second.
	burst := int(min(max(bytesPerSecond/10, 4<<10), 1<<20))
	return &Rate{rate.NewLimiter(rate.Limit(bytesPerSecond), burst), rate.NewLimiter(rate.Limit(bytesPerSecond), burst)}
}

func dialWithGrace(dial dialFunc, rate *Rate) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, rate: rate, closed: make(chan struct{})}, nil
	}
}

// responseGrace is for a response that has arrived but was not read yet.
const responseGrace = 100 * time.Millisecond

// conn delays write errors. A registry that closes the connection during an upload has often sent an error response
// first, which net/http drops when it learns that the write failed. If there is a rate, it holds reads and writes back.
type conn struct {
	net.Conn
	rate   *Rate // or nil
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Read(p []byte) (int, error) {
	if c.rate == nil {
		return c.Conn.Read(p)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.rate.received.Burst())])
	c.wait(c.rate.received, n)
	return n, err
}

// wait waits until n bytes may pass, or until the connection is closed.
func (c *conn) wait(limit *rate.Limiter, n int) {
	timer := time.NewTimer(limit.ReserveN(time.Now(), n).Delay())
	defer timer.Stop()
	select {
	case <-c.closed:
	case <-timer.C:
	}
}

func (c *conn) Write(p []byte) (n int, err error) {
	if c.rate == nil {
		return c.write(p)
	}
	for n < len(p) && err == nil {
		piece := p[n:min(len(p), n+c.rate.sent.Burst())]
		c.wait(c.rate.sent, len(piece))
		var written int
		written, err = c.write(piece)
		n += written
	}
	return n, err
}

func (c *conn) write(p []byte) (int, error) {
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

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
