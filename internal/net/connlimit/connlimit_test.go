package connlimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const longest = 30 * time.Second

// server serves with a limit. A request for /wait is answered when wait is closed, one for /endless
// never ends.
func server(t *testing.T, limit int, changes ...func(*Limiter)) (l *Limiter, address string, wait chan struct{}) {
	t.Helper()
	listener := require.Value(net.Listen("tcp", "[::]:0"))(t)
	l, wait = New(limit), make(chan struct{})
	for _, change := range changes {
		change(l)
	}
	s := &http.Server{
		Handler: Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/wait":
				<-wait
			case "/endless":
				for part := make([]byte, 64<<10); ; {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			}
			_, _ = io.WriteString(w, "served")
		})),
		ConnContext: Context,
	}
	go func() { _ = s.Serve(l.Listener(listener)) }()
	t.Cleanup(func() { _ = s.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return l, port, wait
}

type client struct {
	net.Conn
	reader *bufio.Reader
}

// connect opens a connection from an address of the loopback network.
func connect(t *testing.T, from, port string) client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := require.Value(dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port)))(t)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(longest))
	return client{c, bufio.NewReader(c)}
}

func (c client) send(path string) { fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path) }

func (c client) receive() error {
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err == nil && string(body) != "served" {
		err = fmt.Errorf("got %q", body)
	}
	return err
}

func (c client) get(path string) error {
	c.send(path)
	return c.receive()
}

// isDropped waits until the server has closed the connection.
func (c client) isDropped(t *testing.T) {
	t.Helper()
	_, err := io.Copy(io.Discard, c.reader)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection was not dropped")
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(longest); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// waiting counts the connections that have waited for their clients for at least that long.
func (l *Limiter) waiting(atLeast time.Duration) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if since := c.since.Load(); since != 0 && time.Since(time.Unix(0, since)) >= atLeast {
			n++
		}
	}
	return n
}

func TestTheLongestIdleConnectionIsReplaced(t *testing.T) {
	l, port, _ := server(t, 2)
	first, second := connect(t, "127.0.0.1", port), connect(t, "127.0.0.1", port)
	for _, c := range []client{second, first, second} { // the first is idle for longer
		require.NoError(t, c.get("/"))
		// The client may have the response before the server waits for the next request.
		eventually(t, "the server waits for requests", func() bool { return l.waiting(0) == 2 })
	}
	third := connect(t, "127.0.0.1", port)
	if err := third.get("/"); err != nil {
		t.Error(err)
	}
	first.isDropped(t)
	if err := second.get("/"); err != nil {
		t.Errorf("the other connection was dropped: %v", err)
	}
	if l.Open() != 2 || l.Dropped() != 1 {
		t.Errorf("%d open, %d dropped, want 2 and 1", l.Open(), l.Dropped())
	}
	_ = second.Close()
	_ = third.Close()
	eventually(t, "closed connections are not counted", func() bool { return l.Open() == 0 })
}

func TestSilentAndStalledConnectionsAreReplaced(t *testing.T) {
	for name, stall := range map[string]func(c client){
		"nothing is sent":                  func(client) {},
		"the header is incomplete":         func(c client) { fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: ") },
		"the response is not read":         func(c client) { c.send("/endless") },
		"responses to many are not read":   func(c client) { fmt.Fprint(c, strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 99)) },
		"the TLS record is not a request":  func(c client) { fmt.Fprint(c, "\x16\x03\x01") },
		"a response is read but not ended": func(c client) { c.send("/endless"); _, _ = c.reader.Discard(1 << 20) },
	} {
		t.Run(name, func(t *testing.T) {
			l, port, _ := server(t, 3)
			for range 3 {
				stall(connect(t, "127.0.0.1", port))
			}
			eventually(t, "they wait", func() bool { return l.waiting(20*time.Millisecond) == 3 })
			for range 10 {
				c := connect(t, "127.0.0.1", port)
				require.NoError(t, c.get("/"))
				_ = c.Close()
			}
			if l.Dropped() == 0 || l.Open() > 3 {
				t.Errorf("%d open, %d dropped", l.Open(), l.Dropped())
			}
		})
	}
}

// The address with the most connections loses one, although those of others are idle for longer.
func TestAddressesShareTheLimit(t *testing.T) {
	l, port, _ := server(t, 10)
	other := connect(t, "127.0.0.2", port)
	require.NoError(t, other.get("/"))
	for range 50 {
		connect(t, "127.0.0.3", port)
	}
	eventually(t, "the limit is reached", func() bool { return l.Dropped() == 41 })
	if err := other.get("/"); err != nil {
		t.Errorf("the only connection of its address was dropped: %v", err)
	}
}

func TestBusyConnectionsAreKept(t *testing.T) {
	l, port, wait := server(t, 2, func(l *Limiter) { l.timeout = 50 * time.Millisecond })
	busy := []client{connect(t, "127.0.0.1", port), connect(t, "127.0.0.1", port)}
	for _, c := range busy {
		c.send("/wait")
	}
	eventually(t, "both are busy", func() bool { return l.waiting(0) == 0 && l.Open() == 2 })
	connect(t, "127.0.0.1", port).isDropped(t)
	close(wait)
	for _, c := range busy {
		if err := c.receive(); err != nil {
			t.Error(err)
		}
	}
	if l.Open() != 2 || l.Dropped() != 1 {
		t.Errorf("%d open, %d dropped, want 2 and 1", l.Open(), l.Dropped())
	}
}

func TestNewConnectionsWaitForBusyOnes(t *testing.T) {
	l, port, wait := server(t, 1, func(l *Limiter) { l.timeout = longest })
	busy := connect(t, "127.0.0.1", port)
	busy.send("/wait")
	eventually(t, "it is busy", func() bool { return l.waiting(0) == 0 && l.Open() == 1 })
	next := connect(t, "127.0.0.1", port)
	next.send("/")
	time.AfterFunc(100*time.Millisecond, func() { close(wait) })
	if err := busy.receive(); err != nil {
		t.Error(err)
	}
	if err := next.receive(); err != nil {
		t.Error(err)
	}
	if l.Dropped() != 1 { // the first, when it is idle
		t.Errorf("%d dropped, want 1", l.Dropped())
	}
}

// net/http sends the end of a response after the handler has returned, and then reads the next request.
func TestConnectionsAreBusyUntilTheResponseIsSent(t *testing.T) {
	l := New(1)
	client, served := net.Pipe()
	defer client.Close()
	c := l.admit(served)
	request := httptest.NewRequestWithContext(Context(t.Context(), c), "GET", "/", nil)
	Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), request)
	_, next := net.Pipe()
	defer next.Close()
	if l.admit(next) != nil {
		t.Error("a new connection replaces one whose response may not be sent yet")
	}
	go func() { _, _ = c.Read(make([]byte, 1)) }()
	eventually(t, "it waits for a request", func() bool { return l.waiting(0) == 1 })
	if l.admit(next) == nil {
		t.Error("a new connection does not replace one that waits for a request")
	}
}
