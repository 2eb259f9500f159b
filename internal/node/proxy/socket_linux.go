package proxy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/net/listen"
)

// setSocket sets the options of a connection to the registry. It breaks if data or keepalive probes are not
// acknowledged for that time (TCP_USER_TIMEOUT).
func setSocket(c syscall.RawConn, gone time.Duration) error {
	if err := listen.SetOption(c, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveSize); err != nil {
		return err
	}
	return listen.SetOption(c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(gone/time.Millisecond))
}
