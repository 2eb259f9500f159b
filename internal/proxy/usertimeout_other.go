//go:build !linux

package proxy

import "syscall"

// setUserTimeout does nothing: only Linux has the socket option. Other systems are for development
// only.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
