package drain

import (
	"net"

	"golang.org/x/sys/unix"
)

// tcpClose is the state of a socket whose connection has ended (TCP_CLOSE in netinet/tcp.h).
const tcpClose = 7

// queued returns the number of bytes that the peer has not acknowledged, the end of the stream
// counting as one (SIOCOUTQ, tcp(7)). It is 0 if the connection has ended: after a RST the kernel
// still counts what was queued.
func queued(c *net.TCPConn) (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err != nil || n == 0 {
			n = 0
			return
		}
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State == tcpClose {
			n = 0
		}
	})
	return n
}
