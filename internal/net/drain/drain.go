// Package drain keeps closed connections open until the client has received what a server wrote.
// It does not decide when a server stops accepting.
//
// Normally the kernel delivers what is left in the send queue of a closed socket. In a pod it
// cannot: when the last process ends, the pod's network namespace goes away with all queues. The
// client then gets neither the data nor an end of the stream, and waits for its own timeout.
package drain

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// pollInterval is how often a send queue is read.
	pollInterval = 5 * time.Millisecond
	// maxDelivery bounds the delivery to a client that stopped reading. Runtimes give up after about
	// a minute without progress.
	maxDelivery = time.Minute
)

// Deliveries are connections that a server has closed and whose data the client has not received.
// The zero value is ready for use. Its methods may be called concurrently.
type Deliveries struct {
	mu      sync.Mutex
	pending int
	none    chan struct{} // closed when pending is 0; nil if nobody waits
}

// Listener returns a listener whose connections are *Conn. l must accept TCP connections.
func (d *Deliveries) Listener(l net.Listener) net.Listener { return &listener{l, d} }

// Wait waits until there are no deliveries or ctx ends, and returns how many are left.
func (d *Deliveries) Wait(ctx context.Context) int {
	d.mu.Lock()
	if d.pending == 0 {
		d.mu.Unlock()
		return 0
	}
	if d.none == nil {
		d.none = make(chan struct{})
	}
	none := d.none
	d.mu.Unlock()
	select {
	case <-none:
		return 0
	case <-ctx.Done():
		return d.Pending()
	}
}

// Pending returns the number of deliveries.
func (d *Deliveries) Pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending
}

func (d *Deliveries) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending += n
	if d.pending == 0 && d.none != nil {
		close(d.none)
		d.none = nil
	}
}

type listener struct {
	net.Listener
	deliveries *Deliveries
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{TCPConn: c.(*net.TCPConn), deliveries: l.deliveries}, nil
}

// Conn is a server's TCP connection.
type Conn struct {
	*net.TCPConn
	deliveries *Deliveries
	closing    sync.Once
}

// Close returns at once. The socket is closed when the client has acknowledged everything, the end
// of the stream included, or has not for a minute.
func (c *Conn) Close() (err error) {
	err = net.ErrClosed
	c.closing.Do(func() {
		if queued(c.TCPConn) == 0 || c.CloseWrite() != nil {
			err = c.TCPConn.Close()
			return
		}
		err = nil
		_ = c.SetReadDeadline(time.Unix(1, 0)) // ends a pending Read, as Close does
		c.deliveries.add(1)
		go c.deliver()
	})
	return err
}

func (c *Conn) deliver() {
	defer c.deliveries.add(-1)
	defer func() { _ = c.TCPConn.Close() }()
	timeout := time.NewTimer(maxDelivery)
	defer timeout.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for queued(c.TCPConn) > 0 {
		select {
		case <-ticker.C:
		case <-timeout.C:
			return
		}
	}
}

// Reset closes the connection with a RST and drops what is queued.
func (c *Conn) Reset() {
	c.closing.Do(func() {
		_ = c.SetLinger(0)
		_ = c.TCPConn.Close()
	})
}
