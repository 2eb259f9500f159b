package drain

import (
	"bytes"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// pair returns both ends of a connection. The client's receive buffer is small.
func pair(t *testing.T, d *Deliveries) (server *Conn, client *net.TCPConn) {
	t.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	client = c.(*net.TCPConn)
	t.Cleanup(func() { client.Close() })
	require.NoError(t, client.SetReadBuffer(4<<10))
	return require.Value(d.Listener(l).Accept())(t).(*Conn), client
}

// fill writes until the send queue is full, and returns what was written.
func fill(t *testing.T, c *Conn) []byte {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	require.NoError(t, c.SetWriteBuffer(len(data)))
	socket := require.Value(c.SyscallConn())(t)
	n := 0
	if err := socket.Write(func(fd uintptr) bool {
		for n < len(data) {
			written, err := syscall.Write(int(fd), data[n:])
			if err != nil {
				break // it would block
			}
			n += written
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if n == 0 || queued(c.TCPConn) == 0 {
		t.Fatalf("wrote %d bytes, %d are queued", n, queued(c.TCPConn))
	}
	return data[:n]
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestClosedConnectionsAreDelivered(t *testing.T) {
	var d Deliveries
	server, client := pair(t, &d)
	written := fill(t, server)
	require.NoError(t, server.Close())
	if left := d.Wait(ended(t)); left != 1 {
		t.Fatalf("%d deliveries, want 1", left)
	}
	if err := server.Close(); err == nil {
		t.Error("closing twice reports no error")
	}
	if _, err := server.Read(make([]byte, 1)); err == nil {
		t.Error("a read after Close succeeds")
	}
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, written) {
		t.Errorf("the client got %d of %d bytes: %v", len(got), len(written), err)
	}
	if left := d.Wait(t.Context()); left != 0 {
		t.Errorf("%d deliveries, want none", left)
	}
}

func TestConnectionsWithoutQueueCloseAtOnce(t *testing.T) {
	var d Deliveries
	server, client := pair(t, &d)
	require.NoError(t, server.Close())
	if left := d.Wait(ended(t)); left != 0 {
		t.Errorf("%d deliveries, want none", left)
	}
	if n, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client read %d bytes, %v", n, err)
	}
}

func TestDeliveryEndsWithTheConnection(t *testing.T) {
	var d Deliveries
	server, client := pair(t, &d)
	fill(t, server)
	require.NoError(t, server.Close())
	_ = client.SetLinger(0)
	client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	if left := d.Wait(ctx); left != 0 {
		t.Errorf("%d deliveries after the client has reset the connection", left)
	}
}

func TestResetDropsTheQueue(t *testing.T) {
	var d Deliveries
	server, client := pair(t, &d)
	written := fill(t, server)
	server.Reset()
	if left := d.Wait(ended(t)); left != 0 {
		t.Errorf("%d deliveries, want none", left)
	}
	if got, err := io.ReadAll(client); err == nil || len(got) >= len(written) {
		t.Errorf("the client got %d of %d bytes, %v", len(got), len(written), err)
	}
}
