package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// clientCertificates: clients are container runtimes, which have none to show.
const clientCertificates = tls.NoClientCert

// recordHandshake is the first byte of every TLS connection: the record type of a ClientHello (RFC 8446, section 5.1).
// No HTTP method begins with it.
const recordHandshake = 0x16

// plainRefusal answers a ClientHello where TLS is not served. containerd tries HTTPS first and falls back at once when the
// answer begins with "HTTP/"; a connection that is just closed it takes for a failure.
const plainRefusal = "HTTP/1.1 400 Bad Request\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\n\r\n" +
	"This registry speaks plain HTTP on this port, no TLS\n"

// front tells TLS from plain HTTP on the connections of one port.
type front struct {
	proxy *Proxy
	tls   *tls.Config // nil: TLS is refused
}

func (f *front) listener(l net.Listener) net.Listener { return &frontListener{l, f} }

type frontListener struct {
	net.Listener
	front *front
}

// Accept does not look at the connection: its first Read does, in the goroutine that serves it and under the deadline of
// its first request. So a mute client holds up no other.
func (l *frontListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c, front: l.front}, nil
}

// clientConn is a client's connection, TLS or not. Its writes have a deadline each, so that a client that has stopped
// reading ends, while a slow one may take as long as it likes.
type clientConn struct {
	net.Conn // the TCP connection
	front    *front
	sniffed  bool                     // used by Read only
	tls      atomic.Pointer[tls.Conn] // Close may come from another goroutine than Read
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

// refuse answers a ClientHello in plain HTTP.
func (c *clientConn) refuse() {
	_ = c.SetDeadline(time.Now().Add(lingerTimeout))
	if _, err := io.WriteString(c.Conn, plainRefusal); err != nil {
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
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

// reset breaks the connection so that no client can take it for a clean end, not even one that reads to the end of the
// connection because the answer has no length.
func (c *clientConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
}

// replayConn gives back what was read to see whether it is TLS.
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
