// Package listen opens listeners, also where a predecessor still listens, hands them off to a successor, and sets
// options of sockets. It does not choose addresses.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timeout is how long a program waits for its port: until the previous program has drained (20 s), on a slow node.
// Then it ends with an error, which its pod's status shows.
const timeout = time.Minute

// Network returns the network for an address of the form host:port, whose host is an IP address or empty: tcp6 for an
// IPv6 address, whose sockets do not accept IPv4 (IPV6_V6ONLY), and tcp, which accepts both, for an empty host.
func Network(address string) (string, error) {
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

// Options are socket options of a listener.
type Options struct {
	// ReusePort lets another process of the same user listen on the same address (SO_REUSEPORT), see [HandOff].
	ReusePort bool
	// Unsent, unless 0, is for [LimitUnsent].
	Unsent int
}

// Open listens on an address of the form that [Network] accepts, for clients on the same machine: connections of dead
// ones end at once. Without keep-alive there are four system calls less per connection.
func Open(ctx context.Context, address string, o Options) (net.Listener, error) {
	network, err := Network(address)
	if err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false) // a node has a single path, and HandOff's socket option exists for TCP only
	config.Control = func(_, _ string, c syscall.RawConn) error {
		if o.Unsent > 0 {
			if err := LimitUnsent(c, o.Unsent); err != nil {
				return err
			}
		}
		if !o.ReusePort {
			return nil
		}
		return SetOption(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return l, nil
}

// Unavailable reports whether listening failed because the machine lacks the address or its family.
func Unavailable(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

// WhenFree calls listen until it succeeds, as long as the address is in use by a predecessor, for at most a minute. It
// has the port within a millisecond after the predecessor. If it has to wait, it calls waits once.
func WhenFree(ctx context.Context, waits func(), listen func() (net.Listener, error)) (net.Listener, error) {
	end := time.Now().Add(timeout)
	for waiting := false; ; waiting = true {
		l, err := listen()
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
		if !waiting {
			waits()
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

// LimitUnsent limits how many bytes the kernel keeps for a client that does not read (TCP_NOTSENT_LOWAT). Connections
// inherit it from their listener. Otherwise it is up to 4 MB.
func LimitUnsent(c syscall.RawConn, bytes int) error {
	return SetOption(c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
}

// SetOption sets an option of a socket.
func SetOption(c syscall.RawConn, level, option, value int) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }); e != nil {
		return e
	}
	return err
}

// Polls reports whether a socket has one of the events now, or has failed.
func Polls(fd uintptr, events int16) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
	return n > 0 || err != nil
}
