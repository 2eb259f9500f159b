package proxy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setSocket sets the options of a connection to the registry.
func setSocket(_, _ string, c syscall.RawConn) error {
	if err := setOption(c, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveSize); err != nil {
		return err
	}
	return setOption(c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond))
}
