// Package listen helps programs to listen where a predecessor still does, and sets options of sockets. It does not
// choose addresses.
package listen

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timeout is how long a program waits for its port: until the previous program has drained (20 s), on a slow node.
// Then it ends with an error, which its pod's status shows.
const timeout = time.Minute

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
