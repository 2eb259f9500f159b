package proxy

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
)

// clientCertificates is NoClientCert because container runtimes have no certificate to present.
const clientCertificates = tls.NoClientCert

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

// protocolMux distinguishes TLS from plain HTTP on the connections of one port.
type protocolMux struct {
	proxy *Proxy
	tls   *tls.Config // nil: TLS is refused
}

func (f *protocolMux) listener(l net.Listener) net.Listener { return &muxListener{l, f} }

type muxListener struct {
	net.Listener
	front *protocolMux
}

// Accept does not inspect the connection. Its first Read does, in the goroutine that serves the
// connection and under the deadline of its first request, so a silent client does not block others.
func (l *muxListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c, front: l.front}, nil
}

// clientConn is a client's connection, TLS or plain. Each write has its own deadline: a client that
// stops reading is cut off, while a slow one may take as long as it needs.
type clientConn struct {
	net.Conn // the TCP connection
	front    *protocolMux
	sniffed  bool                     // used by Read only
	tls      atomic.Pointer[tls.Conn] // Close may run in another goroutine than Read
}

func (c *clientConn) Read(p []byte) (int, error) {
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
	if c.front.tls == nil {
		c.front.proxy.metrics.tlsRefused.Inc()
		c.refuse()
		return 0, io.EOF
	}
	first := append([]byte(nil), p[:n]...)
	t := tls.Server(&replayConn{Conn: c.Conn, first: first}, c.front.tls)
	c.tls.Store(t)
	return t.Read(p)
}

// refuse responds to a ClientHello in plain HTTP.
func (c *clientConn) refuse() {
	_ = c.SetDeadline(time.Now().Add(lingerTimeout))
	if _, err := io.WriteString(c.Conn, plainRefusal); err != nil {
		return
	}
	if tcp, ok := c.Conn.(*drain.Conn); ok {
		_ = tcp.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxHeaderBytes))
}

func (c *clientConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.front.proxy.limits.write)); err != nil {
		return 0, err
	}
	if t := c.tls.Load(); t != nil {
		return t.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *clientConn) Close() error {
	if t := c.tls.Load(); t != nil {
		return t.Close()
	}
	return c.Conn.Close()
}

// await waits until the client has read nearly all that was written, at most for limits.write. Unlike
// a Write that waits, it needs no buffer.
func (c *clientConn) await(ctx context.Context) error {
	if c == nil {
		return nil // not served by Run
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
	if err := c.SetWriteDeadline(time.Now().Add(c.front.proxy.limits.write)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	return raw.Write(writable)
}

// writable reports whether a socket has little left to send (TCP_NOTSENT_LOWAT), or has failed.
func writable(fd uintptr) bool { return polls(fd, unix.POLLOUT) }

// polls reports whether a socket has one of the events, or has failed.
func polls(fd uintptr, events int16) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
	return n > 0 || err != nil
}

// Reset sends a RST and drops what the client has not received. So no client mistakes the end of the
// connection for the end of a response without a length, and one that does not read leaves nothing
// behind.
func (c *clientConn) Reset() {
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
