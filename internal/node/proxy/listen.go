package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/net/listen"
)

// listenNetwork returns the network for an address in the form of Config.Listen: tcp6 for an IPv6
// address, whose sockets do not accept IPv4 (IPV6_V6ONLY), and tcp, which accepts both, for an
// empty host.
func listenNetwork(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("invalid listen address %q: want host:port: %w", address, err)
	}
	if host == "" {
		return "tcp", nil
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return "", fmt.Errorf("invalid listen address %q: the host must be an IP address or empty, not a name", address)
	case ip.Is4():
		return "tcp4", nil
	case ip.Is4In6():
		return "", fmt.Errorf("invalid listen address %q: want a plain IPv4 address", address)
	default:
		return "tcp6", nil
	}
}

// listenWhenFree is like open, but waits for a process that cannot share the port (SO_REUSEPORT), because it runs as
// another user or does not share it.
func (p *Proxy) listenWhenFree(ctx context.Context, address string) (net.Listener, error) {
	if !p.config.ReusePort {
		return open(ctx, address, false)
	}
	return listen.WhenFree(ctx, func() {
		p.config.Logger.Warn("the port is in use by a process that does not share it, waiting until it ends",
			"address", address)
		if p.config.Waiting != nil {
			p.config.Waiting(address + " is in use by a process that does not share it: of another user, or no proxy")
		}
	}, func() (net.Listener, error) { return open(ctx, address, true) })
}

func open(ctx context.Context, address string, reusePort bool) (net.Listener, error) {
	network, err := listenNetwork(address)
	if err != nil {
		return nil, err
	}
	// Clients are on this node, so connections of dead ones end at once. Disabling keep-alive saves
	// four system calls per connection.
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false) // a node has a single path, and handOff's socket option exists for TCP only
	config.Control = func(_, _ string, c syscall.RawConn) error {
		// Accepted connections inherit it.
		if err := listen.LimitUnsent(c, unsentSize); err != nil || !reusePort {
			return err
		}
		return listen.SetOption(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return l, nil
}

// addressUnavailable reports whether listening failed because the node lacks the address or its
// family.
func addressUnavailable(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
