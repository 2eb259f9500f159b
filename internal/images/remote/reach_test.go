package remote

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestAddresses(t *testing.T) {
	const public, private, none = "public", "near", "forbidden"
	for address, want := range map[string]string{
		"203.0.113.1": public, "2606:4700::1": public,
		"10.0.0.1": private, "192.168.1.1": private, "100.64.0.1": private, "fd00::1": private,
		"::ffff:10.0.0.1": private,
		"127.0.0.1":       private, "::1": private, "::ffff:127.0.0.1": private,
		"169.254.169.254": none, "fe80::1": none, "0.0.0.0": none, "::": none, "224.0.0.1": none,
		"::ffff:169.254.169.254": none, "ff02::1": none,
	} {
		a, got := netip.MustParseAddr(address), public
		switch {
		case forbidden(a):
			got = none
		case near(a):
			got = private
		}
		if got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// rebind is a DNS server whose name rebind.test resolves to the addresses one after the other; the last one stays.
// [net.DefaultResolver] uses it until the test ends.
func rebind(t *testing.T, addresses ...string) {
	t.Helper()
	server := require.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	var mu sync.Mutex
	asked := 0
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buf[:n]) != nil || len(query.Questions) != 1 {
				continue
			}
			question := query.Questions[0]
			answer := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: query.ID, Response: true, RecursionAvailable: true, RecursionDesired: true},
				Questions: query.Questions,
			}
			if question.Type == dnsmessage.TypeA {
				mu.Lock()
				address := addresses[min(asked, len(addresses)-1)]
				asked++
				mu.Unlock()
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
				}}
			}
			packed, err := answer.Pack()
			if err == nil {
				_, _ = server.WriteTo(packed, from)
			}
		}
	})
	goOnly, dial := net.DefaultResolver.PreferGo, net.DefaultResolver.Dial
	net.DefaultResolver.PreferGo = true
	net.DefaultResolver.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}
	t.Cleanup(func() {
		net.DefaultResolver.PreferGo, net.DefaultResolver.Dial = goOnly, dial
		server.Close()
		serving.Wait()
	})
}

// distant is a connection to a registry on the Internet.
type distant struct{ net.Conn }

func (distant) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 443} }

func onTheInternet(opts *Options) {
	opts.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return distant{c}, nil
	}
}

// TestRebinding has a registry that names a host whose address changes after it was checked.
func TestRebinding(t *testing.T) {
	b := noise(8, 1000)
	for name, tt := range map[string]struct {
		change    func(*Options)
		addresses []string // of rebind.test, for each lookup
		asked     bool     // the host, at the last address
		want      string
	}{
		"from the Internet to this computer": {onTheInternet, []string{"203.0.113.1", "127.0.0.1"}, false,
			"127.0.0.1, a private address"},
		"from the Internet to a private network": {onTheInternet, []string{"203.0.113.1", "10.255.255.1"}, false,
			"10.255.255.1, a private address"},
		"from the Internet to machine credentials": {onTheInternet, []string{"203.0.113.1", "169.254.169.254"}, false,
			"169.254.169.254, a link-local or unspecified address"},
		"from this computer to machine credentials": {func(*Options) {}, []string{"127.0.0.1", "169.254.169.254"}, false,
			"169.254.169.254, a link-local or unspecified address"},
		"of a registry on this computer": {func(*Options) {}, []string{"127.0.0.1"}, true, ""},
	} {
		var asked atomic.Bool
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Store(true)
			if r.URL.Path == "/token" {
				_, _ = io.WriteString(w, `{"token":"t"}`)
				return
			}
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(b)))
		}))
		t.Cleanup(other.Close)
		target := strings.Replace(other.URL, "127.0.0.1", "rebind.test", 1)
		change := func(opts *Options) {
			opts.Retries = -1
			tt.change(opts)
		}
		check := func(t *testing.T, registry testRegistry, err error) {
			t.Helper()
			if got := asked.Swap(false); got != tt.asked {
				t.Errorf("the other host was asked: %t", got)
			}
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, registry.Host(), tt.want)
		}
		t.Run("of a token server "+name, func(t *testing.T) {
			registry := newTestRegistry(t, true)
			registry.requireToken(target+"/token", nil)
			rebind(t, tt.addresses...)
			_, err := repository(t, registry.client(t, change), "some/where").PushBlob(t.Context(), describe(b), "", opener(b), nil)
			check(t, registry, err)
		})
		t.Run("of a redirect "+name, func(t *testing.T) {
			registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, target+"/blob", http.StatusTemporaryRedirect)
			})
			rebind(t, tt.addresses[len(tt.addresses)-1])
			_, err := pull(t.Context(), repository(t, registry.client(t, change), "some/where"), describe(b), 0)
			check(t, registry, err)
		})
	}
}

// A proxy resolves names itself, and its own address is often private.
func TestProxiesAreNotChecked(t *testing.T) {
	r := &registryReach{}
	for direct, refused := range map[bool]bool{true: true, false: false} {
		err := r.control(context.WithValue(t.Context(), directKey{}, direct), "tcp4", "10.0.0.1:3128", nil)
		if (err != nil) != refused {
			t.Errorf("direct %t: %v", direct, err)
		}
	}
}
