package proxy

import (
	"net"
	"testing"
	"time"
)

func TestHandOff(t *testing.T) {
	accepts := func(address string) (net.Listener, <-chan net.Conn) {
		t.Helper()
		l, err := listen(t.Context(), address, true)
		if err != nil {
			t.Fatal(err)
		}
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
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
	}
	count := func(accepted <-chan net.Conn, atLeast int) (n int) {
		t.Helper()
		for {
			select {
			case <-accepted:
				n++
			case <-time.After(200 * time.Millisecond):
				if n >= atLeast {
					return n
				}
				t.Fatalf("%d connections were accepted, want %d", n, atLeast)
			}
		}
	}
	first, ofFirst := accepts("127.0.0.1:0")
	address := first.Addr().String()
	if err := handOff(first); err != nil {
		t.Fatal(err)
	}
	dial(address)
	if n := count(ofFirst, 100); n != 100 {
		t.Errorf("alone it accepted %d connections of 100", n)
	}
	// Each successor takes over from the previous one.
	for range 3 {
		next, ofNext := accepts(address)
		if err := handOff(first); err != nil {
			t.Fatal(err)
		}
		dial(address)
		if n := count(ofNext, 100); n != 100 || len(ofFirst) > 0 {
			t.Errorf("the successor accepted %d connections of 100, the previous process %d", n, len(ofFirst))
		}
		_ = first.Close()
		dial(address)
		count(ofNext, 100)
		first, ofFirst = next, ofNext
	}
}
