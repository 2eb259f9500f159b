//go:build !linux

package proxy

import "syscall"

// setUserTimeout: only Linux has the option. Nodes are Linux; elsewhere the package is for developers.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
