package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry"
)

// registryMode is the first argument of the registry's child process.
const registryMode = "serve-registry"

// counters count what a registry has done since its start.
type counters struct {
	Received    int64            `json:"received"` // bytes of its connections, including headers
	Sent        int64            `json:"sent"`
	Connections int64            `json:"connections"`
	Requests    map[string]int64 `json:"requests"` // by method
	CPU         float64          `json:"registryCPUSeconds"`
}

// since returns the difference to before.
func (c counters) since(before counters) counters {
	requests := map[string]int64{}
	for method, n := range c.Requests {
		if n -= before.Requests[method]; n > 0 {
			requests[method] = n
		}
	}
	return counters{c.Received - before.Received, c.Sent - before.Sent, c.Connections - before.Connections, requests,
		c.CPU - before.CPU}
}

// serveRegistry serves a registry without access control over plain HTTP on a loopback port, with its
// storage in the directory args[0]. It writes its address to stdout, then the counters for every line on
// stdin, until EOF.
func serveRegistry(args []string, stdin io.Reader, stdout io.Writer) error {
	config := filepath.Join(args[0], "config.yml")
	err := os.WriteFile(config, []byte("version: 0.1\nstorage: {filesystem: {rootdirectory: "+
		filepath.Join(args[0], "storage")+"}}\n"), 0o600)
	if err != nil {
		return err
	}
	loaded, err := registry.LoadConfig(config)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	registry.RouteLogs(log)
	next, err := registry.NewHandler(loaded, log)
	if err != nil {
		return err
	}
	inner, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	counting := &countingListener{Listener: inner}
	requests := &requestCounter{next: next, methods: map[string]int64{}}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{Handler: requests, ReadHeaderTimeout: time.Minute, Protocols: protocols}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(counting) }()

	if _, err := fmt.Fprintln(stdout, inner.Addr()); err != nil {
		return err
	}
	for lines := bufio.NewScanner(stdin); lines.Scan(); {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			return err
		}
		err := json.NewEncoder(stdout).Encode(counters{
			Received: counting.received.Load(), Sent: counting.sent.Load(), Connections: counting.connections.Load(),
			Requests: requests.counts(), CPU: cpu(&usage),
		})
		if err != nil {
			return err
		}
	}
	_ = server.Close()
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// cpu returns the CPU time in seconds.
func cpu(usage *syscall.Rusage) float64 {
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// requestCounter counts requests by method.
type requestCounter struct {
	next    http.Handler
	mu      sync.Mutex
	methods map[string]int64
}

func (c *requestCounter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.methods[r.Method]++
	c.mu.Unlock()
	c.next.ServeHTTP(w, r)
}

func (c *requestCounter) counts() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.methods)
}

// countingListener counts its connections and their bytes.
type countingListener struct {
	net.Listener
	received, sent, connections atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.connections.Add(1)
	return &countingConn{conn.(*net.TCPConn), l}, nil
}

// countingConn implements ReadFrom and WriteTo like a TCP connection, so that sendfile and splice are
// still used.
type countingConn struct {
	*net.TCPConn
	listener *countingListener
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.listener.received.Add(int64(n))
	return n, err
}

func (c *countingConn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.TCPConn.WriteTo(w)
	c.listener.received.Add(n)
	return n, err
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.listener.sent.Add(int64(n))
	return n, err
}

func (c *countingConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(r)
	c.listener.sent.Add(n)
	return n, err
}

// childRegistry is a registry in a child process.
type childRegistry struct {
	host    string
	process *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
}

// startRegistry starts a registry with its storage in dir, which it creates.
func startRegistry(ctx context.Context, dir string) (*childRegistry, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &childRegistry{process: exec.CommandContext(ctx, self, registryMode, dir)}
	r.process.Stderr = os.Stderr
	if r.stdin, err = r.process.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := r.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.stdout = bufio.NewReader(stdout)
	if err := r.process.Start(); err != nil {
		return nil, err
	}
	line, err := r.stdout.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the registry did not start: %w", err), r.stop())
	}
	r.host = line[:len(line)-1]
	return r, nil
}

func (r *childRegistry) stop() error {
	_ = r.stdin.Close()
	return r.process.Wait()
}

// counters requests the registry's counters.
func (r *childRegistry) counters() (counters, error) {
	var c counters
	if _, err := fmt.Fprintln(r.stdin); err != nil {
		return c, err
	}
	line, err := r.stdout.ReadBytes('\n')
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(line, &c)
}
