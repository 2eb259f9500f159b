// Package protocolmux serves TLS and plain HTTP on the connections of one port, and bounds how long clients may take
// to read. It does not terminate HTTP.
package protocolmux

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/drain"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
)

// recordHandshake is the first byte of every TLS connection: the record type of a ClientHello (RFC
// 8446, section 5.1). No HTTP method starts with it.
const recordHandshake = 0x16

// plainRefusal is the response to a ClientHello where TLS is not served. containerd tries HTTPS
// first and falls back at once if the response starts with "HTTP/"; it treats a closed connection
// as a failure.
const plainRefusal = "HTTP/1.1 400 Bad Request\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\n\r\n" +
	"This port serves plain HTTP only, not TLS\n"

const (
	// lingerTimeout is how long the rest of a refused ClientHello is read. Closing with unread data
	// would reset the connection, and the client might never see the response.
	lingerTimeout = 500 * time.Millisecond
	// lingerBytes bounds it. A ClientHello has less than 2 KiB.
	lingerBytes = 32 << 10
)

// Mux distinguishes TLS from plain HTTP.
type Mux struct {
	// TLS is the configuration of TLS. Nil: it is refused.
	TLS *tls.Config
	// Refused is called for each refusal.
	Refused func()
	// WriteTimeout is how long a client may take to read what one write sends.
	WriteTimeout time.Duration
}

// Listener returns a listener whose connections are *Conn.
func (m *Mux) Listener(l net.Listener) net.Listener { return &listener{l, m} }

type listener struct {
	net.Listener
	mux *Mux
}

// Accept does not inspect the connection. Its first Read does, in the goroutine that serves the
// connection and under the deadline of its first request, so a silent client does not block others.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c, mux: l.mux}, nil
}

// Conn is a client's connection, TLS or plain. Each write has its own deadline: a client that
// stops reading is cut off, while a slow one may take as long as it needs.
type Conn struct {
	net.Conn // the TCP connection
	mux      *Mux
	sniffed  bool                     // used by Read only
	tls      atomic.Pointer[tls.Conn] // Close may run in another goroutine than Read
}

// IsTLS reports whether the client has begun with TLS. It is known when there is a request.
func (c *Conn) IsTLS() bool { return c.tls.Load() != nil }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if t := c.tls.Load(); t != nil {
		return t.Read(p)
	}
	n, err := c.Conn.Read(p)
	if c.sniffed || n == 0 {
		return n, err
	}
	c.sniffed = true
	if p[0] != recordHandshake {
		return n, err
	}
	if c.mux.TLS == nil {
		c.mux.Refused()
		c.refuse()
		return 0, io.EOF
	}
	first := append([]byte(nil), p[:n]...)
	t := tls.Server(&replayConn{Conn: c.Conn, first: first}, c.mux.TLS)
	c.tls.Store(t)
	return t.Read(p)
}

// refuse responds to a ClientHello in plain HTTP.
func (c *Conn) refuse() {
	_ = c.SetDeadline(time.Now().Add(lingerTimeout))
	if _, err := io.WriteString(c.Conn, plainRefusal); err != nil {
		return
	}
	if tcp, ok := c.Conn.(*drain.Conn); ok {
		_ = tcp.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, lingerBytes))
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.mux.WriteTimeout)); err != nil {
		return 0, err
	}
	if t := c.tls.Load(); t != nil {
		return t.Write(p)
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	if t := c.tls.Load(); t != nil {
		return t.Close()
	}
	return c.Conn.Close()
}

// Await waits until the client has read nearly all that was written, at most for WriteTimeout. Unlike
// a Write that waits, it needs no buffer. It returns at once if c is nil.
func (c *Conn) Await(ctx context.Context) error {
	if c == nil {
		return nil
	}
	tcp, is := c.Conn.(*drain.Conn)
	if !is {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	ready := false
	if err := raw.Control(func(fd uintptr) { ready = writable(fd) }); err != nil || ready {
		return err
	}
	if limited := connlimit.From(ctx); limited != nil {
		limited.Idle()
		defer limited.Busy()
	}
	if err := c.SetWriteDeadline(time.Now().Add(c.mux.WriteTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	return raw.Write(writable)
}

// writable reports whether a socket has little left to send (TCP_NOTSENT_LOWAT), or has failed.
func writable(fd uintptr) bool { return listen.Polls(fd, unix.POLLOUT) }

// Reset sends a RST and drops what the client has not received. So no client mistakes the end of the
// connection for the end of a response without a length, and one that does not read leaves nothing
// behind.
func (c *Conn) Reset() {
	if c == nil {
		return
	}
	if tcp, ok := c.Conn.(*drain.Conn); ok {
		tcp.Reset()
		return
	}
	_ = c.Conn.Close()
}

// replayConn returns the bytes that were read to detect TLS before reading on.
type replayConn struct {
	net.Conn
	first []byte
}

func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
