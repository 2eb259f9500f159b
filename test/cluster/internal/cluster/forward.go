package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

const forwarder = "forwarder"

// forwarder is the process that gives the host access to the API server.
func (c *Cluster) forwarder() Process {
	return Process{ID: forwarder, OnHost: true, Args: []string{
		c.self(), "internal", "forward",
		"--listen=127.0.0.1:" + strconv.Itoa(c.Port),
		"--netns=" + netnsPath(c.Options.Name, controlPlaneName),
		"--to=" + c.innerAddress(),
	}}
}

// Forward accepts connections at a TCP address and connects each to an address inside a network
// namespace, until the context ends. That address must not be a name: resolution would happen
// outside the namespace.
func Forward(ctx context.Context, listen, netns, to string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		connection, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("forwarding: %w", err)
		}
		go forward(connection, netns, to)
	}
}

func forward(client net.Conn, netns, to string) {
	defer client.Close()
	var server net.Conn
	err := InNetns(netns, func() (err error) {
		server, err = net.DialTimeout("tcp", to, 10*time.Second)
		return err
	})
	if err != nil {
		// The client sees a closed connection, as with a server that is down.
		return
	}
	defer server.Close()
	var wait sync.WaitGroup
	wait.Go(func() { pipe(client, server) })
	wait.Go(func() { pipe(server, client) })
	wait.Wait()
}

// pipe copies until the source ends, and forwards the end. If copying fails, it closes both
// connections.
func pipe(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		from.Close()
		to.Close()
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails only if the peer is gone
	}
}
