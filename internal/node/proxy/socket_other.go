//go:build !linux

package proxy

import (
	"syscall"
	"time"
)

// setSocket does nothing: only Linux has one of the options. Other systems are for development only.
func setSocket(syscall.RawConn, time.Duration) error { return nil }
