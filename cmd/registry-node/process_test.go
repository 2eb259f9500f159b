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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	registryName = "zarf-registry.zarf.svc"
	longest      = 60 * time.Second // limits waiting for what must happen
)

// registryVariable makes this test binary a registry, in a process of its own so that its CPU time
// is not counted as the client's.
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

// build builds a package with the release flags and returns the program's path.
func build(t testing.TB, pkg string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	command := exec.CommandContext(
		t.Context(), "go", "build", "-trimpath", "-tags=nethttpomithttp2", "-ldflags=-s -w", "-o", program, pkg,
	)
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
	log     *bytes.Buffer // read after the process has ended only
	logged  chan struct{}
}

var addressPattern = regexp.MustCompile(`address"?[=:]"?([0-9.]+:[0-9]+)`)

func startProcess(t testing.TB, environment []string, program string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, args...), log: new(bytes.Buffer), logged: make(chan struct{})}
	p.Env = append(os.Environ(), environment...)
	pipe := require.Value(p.StderrPipe())(t)
	require.NoError(t, p.Start())
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
			t.Fatalf("%s %v exited:\n%s", program, args, p.log)
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

// world is a registry in a process of its own and the certificates to connect to it.
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
		"proxy", "--listen=127.0.0.1:0", "--registry=" + registryName + ":" + port, "--tls-dir=" + w.tlsDir,
		"--log-format=text",
	}, args...)
	return startProcess(t, []string{"ZARF_REGISTRY_SERVICE_HOST=127.0.0.1"}, program, args...)
}

// maxSize is the maximum size of the gzip-compressed program in bytes. Configuring nodes added 0.44
// MB to the previous 3.06 MB: K3s' parser of registries.yaml, other parsers, diffs. Healing added 0.17
// MB.
const maxSize = 3_900_000

// The released program, tested from the outside.
func TestProcess(t *testing.T) {
	program := build(t, ".")
	if size := gzipped(t, program); size > maxSize {
		t.Errorf("the program has %d bytes with gzip -9, more than %d: "+
			"every architecture's program is in ConfigMaps, check what it links", size, maxSize)
	}
	w := newWorld(t)
	p := w.startProxy(t, program, "--tls=always", "--drain-timeout=40s")

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
	if code, stdout, stderr := run("probe", "--address="+p.address, "--image=a/b:c"); code != 0 ||
		strings.Count(stdout, ": 200 sha256:") != 2 || stderr != "" {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := run(
		"probe", "--address="+p.address, "--tls", "--ca-file="+filepath.Join(w.tlsDir, "ca.crt"), "--output=json",
	); code != 0 || !strings.Contains(stdout, `"ok":true`) {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, _ := run("version"); code != 0 || !strings.HasPrefix(stdout, "registry-node go") {
		t.Errorf("version = %d %q", code, stdout)
	}

	// A request in flight survives SIGTERM.
	c := require.Value(net.Dial("tcp", p.address))(t)
	defer c.Close()
	const size = 16 << 20 // more than the sockets buffer
	fmt.Fprintf(c, "GET /v2/%d HTTP/1.1\r\nHost: localhost\r\n\r\n", size)
	response := require.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
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
	if code, stdout, stderr := run("probe", "--address="+p.address); code != 1 ||
		!strings.Contains(stderr, "nothing listens") {
		t.Errorf("probe = %d\n%s%s", code, stdout, stderr)
	}
}

func gzipped(t testing.TB, file string) int {
	data := require.Value(os.ReadFile(file))(t)
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = w.Write(data)
	_ = w.Close()
	return out.Len()
}

// With a thousand clients that do not read, the proxy leaves half of its pod's 128 MiB to the kernel's
// buffers.
//
// Claim: Stalled downloads do not exhaust the memory of a proxy.
func TestMemoryOfStalledDownloads(t *testing.T) {
	if testing.Short() {
		t.Skip("needs seconds of CPU time: run it without -short")
	}
	w := newWorld(t)
	p := w.startProxy(t, build(t, "."))
	for range 1000 {
		c := require.Value(net.Dial("tcp", p.address))(t)
		defer c.Close()
		fmt.Fprintf(c, "GET /v2/%d HTTP/1.1\r\nHost: localhost\r\n\r\n", 64<<20)
		_ = c.SetReadDeadline(time.Now().Add(longest))
		if _, err := c.Read(make([]byte, 1)); err != nil { // those that came before may be dropped
			t.Fatal(err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Skipf("needs /proc (%v): run it on Linux", err)
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if peak == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kib, _ := strconv.Atoi(string(peak[1]))
	sockets, _ := os.ReadFile("/proc/net/sockstat")
	t.Logf("the proxy has used %d KiB; sockets of all processes (mem in pages):\n%s", kib, sockets)
	if kib > 64<<10 {
		t.Errorf("the proxy has used %d KiB, want at most 64 MiB", kib)
	}
}
