package proxy

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func setUserTimeout(_, _ string, c syscall.RawConn) error {
	return setOption(c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond))
}
