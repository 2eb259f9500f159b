package cluster

import (
	"context"
	"crypto/fips140"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// PodDialer opens a connection to a port of a pod. The connection may support no deadlines, and an
// error of the pod's side may arrive at the first Read.
type PodDialer func(ctx context.Context, pod *corev1.Pod, port int) (net.Conn, error)

// PortForward returns a PodDialer that connects through the API server, as kubectl port-forward does,
// but without a local port that other users could connect to. It is safe for concurrent use.
//
// Each connection has its own stream to the API server. Connections that share a stream block each
// other: data for one that was no longer read delayed the others for 30 seconds.
func PortForward(config *rest.Config, client kubernetes.Interface) PodDialer {
	return func(ctx context.Context, pod *corev1.Pod, port int) (net.Conn, error) {
		conn, err := forward(ctx, config, client, pod, port)
		if err != nil {
			return nil, fmt.Errorf("port-forward to port %d of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
		}
		return conn, nil
	}
}

func forward(ctx context.Context, config *rest.Config, client kubernetes.Interface, pod *corev1.Pod,
	port int) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	request := client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward")
	dialer, err := newDialer(config, request.URL())
	if err != nil {
		return nil, err
	}
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := dial(dialer, port, fmt.Sprintf("port %d of pod %s/%s", port, pod.Namespace, pod.Name))
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		// client-go's dialers take no context: close the connection when it arrives.
		go func() {
			if r := <-done; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// newDialer prefers WebSocket and falls back to SPDY if the API server or a proxy in front of it does
// not support it (Kubernetes 1.30). Where only algorithms approved by FIPS 140-3 are allowed, it uses SPDY: the
// handshake of WebSocket has SHA-1 (RFC 6455).
func newDialer(config *rest.Config, target *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	if fips140.Enforced() {
		return fallback, nil
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(websocket, fallback, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

func dial(dialer httpstream.Dialer, port int, target string) (_ net.Conn, err error) {
	connection, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = connection.Close()
		}
	}()
	if protocol != portforward.PortForwardProtocolV1Name {
		return nil, fmt.Errorf("the API server speaks %q, not %q", protocol, portforward.PortForwardProtocolV1Name)
	}
	// A forwarded connection is a pair of streams with one request ID: errors, then data (port-forward
	// protocol v1).
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := createStream(connection, headers)
	if err != nil {
		return nil, err
	}
	failures.Close() // this side never writes
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := createStream(connection, headers)
	if err != nil {
		return nil, err
	}
	c := &forwardedConn{Stream: data, connection: connection, target: target, failed: make(chan struct{})}
	go func() {
		message, err := io.ReadAll(io.LimitReader(failures, 4<<10))
		if err == nil && len(message) > 0 {
			c.failure = fmt.Errorf("%s: %s", c.target, message)
			close(c.failed)
			_ = data.Reset()
		}
	}()
	return c, nil
}

// createStream creates a stream, until the connection closes: client-go would wait for a reply for another
// 30 s.
func createStream(connection httpstream.Connection, headers http.Header) (httpstream.Stream, error) {
	type result struct {
		stream httpstream.Stream
		err    error
	}
	done := make(chan result, 1)
	go func() {
		stream, err := connection.CreateStream(headers)
		done <- result{stream, err}
	}()
	select {
	case r := <-done:
		return r.stream, r.err
	case <-connection.CloseChan():
		return nil, errors.New("the connection to the API server broke")
	}
}

// forwardedConn is a data stream as a net.Conn without deadlines.
type forwardedConn struct {
	httpstream.Stream
	connection httpstream.Connection
	target     string

	failed  chan struct{} // closed after failure is set
	failure error
}

func (c *forwardedConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

func (c *forwardedConn) Write(p []byte) (int, error) {
	n, err := c.Stream.Write(p)
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

// explain prefers the error of the pod's side. It arrives on another stream, so it may come shortly
// after the end of the data.
func (c *forwardedConn) explain(err error) error {
	select {
	case <-c.failed:
		return errors.Join(c.failure, err)
	case <-time.After(100 * time.Millisecond):
		return err
	}
}

func (c *forwardedConn) Close() error { return c.connection.Close() }

func (c *forwardedConn) LocalAddr() net.Addr              { return forwardedAddr(c.target) }
func (c *forwardedConn) RemoteAddr() net.Addr             { return forwardedAddr(c.target) }
func (c *forwardedConn) SetDeadline(time.Time) error      { return nil }
func (c *forwardedConn) SetReadDeadline(time.Time) error  { return nil }
func (c *forwardedConn) SetWriteDeadline(time.Time) error { return nil }

// forwardedAddr describes the pod's end of a forwarded connection.
type forwardedAddr string

func (forwardedAddr) Network() string  { return "port-forward" }
func (a forwardedAddr) String() string { return string(a) }
