package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The benchmarks compare the proxy with what a few lines of the standard library provide:
// httputil.ReverseProxy on a pooled http.Transport. Client, proxy and registry share the process,
// so only the difference between the two is attributable to the proxy; bench/proxy measures the
// process alone.

// naive starts the reverse proxy of the standard library.
func naive(b *testing.B, f *fixture) string {
	b.Helper()
	target := &url.URL{Scheme: "https", Host: f.registry.address}
	reverse := httputil.NewSingleHostReverseProxy(target)
	reverse.Transport = &http.Transport{
		TLSClientConfig:     tlsfiles.ClientConfig(f.source.Current(), registryName),
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxIdle,
	}
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	server := &http.Server{Handler: reverse}
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func compare(b *testing.B, f *fixture, run func(b *testing.B, address string)) {
	b.Run("reverseproxy", func(b *testing.B) { run(b, naive(b, f)) })
	b.Run("proxy", func(b *testing.B) { run(b, f.address()) })
}

// BenchmarkNewConnection opens a connection per request of 1 KiB, eight at a time.
func BenchmarkNewConnection(b *testing.B) {
	content := newBlob(1 << 10)
	f := start(b, store{content})
	request := []byte("GET " + content.path() + " HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nUser-Agent: containerd/2.2\r\n" +
		"Accept: application/octet-stream\r\nConnection: close\r\n\r\n")
	compare(b, f, func(b *testing.B, address string) {
		b.SetParallelism(4)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			buffer := make([]byte, 8<<10)
			for pb.Next() {
				c, err := net.Dial("tcp", address)
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := c.Write(request); err != nil {
					b.Error(err)
				}
				n, err := io.ReadFull(c, buffer)
				if err != io.ErrUnexpectedEOF || !bytes.HasSuffix(buffer[:n], content.data) {
					b.Errorf("%v after %d bytes", err, n)
				}
				_ = c.Close()
			}
		})
	})
}

// BenchmarkStream sends one large body on one connection.
func BenchmarkStream(b *testing.B) {
	const size = 256 << 20
	part := make([]byte, 1<<20)
	f := start(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for range size / len(part) {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	compare(b, f, func(b *testing.B, address string) {
		c := require.Value(net.Dial("tcp", address))(b)
		defer c.Close()
		reader := bufio.NewReader(c)
		buffer := make([]byte, 256<<10)
		b.SetBytes(size)
		for b.Loop() {
			require.Value(io.WriteString(c, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"))(b)
			response := require.Value(http.ReadResponse(reader, nil))(b)
			if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, buffer); n != size || err != nil {
				b.Fatal(n, err)
			}
		}
	})
}
