package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
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
	if r.URL.Path == "/v2/" {
		return
	}
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

// serveRegistry serves HTTP/1.1 with mutual TLS, like the registry. Its arguments are the directory of the certificates
// and its address.
func serveRegistry(args []string) error {
	source, err := tlsfiles.Open(args[0])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", args[1])
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
	return server.Serve(tls.NewListener(listener, config))
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

// startRegistry starts the registry in a child process.
func startRegistry(ctx context.Context, certificates *registries.Certificates) (*registries.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	return registries.Start(ctx, address, certificates, self, registryMode, certificates.Dir, address)
}
