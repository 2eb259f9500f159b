package cache

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/hopbyhop"
	"github.com/zarf-dev/zarf-registry/internal/net/httprange"
	"github.com/zarf-dev/zarf-registry/internal/net/serviceaddress"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Limits of requests to the registry. They are shorter than those of the proxies, which ask the registry
// themselves if a cache does not respond in time.
const (
	dialTimeout     = 2 * time.Second
	progressTimeout = 5 * time.Second // for a header, and without progress of a body; object storage is slow
	// resumes is how many times in a row a body may break off without progress.
	resumes     = 5
	resumeDelay = 200 * time.Millisecond
)

type origin struct {
	address         serviceaddress.Address
	source          *tlsfiles.Source
	metrics         *cacheMetrics
	progressTimeout time.Duration // the constant

	mu        sync.Mutex
	material  *tlsfiles.Material // of transport
	transport *http.Transport
}

// current returns the transport for the current certificates. Each generation has its own, because
// connections and sessions established under other CAs must not be reused.
func (o *origin) current() *http.Transport {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m := o.source.Current(); o.material != m {
		if o.transport != nil {
			o.transport.CloseIdleConnections()
		}
		o.material = m
		o.transport = &http.Transport{
			DialContext:           o.dial,
			TLSClientConfig:       tlsfiles.ClientConfig(m, o.address.Host),
			TLSHandshakeTimeout:   o.progressTimeout,
			ResponseHeaderTimeout: o.progressTimeout,
			MaxIdleConnsPerHost:   maxIdle,
			IdleConnTimeout:       10 * time.Second, // as the proxies' connections
			DisableCompression:    true,
			TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
			ReadBufferSize:        32 << 10,
		}
	}
	return o.transport
}

// dial connects to the ClusterIP, or to the name if the environment names none or it does not respond.
func (o *origin) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	var errs error
	if o.address.ClusterIP.IsValid() {
		c, err := dialer.DialContext(ctx, network, o.address.ClusterIP.String())
		if err == nil {
			return c, nil
		}
		errs = err
	}
	c, err := dialer.DialContext(ctx, network, o.address.String())
	if err == nil {
		return c, nil
	}
	return nil, errors.Join(errs, err)
}

// do sends a request with what the client accepts, for the bytes from start. The caller closes the body. An
// error means that the registry is unreachable.
func (o *origin) do(ctx context.Context, method, path string, from http.Header, start int64) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+o.address.String()+path, nil)
	if err != nil {
		return nil, err
	}
	for _, name := range [...]string{"Accept", "User-Agent"} {
		if values := from.Values(name); len(values) > 0 {
			request.Header[name] = values
		}
	}
	if start > 0 {
		request.Header.Set("Range", "bytes="+strconv.FormatInt(start, 10)+"-")
	}
	response, err := o.current().RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("the registry %s is unreachable: %w", o.address, err)
	}
	return response, nil
}

// unavailable reports whether a response means that the registry cannot respond now, or that an
// intermediary could not reach it.
func unavailable(r *http.Response) bool { return r.StatusCode >= http.StatusInternalServerError }

// FromGateway reports whether an intermediary says that it cannot reach the registry, whose own responses have a header
// or are JSON.
func FromGateway(r *http.Response) bool {
	switch r.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return r.Header.Get(oci.HeaderAPIVersion) == "" &&
			!strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
	}
	return false
}

// body is the content of a blob. It resumes when it breaks off.
type body struct {
	origin *origin
	ctx    context.Context //nolint:containedctx // of the fetch, which reads
	path   string
	header http.Header
	size   int64

	offset   int64
	failures int // in a row
	current  *timedReader
}

func (o *origin) open(ctx context.Context, path string, size int64, header http.Header) (io.ReadCloser, error) {
	b := &body{origin: o, ctx: ctx, path: path, header: header, size: size}
	if err := b.request(); err != nil {
		return nil, err
	}
	return b, nil
}

// Close ends the request. It returns nil.
func (b *body) Close() error {
	if b.current != nil {
		b.current.cancel()
		_ = b.current.Close()
		b.current = nil
	}
	return nil
}

func (b *body) request() error {
	ctx, cancel := context.WithCancel(b.ctx)
	response, err := b.origin.do(ctx, http.MethodGet, b.path, b.header, b.offset) //nolint:bodyclose // closed by Close
	if err != nil {
		cancel()
		return err
	}
	b.current = &timedReader{ReadCloser: response.Body, limit: b.origin.progressTimeout, cancel: cancel}
	want := httprange.ContentRange{Start: b.offset, End: b.size, Size: b.size}
	got, err := httprange.FromResponse(response)
	if err == nil && got != want {
		err = fmt.Errorf("the registry sent %s, want %s", got, want)
	}
	if err != nil {
		_ = b.Close()
	}
	return err
}

func (b *body) Read(p []byte) (n int, err error) {
	for {
		if b.current != nil {
			n, err = b.current.Read(p)
			b.offset += int64(n)
			b.origin.metrics.fetched.AddInt64(int64(n))
			if n > 0 {
				b.failures = 0
				return n, nil
			}
			if err == nil || b.offset >= b.size {
				return n, err
			}
			_ = b.Close()
		}
		if b.failures++; b.failures > resumes || b.ctx.Err() != nil {
			return 0, err
		}
		b.origin.metrics.resumes.Inc()
		time.Sleep(resumeDelay)
		if requestErr := b.request(); requestErr != nil {
			err = requestErr
		}
	}
}

// timedReader cancels the request when a read takes too long.
type timedReader struct {
	io.ReadCloser
	limit  time.Duration
	cancel context.CancelFunc
}

func (r *timedReader) Read(p []byte) (int, error) {
	timer := time.AfterFunc(r.limit, r.cancel)
	defer timer.Stop()
	return r.ReadCloser.Read(p)
}

// endToEnd returns the headers that are for the client. The server sets the date itself.
func endToEnd(from http.Header) http.Header {
	to := http.Header{}
	for name, values := range from {
		if name != "Date" && !hopbyhop.Is(from, name) {
			to[name] = values
		}
	}
	return to
}
