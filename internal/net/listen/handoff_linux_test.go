package listen

import (
	"net"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestHandOff(t *testing.T) {
	accepts := func(address string) (net.Listener, <-chan net.Conn) {
		t.Helper()
		l := require.Value(Open(t.Context(), address, Options{ReusePort: true}))(t)
		t.Cleanup(func() { _ = l.Close() })
		accepted := make(chan net.Conn, 1000)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
				accepted <- c
			}
		}()
		return l, accepted
	}
	dial := func(address string) {
		t.Helper()
		for range 100 {
			c := require.Value(net.Dial("tcp", address))(t)
			_ = c.Close()
		}
	}
	// all waits until the connections of dial are accepted.
	all := func(accepted <-chan net.Conn) {
		t.Helper()
		for n := range 100 {
			select {
			case <-accepted:
			case <-time.After(timeout):
				t.Fatalf("%d connections were accepted, want 100", n)
			}
		}
	}
	first, ofFirst := accepts("127.0.0.1:0")
	address := first.Addr().String()
	require.NoError(t, HandOff(first))
	dial(address)
	all(ofFirst)
	// Each successor takes over from the previous one.
	for range 3 {
		next, ofNext := accepts(address)
		require.NoError(t, HandOff(first))
		dial(address)
		all(ofNext)
		_ = first.Close()
		dial(address)
		all(ofNext)
		first = next
	}
}
