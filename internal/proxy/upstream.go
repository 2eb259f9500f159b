package proxy

import (
	"bufio"
	"bytes"
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
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

// upstream is the registry: its address, its connections, and how it did last.
//
// It speaks HTTP by itself, with the parser and writer of net/http, where http.Transport has two goroutines for each
// connection: that is a third less CPU time for a small request, less memory, and deadlines for each read.
type upstream struct {
	address   address
	authority string // address as text
	source    *tlsfiles.Source
	limits    *limits
	metrics   *proxyMetrics
	log       *limitedLogger

	dialer     net.Dialer
	lookupHost func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu         sync.Mutex
	closed     bool
	generation *tlsfiles.Material // of config and of all in idle
	config     *tls.Config
	idle       []*conn // the newest last
	expiry     *time.Timer
	preferred  string // the address that worked last
	nextLookup time.Time

	lastSuccess atomic.Int64 // in nanoseconds since 1970; 0: none yet
	lastFailure atomic.Pointer[failure]
}

type failure struct {
	time time.Time
	err  error
}

func newUpstream(a address, source *tlsfiles.Source, limits *limits, metrics *proxyMetrics, log *limitedLogger) *upstream {
	u := &upstream{
		address: a, authority: a.String(), source: source, limits: limits, metrics: metrics, log: log,
		lookupHost: net.DefaultResolver.LookupNetIP,
		dialer:     net.Dialer{Timeout: limits.dial, Control: setUserTimeout},
	}
	u.expiry = time.AfterFunc(idleLifetime, u.expire)
	return u
}

// conn is one connection to the registry, used by one request at a time.
type conn struct {
	*tls.Conn
	raw        net.Conn
	limited    io.LimitedReader // bounds the header
	reader     *bufio.Reader
	generation *tlsfiles.Material
	idleSince  time.Time
}

// get returns an idle connection or a new one. stale says that it was idle, so the registry may have closed it since.
func (u *upstream) get(ctx context.Context) (c *conn, stale bool, err error) {
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
	if c != nil {
		return c, true, nil
	}
	c, err = u.connect(ctx, m, config)
	return c, false, err
}

// put takes a connection back whose answer has been read to its end.
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

// refreshLocked takes up a new generation of certificates if there is one, and returns the idle connections of the former.
// A new generation gets a session cache of its own: what was agreed under other CAs must not be resumed.
func (u *upstream) refreshLocked() (dropped []*conn) {
	if m := u.source.Current(); u.generation != m {
		dropped, u.idle = u.idle, nil
		u.generation, u.config = m, tlsfiles.ClientConfig(m, u.address.host)
	}
	return dropped
}

// dropIdle closes the idle connections of former generations.
func (u *upstream) dropIdle() {
	u.mu.Lock()
	dropped := u.refreshLocked()
	u.mu.Unlock()
	closeAll(dropped)
}

// expire closes the connections that were idle for too long.
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

// close closes the idle connections and keeps no more.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	u.expiry.Stop()
	u.mu.Unlock()
	u.forgetIdle()
}

// forgetIdle closes the idle connections.
func (u *upstream) forgetIdle() {
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

// connect tries the address that worked last, the ClusterIP, and then what the Service's name resolves to: that differs
// where the Service was made anew with another address. Where there is no ClusterIP there is only the name.
func (u *upstream) connect(ctx context.Context, m *tlsfiles.Material, config *tls.Config) (*conn, error) {
	if !u.address.clusterIP.IsValid() {
		return u.connectTo(ctx, u.address.String(), m, config)
	}
	clusterIP := u.address.clusterIP.String()
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
	addresses, err := u.lookup(ctx)
	if err != nil {
		errs = append(errs, err)
	}
	for _, ip := range addresses {
		to := netip.AddrPortFrom(ip.Unmap(), u.address.port).String()
		if to == clusterIP || to == preferred {
			continue
		}
		c, err := u.connectTo(ctx, to, m, config)
		if err == nil {
			u.log.Warn("the registry is not at the address in the environment, its name resolves to another one",
				"environment", clusterIP, "dns", to)
			u.prefer(to)
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, join(errs)
}

// join makes one line of several errors.
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

// lookup resolves the Service's name, one request at a time and not too often: the others go without.
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
	return u.lookupHost(ctx, "ip", u.address.host)
}

func (u *upstream) connectTo(ctx context.Context, to string, m *tlsfiles.Material, config *tls.Config) (*conn, error) {
	c, err := u.handshake(ctx, to, config)
	if err != nil {
		u.metrics.dialErrors.Inc()
		return nil, fmt.Errorf("connecting to the registry at %s: %w", to, err)
	}
	u.metrics.dials.Inc()
	c.generation = m
	return c, nil
}

func (u *upstream) handshake(ctx context.Context, to string, config *tls.Config) (*conn, error) {
	raw, err := u.dialer.DialContext(ctx, "tcp", to)
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

// answer is the registry's answer to one request. Its body is read with fill; then finish or abandon is called once.
type answer struct {
	*http.Response
	upstream *upstream
	conn     *conn
	stop     func() bool // ends the watch on the request's context; nil: there is none
}

// watch has the end of ctx break the connection, which wakes a read or write, whatever its deadline. It is a seventh of
// what a small request allocates, and so begins when there is something to wait for. (Together with request.write, and
// small buffers for small bodies, that took 10 % off the CPU time of a connection with one request.)
func (a *answer) watch(ctx context.Context) {
	if a.stop == nil {
		a.stop = context.AfterFunc(ctx, func() { _ = a.conn.raw.Close() })
	}
}

// unwatch says whether the watch has not broken the connection.
func (a *answer) unwatch() bool { return a.stop == nil || a.stop() }

// roundTrip sends a request without a body and reads the header of its answer. Its errors are all worth another attempt.
// A connection that had been idle and turns out to be closed is not an error: the next one is taken.
func (u *upstream) roundTrip(request *request) (*answer, error) {
	for {
		c, stale, err := u.get(request.Context())
		if err != nil {
			return nil, u.failed(request.Context(), err)
		}
		began := time.Now()
		a, err := u.exchange(c, request, began)
		if err == nil {
			u.metrics.latency.observe(time.Since(began))
			u.lastSuccess.Store(time.Now().UnixNano())
			return a, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Its node may be gone without a word, and then the others lead nowhere either.
			u.forgetIdle()
		} else if stale && request.Context().Err() == nil {
			continue
		}
		return nil, u.failed(request.Context(), fmt.Errorf("asking the registry at %s: %w", c.RemoteAddr(), err))
	}
}

// failed records err, unless it is the client that has gone.
func (u *upstream) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	u.lastFailure.Store(&failure{time.Now(), err})
	return err
}

var requestBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (u *upstream) exchange(c *conn, request *request, began time.Time) (_ *answer, err error) {
	a := &answer{upstream: u, conn: c}
	defer func() {
		if err != nil {
			a.abandon()
		}
	}()
	if err := c.raw.SetWriteDeadline(began.Add(u.limits.head)); err != nil {
		return nil, err
	}
	buffer := requestBuffers.Get().(*bytes.Buffer)
	defer requestBuffers.Put(buffer)
	buffer.Reset()
	request.write(buffer, u.authority)
	if _, err := c.Write(buffer.Bytes()); err != nil {
		return nil, err
	}
	c.limited.N = maxHeadBytes
	// Most answers begin at once. The others are waited for no longer than the client is there.
	if err := c.raw.SetReadDeadline(began.Add(u.limits.unwatched)); err != nil {
		return nil, err
	}
	if _, err := c.reader.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
		a.watch(request.Context())
	}
	if err := c.raw.SetReadDeadline(began.Add(u.limits.head)); err != nil {
		return nil, err
	}
	if a.Response, err = c.readHead(request.Request); err != nil { //nolint:bodyclose // it is the caller's, which closes it
		return nil, err
	}
	if a.Body != http.NoBody && int64(c.reader.Buffered()) < a.ContentLength || a.ContentLength < 0 {
		a.watch(request.Context())
	}
	return a, nil
}

// errNoLength: such a body ends with the connection, and TLS in Go takes a connection that breaks for one that ends.
var errNoLength = errors.New("the answer has a body of unknown length")

func (c *conn) readHead(request *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(c.reader, request)
		if err != nil {
			if c.limited.N <= 0 {
				err = fmt.Errorf("the answer's header is larger than %d bytes", maxHeadBytes)
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		switch {
		case response.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the answer switches to another protocol")
		case response.StatusCode < http.StatusOK:
			continue // an interim answer, bounded with all others by maxHeadBytes
		case response.ContentLength < 0 && len(response.TransferEncoding) == 0 && response.Body != http.NoBody:
			return nil, errNoLength
		}
		c.limited.N = 1<<63 - 1
		return response, nil
	}
}

// fill reads the next part of the body, as much as fits or as comes without a pause. It returns io.EOF, perhaps with the
// last bytes, if and only if the body is complete.
func (a *answer) fill(buffer []byte) (n int, err error) {
	if a.stop == nil { // all of it has come with the header
		return a.Body.Read(buffer)
	}
	if err := a.conn.raw.SetReadDeadline(time.Now().Add(a.upstream.limits.stall)); err != nil {
		return 0, err
	}
	n, err = a.Body.Read(buffer)
	// A chunked body cannot be read on after a timeout: its reader keeps the error.
	if err != nil || n == len(buffer) || a.ContentLength < 0 {
		return n, err
	}
	if err := a.conn.raw.SetReadDeadline(time.Now().Add(fillTimeout)); err != nil {
		return n, err
	}
	for n < len(buffer) && err == nil {
		var more int
		more, err = a.Body.Read(buffer[n:])
		n += more
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, err
}

// finish gives the connection back after the body was read to its end.
func (a *answer) finish() {
	// What follows the answer unasked would be taken for the answer to the next request.
	if a.Close || a.conn.reader.Buffered() > 0 || !a.unwatch() {
		a.abandon()
		return
	}
	a.upstream.put(a.conn)
}

// abandon closes the connection: the rest of the body is not wanted or will not come.
func (a *answer) abandon() {
	a.unwatch()
	_ = a.conn.raw.Close()
}
