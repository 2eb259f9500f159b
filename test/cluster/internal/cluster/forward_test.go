package cluster

import (
	"context"
	"io"
	"net"
	"os"
	"testing"
)

func TestForwardSupportsHalfClose(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: entering a network namespace requires root")
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // responds only after the end of the request
		connection, err := server.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		question, _ := io.ReadAll(connection)
		_, _ = connection.Write(append([]byte("answer to "), question...))
	}()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	listen := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- Forward(ctx, listen.String(), "/proc/self/ns/net", server.Addr().String()) }()

	var client net.Conn
	for client == nil { // until it listens
		if client, err = net.Dial("tcp", listen.String()); err != nil {
			client = nil
		}
	}
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "answer to question" {
		t.Errorf("got %q, %v", answer, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("its end: %v", err)
	}
}
