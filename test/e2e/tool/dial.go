package main

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Loops connect from these ports, none of which is used again within 400 s. A connection to a pod that vanished
// ends after a timeout of up to 80 s. The kernel then sends FIN for about 100 s, and conntrack keeps the
// connection for two minutes after the last one. Until then it sends a new connection from the same port to that
// pod.
const firstPort, ports, portInterval = 10000, 20000, 20 * time.Millisecond

// lastPort counts connections, but not slower than one in each portInterval since 1970, so that processes that
// follow each other use other ports.
var lastPort atomic.Int64

// dialFromNextPort connects from the next free port.
func dialFromNextPort(ctx context.Context, network, address string, timeout time.Duration) (conn net.Conn, err error) {
	for range ports { // a burst leaves thousands in TIME_WAIT
		dialer := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{Port: nextPort()}}
		conn, err = dialer.DialContext(ctx, network, address)
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return conn, err
}

func nextPort() int {
	for {
		last := lastPort.Load()
		next := max(last+1, time.Now().UnixNano()/int64(portInterval))
		if lastPort.CompareAndSwap(last, next) {
			return firstPort + int(next%ports)
		}
	}
}
