//go:build !linux

package proxy

import "syscall"

// setSocket does nothing: only Linux has one of the options. Other systems are for development only.
func setSocket(_, _ string, _ syscall.RawConn) error { return nil }
