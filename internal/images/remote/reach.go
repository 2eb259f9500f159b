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

// reach is how far away an address is. A registry may send the client to addresses that are as far away as the
// registry itself, or farther: one on the Internet must not make it send requests into the client's network.
type reach int32

const (
	reachInternet reach = iota
	reachPrivate
	reachLoopback
	// reachLink are link-local addresses, on which clouds serve machine credentials, and others that no registry has.
	// Nothing may be sent there.
	reachLink
)

// String describes an address.
func (r reach) String() string {
	return [...]string{"public", "private", "loopback", "link-local or unspecified"}[r]
}

// cgnat is private as well (RFC 6598).
var cgnat = netip.MustParsePrefix("100.64.0.0/10")

func reachOf(a netip.Addr) reach {
	switch a = a.Unmap(); {
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), !a.IsValid():
		return reachLink
	case a.IsLoopback():
		return reachLoopback
	case a.IsPrivate(), cgnat.Contains(a):
		return reachPrivate
	}
	return reachInternet
}

// registryReach is where a registry was reached last. It is that of the connection, not of a name, which may resolve
// to another address the next time. The zero value is the Internet.
type registryReach struct{ last atomic.Int32 }

func (r *registryReach) get() reach { return reach(r.last.Load()) }

// observe sends a request to the registry, and records the address of the connection that answered.
func (r *registryReach) observe(t *http.Transport, req *http.Request) (*http.Response, error) {
	var at net.Addr
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { at = info.Conn.RemoteAddr() }}
	resp, err := t.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil {
		return nil, err
	}
	found := reachInternet
	if tcp, ok := at.(*net.TCPAddr); ok && !proxied(t, req) {
		found = reachOf(tcp.AddrPort().Addr())
	}
	r.last.Store(int32(found))
	return resp, nil
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

// guard makes a transport refuse addresses that are nearer than the registry.
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
	if to := reachOf(host.Addr()); to > r.get() {
		return protocolErrorf("sends this client to %s, a %s address, which only a registry with such an address may do",
			host.Addr(), to)
	}
	return nil
}
