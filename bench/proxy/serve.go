package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
)

// First arguments of the child processes that run this program.
const (
	registryMode = "serve-registry"
	naiveMode    = "serve-naive"
)

// content is random, and repeated in larger bodies.
var content = func() []byte {
	data := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}()

// serveContent serves as many bytes as the last element of the path says, with the headers that
// distribution sends for a blob.
func serveContent(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(path.Base(r.URL.Path), 10, 64)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	header := w.Header()
	header.Set("Docker-Distribution-Api-Version", "registry/2.0")
	header.Set("Docker-Content-Digest", digest)
	header.Set("Etag", `"`+digest+`"`)
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Length", strconv.FormatInt(size, 10))
	for ; size > 0; size -= int64(len(content)) {
		if _, err := w.Write(content[:min(size, int64(len(content)))]); err != nil {
			return
		}
	}
}

// serveRegistry serves HTTP/1.1 with mutual TLS on a loopback port, like the registry, with the
// certificates in args[0]. It writes its address to stdout and serves until EOF on stdin.
func serveRegistry(args []string, stdin io.Reader, stdout io.Writer) error {
	source, err := tlsfiles.Open(args[0])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler: http.HandlerFunc(serveContent), ReadHeaderTimeout: time.Minute, Protocols: protocols,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	config := tlsfiles.ServerConfig(source, tls.RequireAndVerifyClientCert)
	configure := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedVersions, tls.VersionTLS13) {
			return nil, errors.New("the client does not support TLS 1.3, and the cost of older versions differs")
		}
		return configure(hello)
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(tls.NewListener(listener, config)) }()
	go func() {
		_, err := io.Copy(io.Discard, stdin)
		failed <- err
	}()
	if _, err := fmt.Fprintln(stdout, listener.Addr()); err != nil {
		return err
	}
	return <-failed
}

// serveNaive is the baseline: the standard library's reverse proxy with pooled connections. Its arguments
// are its own address, the registry's address, and the directory of the certificates.
func serveNaive(args []string) error {
	source, err := tlsfiles.Open(args[2])
	if err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: args[1]})
	proxy.Transport = &http.Transport{
		TLSClientConfig:     tlsfiles.ClientConfig(source.Current(), registryName),
		DisableCompression:  true,
		MaxIdleConnsPerHost: 32,
	}
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	return http.Serve(listener, proxy)
}

// startRegistry starts the registry in a child process and returns its address.
func startRegistry(dir string) (*process, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	command := exec.Command(self, registryMode, dir)
	stdin, err := command.StdinPipe() // the registry exits when this process closes it or dies
	if err != nil {
		return nil, "", err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	p, err := start(command)
	if err != nil {
		return nil, "", err
	}
	p.ended = stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, "", errors.Join(errors.New("no address in the output: "+p.log.String()), err)
	}
	return p, strings.TrimSpace(line), nil
}
