//go:build !linux

package drain

import "net"

// queued returns 0: only Linux has the ioctl. Other systems are for development only.
func queued(*net.TCPConn) int { return 0 }
