package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// trusting returns a transport that verifies the proxy's certificate.
func trusting(f *fixture) *http.Transport {
	return &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: f.source.Current().CAPool},
		DisableKeepAlives:  true,
		DisableCompression: true,
		ForceAttemptHTTP2:  true,
	}
}

// pullOver pulls at addresses in plain HTTP and over TLS.
func (f *fixture) pullOver(t *testing.T, content blob, addresses ...net.Addr) {
	t.Helper()
	for _, address := range addresses {
		for scheme, client := range map[string]*http.Transport{"http": {DisableKeepAlives: true}, "https": trusting(f)} {
			request, _ := http.NewRequest(http.MethodGet, scheme+"://"+address.String()+content.path(), nil)
			response := require.Value(client.RoundTrip(request))(t)
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err := content.check(response, body, err); err != nil || response.ProtoMajor != 1 {
				t.Errorf("%s on %s: %s, %v", scheme, address, response.Proto, err)
			}
		}
	}
}

func TestTLSAndPlainOnOnePort(t *testing.T) {
	content := newBlob(300_000)
	f := start(t, store{content})
	f.pullOver(t, content, f.proxy.Addrs()...)
}

// getHTTP10 sends an HTTP/1.0 request and returns the body, which ends with its length or with the
// connection.
func getHTTP10(t *testing.T, f *fixture, path string, withTLS bool) ([]byte, error) {
	t.Helper()
	c := f.dial(t)
	if withTLS {
		c = tls.Client(c, &tls.Config{RootCAs: f.source.Current().CAPool, ServerName: "localhost"})
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(longest))
	fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
	response := require.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
	body, err := io.ReadAll(response.Body)
	return body, err
}

// containerd tries HTTPS first and falls back to HTTP if the error says that the server speaks
// HTTP.
func TestClientHelloWithoutTLS(t *testing.T) {
	content := newBlob(10)
	f := start(t, store{content}, func(p *Proxy) { p.config.ServeTLS = false })
	for range 20 {
		request, _ := http.NewRequest(http.MethodGet, "https://"+f.address()+"/v2/", nil)
		insecure := &tls.Config{InsecureSkipVerify: true} // as containerd does for loopback
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: insecure}}
		if _, err := client.Do(request); !errors.Is(err, http.ErrSchemeMismatch) {
			t.Fatalf("error = %v", err)
		}
		var record tls.RecordHeaderError
		if c, err := tls.Dial("tcp", f.address(), insecure); err == nil {
			_ = c.Close()
			t.Fatal("a TLS handshake succeeded")
		} else if !errors.As(err, &record) || string(record.RecordHeader[:]) != "HTTP/" {
			t.Fatalf("error = %v, %q", err, record.RecordHeader)
		}
	}
	if got := f.metric("tls_refused_total"); got != 40 {
		t.Errorf("%v handshakes were counted as refused, want 40", got)
	}
	f.pull(t, content)
}

// A plain request may contain the byte that TLS begins with, at the beginning of a read.
func TestPlainRequestWithTheFirstByteOfTLS(t *testing.T) {
	f := start(t, store{}, func(p *Proxy) { p.config.ServeTLS = false })
	c := f.dial(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(longest))
	fmt.Fprint(c, "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX: ")
	eventually(t, "it is connected", func() bool { return f.metric("connections") == 1 })
	time.Sleep(50 * time.Millisecond) // so that the next bytes are a read of their own
	fmt.Fprint(c, "\x16\r\n\r\n")
	response := require.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusBadRequest || string(body) != response.Status || err != nil { // net/http's
		t.Errorf("%s %q %v", response.Status, body, err)
	}
	if got := f.metric("tls_refused_total"); got != 0 {
		t.Errorf("%v handshakes were refused", got)
	}
}

// Silent clients and those that stall in a request are disconnected and do not block others.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	content := newBlob(10)
	f := start(t, store{content}, func(p *Proxy) { p.limits.readHeader = 5 * time.Second })
	var mute []net.Conn
	for i := range 200 {
		c := f.dial(t)
		defer c.Close()
		begin := [...]string{"", "G", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX: ", "\x16", "\x16\x03\x01\x02\x00",
			"\x16\x03\x01\x00\x05hello"}[i%6]
		require.Value(io.WriteString(c, begin))(t)
		mute = append(mute, c)
	}
	f.pull(t, content)
	for i, c := range mute {
		_ = c.SetDeadline(time.Now().Add(longest))
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("connection %d is still open: %v", i, err)
		}
	}
}

// A client that trickles its header is cut off, however often it sends a byte.
func TestSlowLoris(t *testing.T) {
	f := start(t, store{}, func(p *Proxy) { p.limits.readHeader = time.Second / 2 })
	c := f.dial(t)
	defer c.Close()
	fmt.Fprint(c, "GET /v2/ HTTP/1.1\r\nHost: localhost\r\n")
	eventually(t, "the connection ends", func() bool {
		_, err := fmt.Fprint(c, "X: y\r\n")
		return err != nil
	})
}

func TestListen(t *testing.T) {
	f := start(t, store{})
	try := func(t *testing.T, change func(*Config)) (*Proxy, error) {
		t.Helper()
		config := f.proxy.config
		config.MetricsListen = ""
		change(&config)
		p, err := New(config)
		if err != nil {
			return nil, err
		}
		if err := p.Listen(t.Context()); err != nil {
			return nil, err
		}
		t.Cleanup(p.closeListeners)
		return p, nil
	}
	refused := func(t *testing.T, want string, change func(*Config)) {
		t.Helper()
		if _, err := try(t, change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one that contains %q", err, want)
		}
	}
	listen := func(addresses ...string) func(*Config) { return func(c *Config) { c.Listen = addresses } }

	t.Run("no address", func(t *testing.T) { refused(t, "no listen address", listen()) })
	t.Run("an address without a port", func(t *testing.T) { refused(t, `"127.0.0.1"`, listen("127.0.0.1")) })
	t.Run("a name", func(t *testing.T) { refused(t, "must be an IP address", listen("localhost:0")) })
	t.Run("an IPv4-mapped IPv6 address", func(t *testing.T) {
		refused(t, "want a plain IPv4 address", listen("[::ffff:127.0.0.1]:0"))
	})
	t.Run("an invalid port", func(t *testing.T) { refused(t, "127.0.0.1:x", listen("127.0.0.1:x")) })
	t.Run("an invalid metrics address", func(t *testing.T) {
		refused(t, `"x"`, func(c *Config) { c.MetricsListen = "x" })
	})
	t.Run("a port in use, though another address works", func(t *testing.T) {
		refused(t, f.address()+": bind: address already in use", listen("127.0.0.1:0", f.address()))
	})
	t.Run("a metrics port in use", func(t *testing.T) {
		refused(t, "address already in use", func(c *Config) { c.MetricsListen = f.proxy.MetricsAddr().String() })
	})
	// No node has an address of 192.0.2.0/24, which is reserved for documentation, just as some have
	// no ::1.
	t.Run("an unavailable address and another one", func(t *testing.T) {
		p := require.Value(try(t, listen("192.0.2.1:0", "127.0.0.1:0")))(t)
		if len(p.Addrs()) != 1 {
			t.Errorf("listening on %v", p.Addrs())
		}
	})
	t.Run("only unavailable addresses", func(t *testing.T) {
		refused(t, "192.0.2.1:10001", listen("192.0.2.1:10001", "[2001:db8::1]:10002"))
		refused(t, "[2001:db8::1]:10002", listen("192.0.2.1:10001", "[2001:db8::1]:10002"))
	})
	t.Run("one port in both families", func(t *testing.T) {
		requireIPv6(t)
		p := require.Value(try(t, listen("[::]:0")))(t)
		_, port, _ := net.SplitHostPort(p.Addrs()[0].String())
		if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close()
			t.Error("a listener on an IPv6 address accepts IPv4")
		}
		if _, err := try(t, listen("0.0.0.0:"+port)); err != nil {
			t.Error(err)
		}
	})
	t.Run("loopback is bound strictly", func(t *testing.T) {
		p := require.Value(try(t, listen("127.0.0.1:0")))(t)
		_, port, _ := net.SplitHostPort(p.Addrs()[0].String())
		if c, err := net.Dial("tcp", "127.0.0.2:"+port); err == nil {
			_ = c.Close()
			t.Error("a listener on 127.0.0.1 accepts connections to 127.0.0.2")
		}
	})
	t.Run("a successor shares the port only if both use ReusePort", func(t *testing.T) {
		reuse := func(addresses ...string) func(*Config) {
			return func(c *Config) { c.Listen, c.ReusePort = addresses, true }
		}
		p := require.Value(try(t, reuse("127.0.0.1:0")))(t)
		address := p.Addrs()[0].String()
		if _, err := try(t, reuse(address)); err != nil {
			t.Error(err)
		}
		refused(t, "address already in use", listen(address))
	})
}

func requireIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("needs an IPv6 loopback address (%v): run it on a machine with one", err)
	}
	_ = l.Close()
}

func TestIPv6(t *testing.T) {
	requireIPv6(t)
	content := newBlob(1000)
	f := start(t, store{content}, func(p *Proxy) { p.config.Listen = []string{"[::1]:0", "127.0.0.1:0"} })
	f.pullOver(t, content, f.proxy.Addrs()...)
}
