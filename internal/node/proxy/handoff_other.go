//go:build !linux

package proxy

import "net"

// handOff does nothing: only Linux has the socket option. Other systems are for development only.
func handOff(net.Listener) error { return nil }
