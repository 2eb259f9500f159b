package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// A registry whose node or pod disappears in the middle of a body closes no connection: nothing answers anymore.
func TestResumeBodiesOfRegistriesThatDisappear(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	probe := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer probe.Close()
	if err := dropPackets(probe.(*net.TCPConn)); err != nil {
		t.Skipf("needs socket filters (%v): run it as root", err)
	}
	content := newBlob(300_000)
	f := start(t, firstThen(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		content.setHeader(w)
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n", len(content.data))
		_ = w.Header().Write(c)
		_, _ = fmt.Fprintf(c, "\r\n%s", content.data[:123_456])
		time.Sleep(200 * time.Millisecond) // for the acknowledgement
		if err := dropPackets(c.(*tls.Conn).NetConn().(*net.TCPConn)); err != nil {
			t.Error(err)
		}
	}, store{content}.ServeHTTP), func(p *Proxy) {
		p.limits.ackTimeout, p.limits.progressTimeout = time.Second, 25*time.Second
	})
	begin := time.Now()
	f.pull(t, content)
	t.Logf("it took %s", time.Since(begin))
	_ = f.stop() // the cleanup reports its error
	// With Go's defaults, the kernel notices it after 30 s, and progressTimeout is over before.
	if log := f.log.String(); !strings.Contains(log, "connection timed out") {
		t.Errorf("the kernel has not noticed it:\n%s", log)
	}
}

// dropPackets makes a connection drop all packets that arrive, so it neither acknowledges nor resets.
func dropPackets(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0} // accept 0 bytes
	controlled := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &filter})
	})
	return errors.Join(controlled, err)
}
