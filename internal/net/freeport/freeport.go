// Package freeport finds loopback addresses for tests that need to know an address before they listen on it.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports of outgoing connections begin at 32768 (net.ipv4.ip_local_port_range). One of those could be taken between the
// choice and its use, and each time that a test closes its listener and opens it again.
const first, end = 10000, 32768

// Loopback returns an IPv4 loopback address whose port is free, and which no outgoing connection takes.
func Loopback(t testing.TB) string {
	t.Helper()
	address, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Find is Loopback for a TestMain.
func Find() (address string, err error) {
	for range 100 {
		address = fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(end-first))
		var listener net.Listener
		if listener, err = net.Listen("tcp", address); err == nil {
			return address, listener.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}
