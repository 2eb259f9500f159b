package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clients is the number of concurrent clients: a node that pulls several images.
	clients = 8
	// smallSize is the size of small responses in bytes: about that of a manifest.
	smallSize = 1 << 10
	// responseTimeout limits each request. A GiB takes about two seconds.
	responseTimeout = 2 * time.Minute
)

// load configures the measurements; see the flags.
type load struct {
	connect, keep time.Duration
	stream        int64 // size of a large body in bytes
	idle          int   // number of idle connections
	quiet         time.Duration
}

// dialer connects to the proxy.
type dialer func(ctx context.Context) (net.Conn, error)

func request(size int64, header string) []byte {
	return fmt.Appendf(nil, "GET /v2/bench/blobs/%d HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nUser-Agent: "+
		"containerd/2.2\r\nAccept: */*\r\n%s\r\n", size, header)
}

// roundTrip sends a request for smallSize bytes and reads the response.
func roundTrip(c net.Conn, request, buffer []byte) error {
	if err := c.SetDeadline(time.Now().Add(responseTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	n, head := 0, -1
	for head < 0 || n < head+smallSize {
		more, err := c.Read(buffer[n:])
		n += more
		if head < 0 {
			head = endOfHead(buffer[:n])
		}
		if err != nil && (head < 0 || n < head+smallSize) {
			return fmt.Errorf("after %q: %w", buffer[:n], err)
		}
	}
	return checkSmall(buffer[:n], head)
}

// endOfHead returns the offset of the body, or -1 if the headers are incomplete.
func endOfHead(data []byte) int {
	if n := bytes.Index(data, []byte("\r\n\r\n")); n >= 0 {
		return n + 4
	}
	return -1
}

func checkSmall(data []byte, head int) error {
	if !bytes.HasPrefix(data, []byte("HTTP/1.1 200")) || !bytes.Equal(data[head:], content[:smallSize]) {
		return fmt.Errorf("unexpected response: %q", data)
	}
	return nil
}

// connectLoad opens a connection for each request. It returns the latencies, sorted, and the total time.
func connectLoad(ctx context.Context, dial dialer, d time.Duration) ([]time.Duration, time.Duration, error) {
	request := request(smallSize, "Connection: close\r\n")
	return runClients(d, func(buffer []byte, next func(time.Time) bool) error {
		for at := time.Now(); next(at); at = time.Now() {
			c, err := dial(ctx)
			if err != nil {
				return err
			}
			err = roundTrip(c, request, buffer)
			_ = c.Close()
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// keepLoad sends all requests of a client over one connection. It returns the same as connectLoad.
func keepLoad(ctx context.Context, dial dialer, d time.Duration) ([]time.Duration, time.Duration, error) {
	request := request(smallSize, "")
	return runClients(d, func(buffer []byte, next func(time.Time) bool) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		for at := time.Now(); next(at); at = time.Now() {
			if err := roundTrip(c, request, buffer); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// runClients runs concurrent clients for the duration d. A client calls next with the current time before
// each request and stops when it returns false. runClients returns the latencies, sorted, and the total
// time.
func runClients(d time.Duration, client func(buffer []byte, next func(time.Time) bool) error) (
	latencies []time.Duration, elapsed time.Duration, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	for range clients {
		group.Go(func() {
			var own []time.Duration
			var last time.Time
			e := client(make([]byte, 16<<10), func(at time.Time) bool {
				first := last.IsZero() // always sent, even if a busy machine starts the client late
				if !first {
					own = append(own, at.Sub(last))
				}
				last = at
				return first || at.Sub(began) < d
			})
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
			err = errors.Join(err, e)
		})
	}
	group.Wait()
	slices.Sort(latencies)
	return latencies, time.Since(began), err
}

// streamLoad downloads several bodies at once, and checks their lengths and samples of their content.
func streamLoad(ctx context.Context, dial dialer, streams int, size int64) (elapsed time.Duration, err error) {
	failed := make([]error, streams)
	var group sync.WaitGroup
	began := time.Now()
	for n := range streams {
		group.Go(func() { failed[n] = stream(ctx, dial, size) })
	}
	group.Wait()
	return time.Since(began), errors.Join(failed...)
}

func stream(ctx context.Context, dial dialer, size int64) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(responseTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(request(size, "Connection: close\r\n")); err != nil {
		return err
	}
	buffer := make([]byte, 256<<10)
	n, head := 0, -1
	for head < 0 {
		more, err := c.Read(buffer[n:])
		if err != nil {
			return err
		}
		n += more
		head = endOfHead(buffer[:n])
	}
	if !bytes.HasPrefix(buffer, []byte("HTTP/1.1 200")) {
		return fmt.Errorf("unexpected response: %q", buffer[:head])
	}
	at := int64(0)
	for body := buffer[head:n]; ; {
		if err := sample(body, at); err != nil {
			return err
		}
		if at += int64(len(body)); at >= size {
			break
		}
		n, err := c.Read(buffer)
		if n == 0 && err != nil {
			return fmt.Errorf("the body ended after %d of %d bytes: %w", at, size, err)
		}
		body = buffer[:n]
	}
	if at != size {
		return fmt.Errorf("the body has %d bytes, want %d", at, size)
	}
	return nil
}

// sample compares the first bytes of a piece of a body with the expected content.
func sample(piece []byte, at int64) error {
	want := content[at%int64(len(content)):]
	n := min(64, len(piece), len(want))
	if !bytes.Equal(piece[:n], want[:n]) {
		return fmt.Errorf("wrong bytes at %d", at)
	}
	return nil
}

// idle is a set of connections that stay open after one request.
type idle []net.Conn

// add opens connections, several at a time, until there are n.
func (i *idle) add(ctx context.Context, dial dialer, n int) error {
	missing := n - len(*i)
	if missing <= 0 {
		return nil
	}
	opened := make([]net.Conn, missing)
	failed := make([]error, clients)
	var next atomic.Int64
	var group sync.WaitGroup
	for worker := range clients {
		group.Go(func() {
			buffer := make([]byte, 16<<10)
			for n := next.Add(1) - 1; n < int64(missing) && failed[worker] == nil; n = next.Add(1) - 1 {
				if opened[n], failed[worker] = dial(ctx); failed[worker] == nil {
					failed[worker] = roundTrip(opened[n], request(smallSize, ""), buffer)
				}
			}
		})
	}
	group.Wait()
	for _, c := range opened {
		if c != nil {
			*i = append(*i, c)
		}
	}
	return errors.Join(failed...)
}

func (i *idle) close() {
	for _, c := range *i {
		_ = c.Close()
	}
	*i = nil
}

// alive returns an error if a connection was closed or received data.
func (i *idle) alive() error {
	one := make([]byte, 1)
	for _, c := range *i {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		e := raw.Control(func(fd uintptr) { _, _, err = unix.Recvfrom(int(fd), one, unix.MSG_PEEK|unix.MSG_DONTWAIT) })
		if e != nil || !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("an idle connection was closed or received data (%w)", cmp.Or(e, err, io.EOF))
		}
	}
	return nil
}
