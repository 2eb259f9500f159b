package kube

import (
	"context"
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
	//nolint:staticcheck // client-go 0.37 still takes and returns the types of this deprecated package
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// Tunnel dials a port of a pod through the API server, as kubectl port-forward
// does, but without a local port that others could use. It is safe for
// concurrent use.
//
// Every connection has a stream to the API server of its own. Connections that
// share one wait for each other: what arrives for one that nobody reads any more
// held up the others for 30 seconds.
type Tunnel struct {
	dialer httpstream.Dialer
	port   string
	target string
}

// NewTunnel prepares a tunnel to a port of a pod. It does not dial yet.
func NewTunnel(config *rest.Config, client kubernetes.Interface, pod *corev1.Pod, port int) (*Tunnel, error) {
	request := client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward")
	dialer, err := newDialer(config, request.URL())
	if err != nil {
		return nil, fmt.Errorf("preparing a tunnel to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return &Tunnel{
		dialer: dialer,
		port:   strconv.Itoa(port),
		target: fmt.Sprintf("port %d of pod %s/%s", port, pod.Namespace, pod.Name),
	}, nil
}

// newDialer prefers WebSocket and falls back to SPDY where the API server or a
// proxy before it does not know it (Kubernetes 1.30 and older).
func newDialer(config *rest.Config, target *url.URL) (httpstream.Dialer, error) {
	websocket, err := portforward.NewSPDYOverWebsocketDialer(target, config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	return portforward.NewFallbackDialer(websocket, fallback, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// DialContext opens a connection to the pod's port. Network and address are
// ignored, so that it can serve as an http.Transport's DialContext. An error of
// the pod's side (nobody listens there) arrives at the first Read.
func (t *Tunnel) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() {
		conn, err := t.dial()
		done <- dialed{conn, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, fmt.Errorf("opening a tunnel to %s: %w", t.target, d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		// client-go's dialers know no context: the connection is closed when it comes.
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, fmt.Errorf("opening a tunnel to %s: %w", t.target, ctx.Err())
	}
}

func (t *Tunnel) dial() (_ net.Conn, err error) {
	connection, protocol, err := t.dialer.Dial(portforward.PortForwardProtocolV1Name)
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
	// A forwarded connection is a pair of streams of one request id: errors
	// first, then data (Kubernetes' port-forward protocol v1).
	headers := http.Header{}
	headers.Set(corev1.PortHeader, t.port)
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	failures.Close() // this side never writes to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	c := &tunnelConn{Stream: data, connection: connection, target: t.target, failed: make(chan struct{})}
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

// tunnelConn is a data stream as a net.Conn.
type tunnelConn struct {
	httpstream.Stream
	connection httpstream.Connection
	target     string

	failed  chan struct{} // closed after failure is set
	failure error
}

func (c *tunnelConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

func (c *tunnelConn) Write(p []byte) (int, error) {
	n, err := c.Stream.Write(p)
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

// explain prefers the pod's side's own words. They arrive on another stream, so
// they may come a moment after the end of the data.
func (c *tunnelConn) explain(err error) error {
	select {
	case <-c.failed:
		return errors.Join(c.failure, err)
	case <-time.After(100 * time.Millisecond):
		return err
	}
}

func (c *tunnelConn) Close() error { return c.connection.Close() }

func (c *tunnelConn) LocalAddr() net.Addr              { return tunnelAddr(c.target) }
func (c *tunnelConn) RemoteAddr() net.Addr             { return tunnelAddr(c.target) }
func (c *tunnelConn) SetDeadline(time.Time) error      { return nil }
func (c *tunnelConn) SetReadDeadline(time.Time) error  { return nil }
func (c *tunnelConn) SetWriteDeadline(time.Time) error { return nil }

// tunnelAddr says in words where a tunnel ends.
type tunnelAddr string

func (tunnelAddr) Network() string  { return "tunnel" }
func (a tunnelAddr) String() string { return string(a) }
