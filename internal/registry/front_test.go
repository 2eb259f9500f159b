package registry

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// frontServer serves handler behind a front that lets anyone read.
func frontServer(t *testing.T, stall time.Duration, handler http.HandlerFunc) (address string, f *front) {
	t.Helper()
	f = &front{
		name:        "plain",
		policy:      policy{anonymousPull: true},
		next:        handler,
		metrics:     newMetrics("dev"),
		log:         slog.New(slog.DiscardHandler),
		draining:    new(atomic.Bool),
		now:         time.Now,
		idleTimeout: stall,
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), f
}

func dialPlain(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// These tests send GET requests with bodies, because they need no credential.
func TestStalledRequestsEnd(t *testing.T) {
	// On a busy machine, slow clients must not become stalled ones.
	const stall, long = 250 * time.Millisecond, 3 * time.Second
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
	t.Run("a stalled body times out", func(t *testing.T) {
		results := make(chan result, 1)
		address, _ := frontServer(t, stall, readAll(results))
		fmt.Fprint(dialPlain(t, address), "GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf ")
		if got := <-results; got.n != 5 || got.err == nil {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a slow body is read completely", func(t *testing.T) {
		t.Parallel()
		results := make(chan result, 1)
		address, _ := frontServer(t, long, readAll(results))
		conn := dialPlain(t, address)
		fmt.Fprint(conn, "GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
		for range 10 {
			time.Sleep(long / 5)
			fmt.Fprint(conn, "x")
		}
		if got := <-results; got.n != 10 || got.err != nil {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a handler may take longer than the idle timeout", func(t *testing.T) {
		contexts := make(chan error, 1)
		address, _ := frontServer(t, stall, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = r.Body.Read(make([]byte, 1)) // reads past the end of the body
			time.Sleep(3 * stall)
			contexts <- r.Context().Err()
		})
		conn := dialPlain(t, address)
		reader := bufio.NewReader(conn)
		for n := range 2 { // the second request inherits the deadlines of the first
			fmt.Fprint(conn, "GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
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
	t.Run("an unwanted body is not drained", func(t *testing.T) {
		address, _ := frontServer(t, stall, func(http.ResponseWriter, *http.Request) {})
		conn := dialPlain(t, address)
		fmt.Fprint(conn, "GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf ")
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "200 OK") {
			t.Errorf("the connection is still open after %q: %v", answer, err)
		}
	})
	t.Run("a response that the client does not read is aborted", func(t *testing.T) {
		results := make(chan result, 1)
		address, _ := frontServer(t, stall, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, &zeros{1 << 30})
			results <- result{n, err}
		})
		fmt.Fprint(dialPlain(t, address), "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
		if got := <-results; got.err == nil || got.n == 0 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a response that the client reads slowly is sent completely", func(t *testing.T) {
		t.Parallel()
		results := make(chan result, 1)
		address, _ := frontServer(t, long, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, &zeros{16 << 20})
			results <- result{n, err}
		})
		conn := dialPlain(t, address)
		fmt.Fprint(conn, "GET /v2/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		buffer := make([]byte, 2<<20)
		for {
			if _, err := io.ReadFull(conn, buffer); err != nil {
				break
			}
			time.Sleep(long / 5)
		}
		if got := <-results; got.err != nil || got.n != 16<<20 {
			t.Errorf("%+v", got)
		}
	})
}

func TestFrontRemovesCredentialsAndForwardedHeaders(t *testing.T) {
	headers := make(chan http.Header, 1)
	address, _ := frontServer(t, transferIdleTimeout, func(w http.ResponseWriter, r *http.Request) { headers <- r.Header })
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/v2/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"Authorization", "Cookie"}, forwarded...) {
		request.Header.Set(name, "x")
	}
	request.Header.Set("Range", "bytes=0-1")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	got := <-headers
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
	address, f := frontServer(t, transferIdleTimeout, func(http.ResponseWriter,
		*http.Request) {
		panic(http.ErrAbortHandler)
	})
	if _, err := http.Get("http://" + address); err == nil {
		t.Error("the request was answered")
	}
	recorder := httptest.NewRecorder()
	f.metrics.handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`zarf_registry_http_requests_total{code="500",listener="plain",method="GET"} 1`,
		`zarf_registry_http_requests_in_flight{listener="plain"} 0`,
	} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("missing %s", want)
		}
	}
}
