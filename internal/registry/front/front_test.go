package front

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newFront lets anyone read.
func newFront(stall time.Duration, handler http.HandlerFunc) *Front {
	return &Front{
		Name:        "plain",
		Policy:      Policy{AnonymousPull: true},
		Tokens:      NewTokens("a secret that all replicas share"),
		Next:        handler,
		Metrics:     &counts{},
		Log:         slog.New(slog.DiscardHandler),
		Draining:    new(atomic.Bool),
		Now:         time.Now,
		IdleTimeout: stall,
	}
}

// pipeServer serves one connection behind a front that lets anyone read, and returns the client's end.
// It needs no network, so that it works in a bubble of synctest.
func pipeServer(t *testing.T, stall time.Duration, handler http.HandlerFunc) net.Conn {
	t.Helper()
	client, end := net.Pipe()
	listener := make(oneConn, 1)
	listener <- end
	server := &http.Server{Handler: newFront(stall, handler)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client
}

// oneConn is a listener for the connection that it contains.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l oneConn) Close() error {
	close(l)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// These tests send GET requests with bodies, because they need no credential.
func TestStalledRequestsEnd(t *testing.T) {
	t.Parallel()
	const stall = IdleTimeout
	type result struct {
		n   int64
		err error
	}
	readAll := func(results chan result) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			results <- result{n, err}
		}
	}
	inBubble(t, "a stalled body times out", func(t *testing.T) {
		results := make(chan result, 1)
		fmt.Fprint(pipeServer(t, stall, readAll(results)),
			"GET /v2/_catalog HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf ")
		if got := <-results; got.n != 5 || got.err == nil {
			t.Errorf("%+v", got)
		}
	})
	inBubble(t, "a slow body is read completely", func(t *testing.T) {
		results := make(chan result, 1)
		conn := pipeServer(t, stall, readAll(results))
		fmt.Fprint(conn, "GET /v2/_catalog HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
		for range 10 {
			time.Sleep(stall * 9 / 10)
			fmt.Fprint(conn, "x")
		}
		if got := <-results; got.n != 10 || got.err != nil {
			t.Errorf("%+v", got)
		}
	})
	inBubble(t, "a handler may take longer than the idle timeout", func(t *testing.T) {
		contexts := make(chan error, 1)
		conn := pipeServer(t, stall, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = r.Body.Read(make([]byte, 1)) // reads past the end of the body
			time.Sleep(3 * stall)
			contexts <- r.Context().Err()
		})
		reader := bufio.NewReader(conn)
		for n := range 2 { // the second request inherits the deadlines of the first
			fmt.Fprint(conn, "GET /v2/_catalog HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
			if response, err := http.ReadResponse(reader, nil); err != nil || response.StatusCode != http.StatusContinue {
				t.Fatalf("request %d got no 100 Continue: %v", n, err)
			}
			fmt.Fprint(conn, "x")
			if err := <-contexts; err != nil {
				t.Errorf("request %d was cancelled: %v", n, err)
			}
			if response, err := http.ReadResponse(reader, nil); err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("request %d: %v", n, err)
			}
			time.Sleep(2 * stall)
		}
	})
	inBubble(t, "an unwanted body is not drained", func(t *testing.T) {
		conn := pipeServer(t, stall, func(http.ResponseWriter, *http.Request) {})
		fmt.Fprint(conn, "GET /v2/_catalog HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf ")
		_ = conn.SetReadDeadline(time.Now().Add(10 * stall))
		if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "200 OK") {
			t.Errorf("the connection is still open after %q: %v", answer, err)
		}
	})
	inBubble(t, "a response that the client does not read is aborted", func(t *testing.T) {
		results := make(chan result, 1)
		conn := pipeServer(t, stall, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, &zeroBytes{1 << 30})
			results <- result{n, err}
		})
		fmt.Fprint(conn, "GET /v2/_catalog HTTP/1.1\r\nHost: x\r\n\r\n")
		if got := <-results; got.err == nil || got.n == 0 {
			t.Errorf("%+v", got)
		}
	})
	inBubble(t, "a response that the client reads slowly is sent completely", func(t *testing.T) {
		results := make(chan result, 1)
		conn := pipeServer(t, stall, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, &zeroBytes{16 << 20})
			results <- result{n, err}
		})
		fmt.Fprint(conn, "GET /v2/_catalog HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		buffer := make([]byte, 2<<20)
		for {
			if _, err := io.ReadFull(conn, buffer); err != nil {
				break
			}
			time.Sleep(stall * 9 / 10)
		}
		if got := <-results; got.err != nil || got.n != 16<<20 {
			t.Errorf("%+v", got)
		}
	})
}

func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestFrontRemovesCredentialsAndForwardedHeaders(t *testing.T) {
	t.Parallel()
	var got http.Header
	f := newFront(IdleTimeout, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	request := httptest.NewRequest(http.MethodGet, "/v2/_catalog", nil)
	for _, name := range append([]string{"Authorization", "Cookie"}, forwarded...) {
		request.Header.Set(name, "x")
	}
	request.Header.Set("Range", "bytes=0-1")
	f.ServeHTTP(httptest.NewRecorder(), request)
	for _, name := range append([]string{"Authorization", "Cookie"}, forwarded...) {
		if got.Get(name) != "" {
			t.Errorf("%s is forwarded", name)
		}
	}
	if got.Get("Range") == "" {
		t.Error("Range is not forwarded")
	}
}

func TestPanickingHandlersAreCounted(t *testing.T) {
	t.Parallel()
	f := newFront(IdleTimeout, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(f)
	if _, err := http.Get(server.URL); err == nil {
		t.Error("the request was answered")
	}
	server.Close()
	counted := f.Metrics.(*counts)
	if counted.inFlight != 0 || !slices.Equal(counted.codes, []int{http.StatusInternalServerError}) {
		t.Errorf("%d requests are in flight, and %v were counted", counted.inFlight, counted.codes)
	}
}

// counts implements recorder.
type counts struct {
	mu       sync.Mutex
	inFlight int
	codes    []int
}

func (c *counts) Begin(string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight++
}

func (c *counts) End(_, _ string, code int, _, _ int64, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
	c.codes = append(c.codes, code)
}

// zeroBytes is a body of zero bytes.
type zeroBytes struct{ left int64 }

func (z *zeroBytes) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}
