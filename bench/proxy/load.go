package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// answerTimeout limits each request; a GiB takes a second or two.
	answerTimeout = 2 * time.Minute
)

// load is how much is requested.
type load struct {
	connect, keep time.Duration
	stream        int64 // bytes
	few, many     int   // idle connections
	quiet         time.Duration
}

// dialer connects to the proxy, or to the registry with TLS.
type dialer func(ctx context.Context) (net.Conn, error)

func request(size int64, header string) []byte {
	return fmt.Appendf(nil, "GET /v2/bench/blobs/%d HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nUser-Agent: "+
		"containerd/2.2\r\nAccept: */*\r\n%s\r\n", size, header)
}

// ask sends a request of smallSize and reads the whole response.
func ask(c net.Conn, request, buffer []byte) error {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
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

// endOfHead returns the offset of the body, or -1.
func endOfHead(data []byte) int {
	if n := bytes.Index(data, []byte("\r\n\r\n")); n >= 0 {
		return n + 4
	}
	return -1
}

func checkSmall(data []byte, head int) error {
	if !bytes.HasPrefix(data, []byte("HTTP/1.1 200")) || !bytes.Equal(data[head:], content[:smallSize]) {
		return fmt.Errorf("a wrong answer: %q", data)
	}
	return nil
}

// connectLoad opens a connection for each request. It returns how long each took.
func connectLoad(ctx context.Context, dial dialer, d time.Duration) ([]time.Duration, time.Duration, error) {
	request := request(smallSize, "Connection: close\r\n")
	return together(d, func(buffer []byte, again func(time.Time) bool) error {
		for at := time.Now(); again(at); at = time.Now() {
			c, err := dial(ctx)
			if err != nil {
				return err
			}
			err = ask(c, request, buffer)
			_ = c.Close()
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// keepLoad keeps one connection per client.
func keepLoad(ctx context.Context, dial dialer, d time.Duration) ([]time.Duration, time.Duration, error) {
	request := request(smallSize, "")
	return together(d, func(buffer []byte, again func(time.Time) bool) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		for at := time.Now(); again(at); at = time.Now() {
			if err := ask(c, request, buffer); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// together runs clients that do one request between two calls of again, which is
// told when it began and says whether to do another. It returns what they took,
// sorted.
func together(d time.Duration, client func(buffer []byte, again func(time.Time) bool) error) (latencies []time.Duration,
	elapsed time.Duration, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	for range clients {
		group.Go(func() {
			var own []time.Duration
			var last time.Time
			e := client(make([]byte, 16<<10), func(at time.Time) bool {
				first := last.IsZero() // it is always made: a busy machine may begin late
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

// streamLoad downloads that many bodies of size at once, and checks their lengths and samples of
// their content.
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
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
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
		return fmt.Errorf("a wrong answer: %q", buffer[:head])
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
			return fmt.Errorf("the body ended after %d bytes of %d: %w", at, size, err)
		}
		body = buffer[:n]
	}
	if at != size {
		return fmt.Errorf("a body has %d bytes, not %d", at, size)
	}
	return nil
}

// sample compares the beginning of a part of a body with the expected content.
func sample(piece []byte, at int64) error {
	want := content[at%int64(len(content)):]
	n := min(64, len(piece), len(want))
	if !bytes.Equal(piece[:n], want[:n]) {
		return fmt.Errorf("wrong bytes at %d", at)
	}
	return nil
}

// idle are connections after one request.
type idle []net.Conn

// add opens connections until there are n, several at a time: a proxy that forks needs a process
// and a handshake for each.
func (i *idle) add(ctx context.Context, dial dialer, n int) error {
	missing := n - len(*i)
	if missing <= 0 {
		return nil
	}
	made := make([]net.Conn, missing)
	failed := make([]error, clients)
	var next atomic.Int64
	var group sync.WaitGroup
	for worker := range clients {
		group.Go(func() {
			buffer := make([]byte, 16<<10)
			for n := next.Add(1) - 1; n < int64(missing) && failed[worker] == nil; n = next.Add(1) - 1 {
				if made[n], failed[worker] = dial(ctx); failed[worker] == nil {
					failed[worker] = ask(made[n], request(smallSize, ""), buffer)
				}
			}
		})
	}
	group.Wait()
	for _, c := range made {
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

// alive checks that none of them was closed.
func (i *idle) alive() error {
	one := make([]byte, 1)
	for _, c := range *i {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		e := raw.Control(func(fd uintptr) { _, _, err = unix.Recvfrom(int(fd), one, unix.MSG_PEEK|unix.MSG_DONTWAIT) })
		if e != nil || !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("an idle connection was closed, or got something unasked: %w", errors.Join(e, err))
		}
	}
	return nil
}
