package remote

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// near reports whether an address is in a private network or on this machine. A registry may send the client to such
// addresses only from one: one on the Internet must not make it send requests into the client's network.
func near(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsPrivate() || a.IsLoopback() || cgnat.Contains(a) || forbidden(a)
}

// cgnat is private as well (RFC 6598).
var cgnat = netip.MustParsePrefix("100.64.0.0/10")

// forbidden reports whether nothing may be sent to an address: clouds serve machine credentials on link-local ones, and
// no registry has one of the others.
func forbidden(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || !a.IsValid()
}

// registryReach is whether the registry was near when it was reached last. It is that of the connection, not of a name,
// which may resolve to another address the next time.
type registryReach struct{ near atomic.Bool }

// observe sends a request to the registry, and records the address of the connection that answered.
func (r *registryReach) observe(t *http.Transport, req *http.Request) (*http.Response, error) {
	var at net.Addr
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { at = info.Conn.RemoteAddr() }}
	resp, err := t.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err == nil {
		tcp, ok := at.(*net.TCPAddr)
		r.near.Store(ok && !proxied(t, req) && near(tcp.AddrPort().Addr()))
	}
	return resp, err
}

// proxied reports whether a request goes through an HTTP proxy, which resolves names itself.
func proxied(t *http.Transport, req *http.Request) bool {
	if t.Proxy == nil {
		return false
	}
	proxy, err := t.Proxy(req)
	return err == nil && proxy != nil
}

type directKey struct{}

// roundTrip sends a request to a host that the registry has named, with a transport from guard. Unless the request
// goes through a proxy, every address is checked when it is dialed.
func (r *registryReach) roundTrip(t *http.Transport, req *http.Request) (*http.Response, error) {
	return t.RoundTrip(req.WithContext(context.WithValue(req.Context(), directKey{}, !proxied(t, req))))
}

// guard makes a transport refuse addresses that the registry may not name.
func (r *registryReach) guard(t *http.Transport, rate *Rate) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, ControlContext: r.control}
	t.DialContext = dialWithGrace(dialer.DialContext, rate)
	return t
}

// control implements [net.Dialer.ControlContext]: address is the one that is dialed, after all lookups.
func (r *registryReach) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	if direct, ok := ctx.Value(directKey{}).(bool); ok && !direct {
		return nil
	}
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	switch a := host.Addr(); {
	case forbidden(a):
		return protocolErrorf("sends this client to %s, a link-local or unspecified address, which no registry may do", a)
	case near(a) && !r.near.Load():
		return protocolErrorf("sends this client to %s, a private address, which only a registry with such an address may do",
			a)
	}
	return nil
}
