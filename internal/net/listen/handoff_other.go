//go:build !linux

package listen

import "net"

// HandOff does nothing: only Linux has the socket option. Other systems are for development only.
func HandOff(net.Listener) error { return nil }
