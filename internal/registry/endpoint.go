package registry

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/net/connlimit"
	"github.com/zarf-dev/zarf-registry/internal/net/drain"
)

const (
	// headerTimeout bounds a TLS handshake and, separately, reading a request's header. With a thousand nodes connecting
	// while all cores serve pulls, a handshake has taken more than 10 s. Aborting it would only cost its CPU time again.
	headerTimeout = 30 * time.Second
	// keepAliveTimeout is longer than clients keep idle connections (90 s in Go's transport). The client
	// then closes the connection, and no request hits one that the server is just closing.
	keepAliveTimeout = 3 * time.Minute
	// maxConnections is for each listener of the registry. A thousand nodes that pull hold up to ten each
	// for seconds. A connection takes 60 KiB, or 200 KiB, with what the kernel keeps, if its client does not
	// read. maxDiagnostics is for probes, Prometheus and init-hook.
	maxConnections = 4096
	maxDiagnostics = 64
	// unsentSize is how much the kernel keeps for a client that does not read (TCP_NOTSENT_LOWAT), instead of 4 MiB.
	unsentSize = 128 << 10
	// maxHeader bounds a request's header, in bytes. The longest are upload URLs, a few hundred bytes.
	maxHeader = 64 << 10
)

// endpoint is a listener and its HTTP server.
type endpoint struct {
	name    string
	address string
	// sharesPort lets the loopback listener have the port of the plain one: the kernel prefers the specific address.
	sharesPort  bool
	listener    net.Listener
	connections *connlimit.Limiter
	deliveries  drain.Deliveries
	server      *http.Server
}

func newEndpoint(
	name, address string, handler http.Handler, connections *connlimit.Limiter, logger *slog.Logger,
) *endpoint {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &endpoint{
		name: name, address: address, connections: connections,
		server: &http.Server{
			Handler:           connlimit.Handler(handler),
			ConnContext:       connlimit.Context,
			ReadHeaderTimeout: headerTimeout,
			IdleTimeout:       keepAliveTimeout,
			MaxHeaderBytes:    maxHeader,
			Protocols:         protocols,
			ErrorLog:          log.New(serverLog{logger, name}, "", 0),
		},
	}
}

// listen opens all listeners or none.
func listen(ctx context.Context, endpoints []*endpoint) error {
	for i, e := range endpoints {
		if err := e.listen(ctx); err != nil {
			for _, open := range endpoints[:i] {
				_ = open.listener.Close()
			}
			return err
		}
	}
	return nil
}

func (e *endpoint) listen(ctx context.Context) error {
	// Accepted connections inherit the option.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentSize)
			if err == nil && e.sharesPort {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
		return errors.Join(controlErr, err)
	}}
	config.SetMultipathTCP(false) // the option exists for TCP only
	l, err := config.Listen(ctx, "tcp", e.address)
	if err != nil {
		return fmt.Errorf("listening for %s: %w", e.name, err)
	}
	e.listener = e.connections.Listener(e.deliveries.Listener(l))
	return nil
}

func (e *endpoint) serve() error {
	var err error
	if e.server.TLSConfig != nil {
		err = e.server.ServeTLS(e.listener, "", "")
	} else {
		err = e.server.Serve(e.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving %s at %s: %w", e.name, e.listener.Addr(), err)
}

// drain closes the listener and idle connections at once, and other connections when their requests finish, and waits
// until clients have received the responses. If ctx ends first, it cuts off what is left and returns an error.
func (e *endpoint) drain(ctx context.Context) error {
	if err := e.server.Shutdown(ctx); err != nil {
		_ = e.server.Close()
		return err
	}
	if left := e.deliveries.Wait(ctx); left > 0 {
		return fmt.Errorf("responses on %d connections were not delivered", left)
	}
	return nil
}
