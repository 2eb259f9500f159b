package proxy

import (
	"bufio"
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/net/listen"
	"github.com/zarf-dev/zarf-registry/internal/net/serviceaddress"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

// upstream holds the address of the registry or of the caches, the connections to it and the outcome of
// the last requests.
//
// It implements HTTP/1.1 with the parser of net/http instead of http.Transport, which runs two
// goroutines per connection. That takes a third less CPU time for a small request and less memory,
// and allows a deadline per read.
type upstream struct {
	name     string // for messages
	address  serviceaddress.Address
	hostPort string // address as host:port
	source   *tlsfiles.Source
	limits   *limits
	metrics  upstreamMetrics
	log      *logging.Limited

	lookupHost func(ctx context.Context, network, host string) ([]netip.Addr, error) // nil: the ClusterIP only

	slots *slots // shared

	mu         sync.Mutex
	closed     bool
	generation *tlsfiles.Material // of config and of all idle connections
	config     *tls.Config
	idle       []*conn // newest last
	expiry     *time.Timer
	preferred  string // the address that worked last
	nextLookup time.Time

	lastSuccess atomic.Int64 // Unix time in nanoseconds; 0: none yet
	lastFailure atomic.Pointer[failure]
}

type failure struct {
	time time.Time
	err  error
}

func newUpstream(
	name string, a serviceaddress.Address, source *tlsfiles.Source, limits *limits, metrics upstreamMetrics,
	slots *slots, log *logging.Limited,
) *upstream {
	u := &upstream{
		name: name, address: a, hostPort: a.String(), source: source, limits: limits, metrics: metrics, log: log,
		lookupHost: net.DefaultResolver.LookupNetIP,
		slots:      slots,
	}
	u.expiry = time.AfterFunc(idleLifetime, u.expire)
	return u
}

// conn is a connection to the registry. It serves one request at a time.
type conn struct {
	*tls.Conn
	raw        net.Conn
	limited    io.LimitedReader // bounds the header
	reader     *bufio.Reader
	generation *tlsfiles.Material
	idleSince  time.Time
}

// get takes a slot, and returns an idle connection or a new one. reused reports that it was idle, so
// that the registry may just be closing it.
func (u *upstream) get(ctx context.Context) (c *conn, reused bool, err error) {
	if err := u.slots.take(ctx); err != nil {
		return nil, false, err
	}
	for {
		c = nil
		u.mu.Lock()
		dropped := u.refreshLocked()
		m, config := u.generation, u.config
		if n := len(u.idle); n > 0 {
			c = u.idle[n-1]
			u.idle[n-1] = nil
			u.idle = u.idle[:n-1]
		}
		u.mu.Unlock()
		closeAll(dropped)
		if c == nil {
			if c, err = u.connect(ctx, m, config); err != nil {
				u.slots.give()
			}
			return c, false, err
		}
		if c.silent() {
			return c, true, nil
		}
		_ = c.Close()
	}
}

// silent reports whether the registry has sent nothing since its last response. Whatever it has sent
// would be taken for the response to the next request.
func (c *conn) silent() bool {
	if c.reader.Buffered() > 0 {
		return false
	}
	// TLS may have read more than it has returned. After the deadline it reads nothing else.
	if err := c.raw.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return false
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	return !readable(c.raw)
}

// readable reports whether a read from the socket would return at once: with data, with the end of
// the stream or with an error.
func readable(c net.Conn) bool {
	socket, is := c.(syscall.Conn)
	if !is {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	ready := false
	err = raw.Control(func(fd uintptr) { ready = listen.Polls(fd, unix.POLLIN) })
	return ready || err != nil
}

// put returns a connection to the idle ones. Its response must have been read to the end.
func (u *upstream) put(c *conn) {
	now := time.Now()
	u.mu.Lock()
	keep := !u.closed && c.generation == u.generation && len(u.idle) < maxIdle
	if keep {
		c.idleSince = now
		if len(u.idle) == 0 {
			u.expiry.Reset(idleLifetime)
		}
		u.idle = append(u.idle, c)
	}
	u.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
}

// refreshLocked adopts a new generation of certificates and returns the idle connections of the
// previous one. Each generation has its own session cache: sessions established under other CAs
// must not be resumed.
func (u *upstream) refreshLocked() (dropped []*conn) {
	if m := u.source.Current(); u.generation != m {
		dropped, u.idle = u.idle, nil
		u.generation, u.config = m, tlsfiles.ClientConfig(m, u.address.Host)
	}
	return dropped
}

// closeOutdated closes the idle connections of previous generations.
func (u *upstream) closeOutdated() {
	u.mu.Lock()
	dropped := u.refreshLocked()
	u.mu.Unlock()
	closeAll(dropped)
}

// expire closes the connections that have been idle for idleLifetime.
func (u *upstream) expire() {
	now := time.Now()
	u.mu.Lock()
	n := 0
	for n < len(u.idle) && now.Sub(u.idle[n].idleSince) >= idleLifetime {
		n++
	}
	dropped := append([]*conn(nil), u.idle[:n]...)
	u.idle = append([]*conn(nil), u.idle[n:]...)
	if len(u.idle) > 0 {
		u.expiry.Reset(idleLifetime - now.Sub(u.idle[0].idleSince))
	}
	u.mu.Unlock()
	closeAll(dropped)
}

// close closes the idle connections and keeps no new ones.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	u.expiry.Stop()
	u.mu.Unlock()
	u.closeIdle()
}

func (u *upstream) closeIdle() {
	u.mu.Lock()
	dropped := u.idle
	u.idle = nil
	u.mu.Unlock()
	closeAll(dropped)
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// connect tries the address that worked last, the ClusterIP, and then the addresses that the
// Service's name resolves to, which differ if the Service was recreated. Without a ClusterIP it
// uses only the name.
func (u *upstream) connect(ctx context.Context, m *tlsfiles.Material, config *tls.Config) (*conn, error) {
	if !u.address.ClusterIP.IsValid() {
		return u.connectTo(ctx, u.address.String(), m, config)
	}
	clusterIP := u.address.ClusterIP.String()
	u.mu.Lock()
	preferred := u.preferred
	u.mu.Unlock()
	var errs []error
	tried := []string{clusterIP}
	if preferred != "" && preferred != clusterIP {
		tried = []string{preferred, clusterIP}
	}
	for _, to := range tried {
		c, err := u.connectTo(ctx, to, m, config)
		if err == nil {
			u.prefer(to)
			return c, nil
		}
		errs = append(errs, err)
	}
	if u.lookupHost == nil {
		return nil, join(errs)
	}
	addresses, err := u.lookup(ctx)
	if err != nil {
		errs = append(errs, err)
	}
	for _, ip := range addresses {
		to := netip.AddrPortFrom(ip.Unmap(), u.address.Port).String()
		if to == clusterIP || to == preferred {
			continue
		}
		c, err := u.connectTo(ctx, to, m, config)
		if err == nil {
			u.log.Warn(u.name+" not reachable at the address in the environment, using the address from DNS",
				"environment", clusterIP, "dns", to)
			u.prefer(to)
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, join(errs)
}

// join combines errors on one line.
func join(errs []error) (err error) {
	for _, next := range errs {
		if err == nil {
			err = next
		} else {
			err = fmt.Errorf("%w; %w", err, next)
		}
	}
	return err
}

func (u *upstream) prefer(to string) {
	u.mu.Lock()
	u.preferred = to
	u.mu.Unlock()
}

// lookup resolves the Service's name, at most once per lookupInterval. Concurrent callers get no
// addresses.
func (u *upstream) lookup(ctx context.Context) ([]netip.Addr, error) {
	now := time.Now()
	u.mu.Lock()
	due := now.After(u.nextLookup)
	if due {
		u.nextLookup = now.Add(lookupInterval)
	}
	u.mu.Unlock()
	if !due {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return u.lookupHost(ctx, "ip", u.address.Host)
}

func (u *upstream) connectTo(ctx context.Context, to string, m *tlsfiles.Material, config *tls.Config) (*conn, error) {
	c, err := u.handshake(ctx, to, config)
	if err != nil {
		u.metrics.dialErrors.Inc()
		return nil, fmt.Errorf("connecting to %s at %s: %w", u.name, to, err)
	}
	u.metrics.dials.Inc()
	c.generation = m
	return c, nil
}

func (u *upstream) handshake(ctx context.Context, to string, config *tls.Config) (*conn, error) {
	dialer := net.Dialer{
		Timeout: u.limits.dial,
		Control: func(_, _ string, c syscall.RawConn) error { return setSocket(c, u.limits.ackTimeout) },
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: u.limits.ackTimeout / 5, Interval: u.limits.ackTimeout / 5,
			Count: 5},
	}
	raw, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, u.limits.handshake)
	defer cancel()
	c := &conn{Conn: tls.Client(raw, config), raw: raw}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	c.limited.R = c.Conn
	c.reader = bufio.NewReader(&c.limited)
	return c, nil
}

// response is the registry's response to one request. Read its body with fill, then call release or
// discard once, unless slots.reclaim has reported that its connection is gone.
type response struct {
	*http.Response
	upstream *upstream
	conn     *conn
	stop     func() bool // stops watching the request's context; nil: not watching

	lent   *list.Element // of slots; nil unless others may take the connection
	lentAt time.Time
}

// watch closes the connection when ctx ends, which interrupts reads and writes regardless of their
// deadlines. It accounts for a seventh of a small request's allocations, so it starts only when
// there is something to wait for.
func (resp *response) watch(ctx context.Context) {
	if resp.stop == nil {
		connection := resp.conn.raw
		resp.stop = context.AfterFunc(ctx, func() { _ = connection.Close() })
	}
}

// unwatch reports whether the watch has not closed the connection.
func (resp *response) unwatch() bool { return resp.stop == nil || resp.stop() }

// roundTrip sends a request without a body and reads the header of the response. Every error is
// worth a retry. If a reused connection turns out to be closed, it uses the next one.
func (u *upstream) roundTrip(request *request) (*response, error) {
	ctx := request.Context()
	if !request.answerBy.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, request.answerBy)
		defer cancel()
	}
	for {
		c, reused, err := u.get(ctx)
		if err != nil {
			return nil, u.failed(request.Context(), err)
		}
		began := time.Now()
		resp, err := u.exchange(c, request, began)
		if err == nil {
			u.metrics.latency.observe(time.Since(began))
			u.lastSuccess.Store(time.Now().UnixNano())
			return resp, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// The node may be dead, and then the idle connections to it are dead as well.
			u.closeIdle()
		} else if reused && request.Context().Err() == nil {
			continue
		}
		return nil, u.failed(request.Context(), fmt.Errorf("requesting from %s at %s: %w", u.name, c.RemoteAddr(), err))
	}
}

// failed records err, unless the client has disconnected.
func (u *upstream) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	u.lastFailure.Store(&failure{time.Now(), err})
	return err
}

var requestBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (u *upstream) exchange(c *conn, request *request, began time.Time) (_ *response, err error) {
	resp := &response{upstream: u, conn: c}
	defer func() {
		if err != nil {
			resp.discard()
		}
	}()
	if err := c.raw.SetWriteDeadline(began.Add(u.limits.head)); err != nil {
		return nil, err
	}
	buffer := requestBuffers.Get().(*bytes.Buffer)
	defer requestBuffers.Put(buffer)
	buffer.Reset()
	request.write(buffer, u.hostPort)
	if _, err := c.Write(buffer.Bytes()); err != nil {
		return nil, err
	}
	c.limited.N = maxHeadBytes
	// Most responses start at once. While waiting for the others, watch for the client's disconnect.
	if err := c.raw.SetReadDeadline(began.Add(u.limits.disconnectCheckAfter)); err != nil {
		return nil, err
	}
	if _, err := c.reader.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
		resp.watch(request.Context())
	}
	deadline := began.Add(u.limits.head)
	if !request.answerBy.IsZero() && request.answerBy.Before(deadline) {
		deadline = request.answerBy
	}
	if err := c.raw.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	if resp.Response, err = c.readHead(request.Request); err != nil { //nolint:bodyclose // the caller closes it
		return nil, err
	}
	if resp.Body != http.NoBody && int64(c.reader.Buffered()) < resp.ContentLength || resp.ContentLength < 0 {
		resp.watch(request.Context())
	}
	return resp, nil
}

// errNoLength: such a body ends with the connection, and Go's TLS does not distinguish a broken
// connection from a closed one.
var errNoLength = errors.New("the response has a body of unknown length")

func (c *conn) readHead(request *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(c.reader, request)
		if err != nil {
			if c.limited.N <= 0 {
				err = fmt.Errorf("the response's header exceeds %d bytes", maxHeadBytes)
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		switch {
		case response.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the response switches protocols")
		case response.StatusCode < http.StatusOK:
			continue // an interim response; maxHeadBytes bounds all of them together
		case response.ContentLength < 0 && len(response.TransferEncoding) == 0 && response.Body != http.NoBody:
			return nil, errNoLength
		}
		c.limited.N = 1<<63 - 1
		return response, nil
	}
}

// fill reads the next part of the body: until the buffer is full or the registry pauses. It returns
// io.EOF, possibly with the last bytes, if and only if the body is complete.
func (resp *response) fill(buffer []byte) (n int, err error) {
	if resp.stop == nil { // the whole body arrived with the header
		return resp.Body.Read(buffer)
	}
	if err := resp.conn.raw.SetReadDeadline(time.Now().Add(resp.upstream.limits.progressTimeout)); err != nil {
		return 0, err
	}
	n, err = resp.Body.Read(buffer)
	// A chunked body cannot be read further after a timeout: its reader keeps the error.
	if err != nil || n == len(buffer) || resp.ContentLength < 0 {
		return n, err
	}
	if err := resp.conn.raw.SetReadDeadline(time.Now().Add(fillTimeout)); err != nil {
		return n, err
	}
	for n < len(buffer) && err == nil {
		var more int
		more, err = resp.Body.Read(buffer[n:])
		n += more
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, err
}

// release returns the connection for reuse after the body was read to its end.
func (resp *response) release() {
	if resp.Close || !resp.unwatch() {
		resp.discard()
		return
	}
	resp.upstream.put(resp.conn)
	resp.upstream.slots.give()
}

// discard closes the connection: the rest of the body is not wanted or will not come.
func (resp *response) discard() {
	resp.unwatch()
	_ = resp.conn.raw.Close()
	resp.upstream.slots.give()
}
