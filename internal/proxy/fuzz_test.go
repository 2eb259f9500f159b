package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// FuzzConnection sends arbitrary bytes to the front, TLS or not. Whatever they are, the registry gets only GET and HEAD
// requests without bodies and credentials, and the client only well-formed answers.
func FuzzConnection(f *testing.F) {
	for _, seed := range []string{
		"GET /v2/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"HEAD /v2/a/manifests/latest HTTP/1.1\r\nHost: a\r\nAccept: a/b\r\nAuthorization: Basic eDp5\r\nConnection: accept\r\n\r\nGET / HTTP/1.0\r\n\r\n",
		"GET http://b/%2f?%0a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
		"\x16GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	var wrong atomic.Pointer[string]
	registry := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		complain := func(what string) { wrong.Store(&what) }
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			complain("method " + r.Method)
		case r.ContentLength != 0 || len(r.TransferEncoding) > 0:
			complain("a body")
		case r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Header.Get("Proxy-Authorization") != "":
			complain("credentials")
		case len(r.Header.Values("X-Forwarded-Proto")) != 1:
			complain("X-Forwarded-Proto " + strings.Join(r.Header.Values("X-Forwarded-Proto"), ","))
		}
		_, _ = io.WriteString(w, "answer")
	})
	soon := 20 * time.Millisecond
	var addresses []string
	for _, serveTLS := range []bool{true, false} {
		fixture := start(f, registry, func(p *Proxy) {
			p.config.ServeTLS = serveTLS
			p.limits.readHeader, p.limits.read, p.limits.idle = soon, soon, soon
		})
		addresses = append(addresses, fixture.address())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, address := range addresses {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(longest))
			go func() { _, _ = c.Write(data) }()
			got, err := io.ReadAll(c)
			_ = c.Close()
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Error("the connection was left open")
			}
			if what := wrong.Swap(nil); what != nil {
				t.Errorf("the registry was sent %s", *what)
			}
			if len(got) > 0 && got[0] != 0x15 && !bytes.HasPrefix(got, []byte("HTTP/1.")) { // 0x15: a TLS alert
				t.Errorf("the client was sent %q", got)
			}
		}
	})
}

// FuzzAnswer lets the registry answer with arbitrary bytes. If the client takes the answer for complete, then it is the
// one that the standard library reads from these bytes, or the proxy's own.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nEtag: \"x\"\r\n\r\nbody",
		"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-4/9\r\nContent-Length: 4\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nConnection: x, close\r\nX: y\r\nContent-Length: 0\r\n\r\nextra",
		"HTTP/1.0 200 OK\r\n\r\nbody",
	} {
		f.Add([]byte(seed))
	}
	var answer atomic.Pointer[[]byte]
	fixture := start(f, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = c.Write(*answer.Load())
		_ = c.Close()
	}), retryFor(0))
	f.Fuzz(func(t *testing.T, data []byte) {
		answer.Store(&data)
		response, body, err := fixture.get("/v2/")
		if err != nil || response.StatusCode == http.StatusServiceUnavailable && bytes.Contains(body, []byte(registryName)) {
			return
		}
		reader := bufio.NewReader(bytes.NewReader(data))
		for {
			want, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("the client got %s from what is no answer: %v", response.Status, err)
			}
			if want.StatusCode < 200 {
				continue
			}
			wantBody, err := io.ReadAll(want.Body)
			if err != nil || response.StatusCode != want.StatusCode || !bytes.Equal(body, wantBody) {
				t.Fatalf("the client got %s with %q, the registry sent %s with %q, %v", response.Status, body, want.Status, wantBody, err)
			}
			return
		}
	})
}
