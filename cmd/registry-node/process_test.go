package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/tlsfiles/tlsfilestest"
)

const (
	registryName = "zarf-registry.zarf.svc"
	longest      = 60 * time.Second // bounds waiting for what must happen
)

// registryVariable makes this test binary a registry: the registry's CPU time must not be counted as the client's.
const registryVariable = "REGISTRY_NODE_TEST_REGISTRY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(registryVariable); dir != "" {
		serveRegistry(dir)
		return
	}
	os.Exit(m.Run())
}

func serveRegistry(dir string) {
	source, err := tlsfiles.Open(dir)
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(os.Stderr, "address=%s\n", listener.Addr())
	part := make([]byte, 1<<20)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digest := "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		header := w.Header()
		header.Set("Docker-Distribution-Api-Version", "registry/2.0")
		header.Set("Docker-Content-Digest", digest)
		header.Set("Etag", `"`+digest+`"`)
		header.Set("Content-Type", "application/octet-stream")
		size, _ := strconv.Atoi(path.Base(r.URL.Path)) // 0 for the API's root and manifests
		header.Set("Content-Length", strconv.Itoa(size))
		for ; size > 0; size -= len(part) {
			if _, err := w.Write(part[:min(size, len(part))]); err != nil {
				return
			}
		}
	}), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	panic(server.Serve(tls.NewListener(listener, tlsfiles.ServerConfig(source, tls.RequireAndVerifyClientCert))))
}

// build builds a package as a release is built, and returns the program's path.
func build(t testing.TB, pkg string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags=nethttpomithttp2", "-ldflags=-s -w", "-o", program, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, output)
	}
	return program
}

// process is a program that logs where it listens.
type process struct {
	*exec.Cmd
	address string
	log     *bytes.Buffer // to be read after the process has ended
	logged  chan struct{}
}

var addressPattern = regexp.MustCompile(`address"?[=:]"?([0-9.]+:[0-9]+)`)

func startProcess(t testing.TB, environment []string, program string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, args...), log: new(bytes.Buffer), logged: make(chan struct{})}
	p.Env = append(os.Environ(), environment...)
	pipe, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.wait()
	})
	address := make(chan string, 1)
	go func() {
		defer close(p.logged)
		defer close(address)
		scanner := bufio.NewScanner(pipe)
		for scanner.Scan() {
			fmt.Fprintln(p.log, scanner.Text())
			if found := addressPattern.FindStringSubmatch(scanner.Text()); found != nil && p.address == "" {
				p.address = found[1]
				address <- found[1]
			}
		}
	}()
	select {
	case _, ok := <-address:
		if !ok {
			t.Fatalf("%s %v ended:\n%s", program, args, p.log)
		}
	case <-time.After(longest):
		t.Fatalf("%s %v does not listen", program, args)
	}
	return p
}

func (p *process) wait() error {
	<-p.logged
	return p.Wait()
}

// world is a registry in a process of its own and the certificates to reach it.
type world struct {
	registry *process
	tlsDir   string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "ca")
	w := &world{tlsDir: t.TempDir()}
	serverDir := t.TempDir()
	tlsfilestest.WriteSecret(t, serverDir, ca.Files(t, "server", []string{registryName}))
	tlsfilestest.WriteSecret(t, w.tlsDir, ca.Files(t, "node", []string{"127.0.0.1", "::1", "localhost"}))
	w.registry = startProcess(t, []string{registryVariable + "=" + serverDir}, os.Args[0])
	return w
}

func (w *world) startProxy(t testing.TB, program string, args ...string) *process {
	t.Helper()
	_, port, _ := net.SplitHostPort(w.registry.address)
	args = append([]string{
		"proxy", "--listen=127.0.0.1:0", "--registry=" + registryName + ":" + port, "--tls-dir=" + w.tlsDir, "--log-format=text",
	}, args...)
	return startProcess(t, []string{"ZARF_REGISTRY_SERVICE_HOST=127.0.0.1"}, program, args...)
}

// maxSize is what the program may have when Go has compressed it, in bytes. It had 3.06 MB before it could configure nodes, and has
// 3.50 now: K3s' own reader of registries.yaml, parsers, diffs.
const maxSize = 3_550_000

// The program as it is released, from the outside.
func TestProcess(t *testing.T) {
	program := build(t, ".")
	if size := gzipped(t, program); size > maxSize {
		t.Errorf("the program has %d bytes with gzip -9, more than %d: it is in a ConfigMap for every architecture, see what it links", size, maxSize)
	}
	w := newWorld(t)
	p := w.startProxy(t, program, "--tls=always")

	run := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		command := exec.CommandContext(ctx, program, args...)
		var out, errs bytes.Buffer
		command.Stdout, command.Stderr = &out, &errs
		err := command.Run()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		return command.ProcessState.ExitCode(), out.String(), errs.String()
	}
	if code, stdout, stderr := run("probe", "--address="+p.address, "--image=a/b:c"); code != 0 || strings.Count(stdout, ": 200 sha256:") != 2 || stderr != "" {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := run("probe", "--address="+p.address, "--tls", "--ca-file="+filepath.Join(w.tlsDir, "ca.crt"), "--output=json"); code != 0 || !strings.Contains(stdout, `"ok":true`) {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, _ := run("version"); code != 0 || stdout != "dev\n" {
		t.Errorf("version = %d %q", code, stdout)
	}

	// A request that is under way survives SIGTERM.
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const size = 64 << 20 // more than the sockets hold
	fmt.Fprintf(c, "GET /v2/%d HTTP/1.1\r\nHost: a\r\n\r\n", size)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(longest); ; time.Sleep(5 * time.Millisecond) {
		other, err := net.Dial("tcp", p.address)
		if err != nil {
			break
		}
		_ = other.Close()
		if time.Now().After(end) {
			t.Fatal("the port is still open after SIGTERM")
		}
	}
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("the proxy ended with %v:\n%s", err, p.log)
	}
	if code, stdout, stderr := run("probe", "--address="+p.address); code != 1 || !strings.Contains(stderr, "nothing listens") {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
}

// Sizes of what the benchmark asks for, in bytes.
const (
	smallSize = 1 << 10
	largeSize = 1 << 30
)

// BenchmarkProcess measures the proxy as a process, next to the standard library's reverse proxy: CPU time for a new
// connection and for a GiB, resident memory after that with 50 idle connections. Give it -benchtime=1x.
func BenchmarkProcess(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("SKIPPED: reads /proc")
	}
	program := build(b, ".")
	info, err := os.Stat(program)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("registry-node: %d bytes, %d with gzip -9", info.Size(), gzipped(b, program))
	w := newWorld(b)
	naive := build(b, "./testdata/reverseproxy")
	for name, start := range map[string]func(testing.TB) *process{
		"reverseproxy": func(t testing.TB) *process {
			return startProcess(t, nil, naive, w.registry.address, registryName, w.tlsDir)
		},
		"registry-node": func(t testing.TB) *process { return w.startProxy(t, program) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p := start(b)
				idle(b, p)
				b.ReportMetric(p.resident(b), "fresh-50-idle-MB")
				load(b, p, time.Second)
				before := p.cpu(b)
				latencies, elapsed := load(b, p, 4*time.Second)
				b.ReportMetric((p.cpu(b)-before)*1000/float64(len(latencies)), "cpu-ms/conn")
				b.ReportMetric(float64(len(latencies))/elapsed.Seconds(), "req/s")
				b.ReportMetric(latencies[len(latencies)*99/100].Seconds()*1000, "p99-ms")

				before = p.cpu(b)
				began := time.Now()
				large(b, p)
				b.ReportMetric(p.cpu(b)-before, "cpu-s/GiB")
				b.ReportMetric(largeSize/1e6/time.Since(began).Seconds(), "MB/s")

				time.Sleep(22 * time.Second) // idle for long enough to give memory back
				b.ReportMetric(p.resident(b), "after-50-idle-MB")
				_ = p.Process.Kill()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func gzipped(b testing.TB, file string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = w.Write(data)
	_ = w.Close()
	return out.Len()
}

// idle leaves 50 connections open that have asked once.
func idle(b *testing.B, p *process) {
	for range 50 {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		ask(b, c, "")
	}
}

func ask(b *testing.B, c net.Conn, header string) {
	fmt.Fprintf(c, "GET /v2/%d HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nUser-Agent: containerd/2.2\r\nAccept: */*\r\n%s\r\n", smallSize, header)
	buffer := make([]byte, 4<<10)
	var n int
	for n < smallSize {
		more, err := c.Read(buffer[n:])
		if err != nil {
			b.Error(err)
			return
		}
		n += more
	}
}

// load has eight clients that make a connection for each request of 1 KiB. It returns the latencies, sorted.
func load(b *testing.B, p *process, d time.Duration) ([]time.Duration, time.Duration) {
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	began := time.Now()
	for range 8 {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(began) < d {
				at := time.Now()
				c, err := net.Dial("tcp", p.address)
				if err != nil {
					b.Error(err)
					return
				}
				ask(b, c, "Connection: close\r\n")
				_ = c.Close()
				own = append(own, time.Since(at))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all, time.Since(began)
}

func large(b *testing.B, p *process) {
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /v2/%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", largeSize)
	buffer := make([]byte, 256<<10)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, buffer)
	if err != nil || n < largeSize {
		b.Fatal(n, err)
	}
}

// cpu is the CPU time that the process has used, in seconds.
func (p *process) cpu(b *testing.B) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100 // USER_HZ is 100 on every architecture that Go runs on
}

// resident is the resident memory of the process in MB.
func (p *process) resident(b *testing.B) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kib) * 1024 / 1e6
}
