package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenNetwork is the network to listen on for an address as Config.Listen describes it. Of an IPv6 address it is tcp6,
// whose sockets take no IPv4 (IPV6_V6ONLY), of an empty host tcp, whose sockets take both.
func listenNetwork(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen address %q: want host:port: %w", address, err)
	}
	if host == "" {
		return "tcp", nil
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return "", fmt.Errorf("listen address %q: the host must be an IP address or empty, a name may be of either family", address)
	case ip.Is4():
		return "tcp4", nil
	case ip.Is4In6():
		return "", fmt.Errorf("listen address %q: write the IPv4 address as it is", address)
	default:
		return "tcp6", nil
	}
}

func listen(ctx context.Context, address string, reusePort bool) (net.Listener, error) {
	network, err := listenNetwork(address)
	if err != nil {
		return nil, err
	}
	// Clients are on this node: a dead one's connections end at once, and four system calls for each new one are saved.
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false) // there is one path on a node, and giveWay's option is of TCP only
	if reusePort {
		config.Control = func(_, _ string, c syscall.RawConn) error {
			return setOption(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
	}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return l, nil
}

// familyAbsent says whether listening failed because the node has no such address, or not even the address family.
func familyAbsent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

func setOption(c syscall.RawConn, level, option, value int) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }); e != nil {
		return e
	}
	return err
}
