package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/hopbyhop"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// sight is a request that the registry received.
type sight struct {
	method, path, query, host string
	header                    http.Header
	body                      bool
}

// FuzzConnection sends arbitrary bytes to the proxy, in plain HTTP and over TLS. The model is
// net/http's own parser: the registry gets exactly the GET and HEAD requests without a body that it
// finds in these bytes, in order, unchanged except for credentials and hop-by-hop headers. The
// client gets well-formed responses, as many of them from the registry as it has received requests.
func FuzzConnection(f *testing.F) {
	for _, seed := range []string{
		"GET /v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"HEAD /v2/a/manifests/latest HTTP/1.1\r\nHost: localhost\r\nAccept: a/b\r\nAuthorization: Basic eDp5\r\nConnection: " +
			"accept\r\n\r\nGET / HTTP/1.0\r\n\r\n",
		"GET http://127.0.0.1/%2f?%0a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"GET http://127.0.0.1:5/b?c HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: " +
			"localhost\r\nX-Forwarded-Proto: ftp\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 28\r\n\r\nGET /b HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
		"\x16GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	type side struct {
		scheme  string
		fixture *fixture
		mu      sync.Mutex
		seen    []sight
	}
	soon := 20 * time.Millisecond // how long the fuzzer waits if a request is incomplete
	var sides []*side
	for _, scheme := range []string{"http", "https"} {
		s := &side{scheme: scheme}
		s.fixture = start(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.seen = append(s.seen, sight{
				r.Method, r.URL.Path, r.URL.RawQuery, r.Host, r.Header, r.ContentLength != 0 || len(r.TransferEncoding) > 0,
			})
			s.mu.Unlock()
			w.Header().Set("Content-Length", "6")
			_, _ = io.WriteString(w, "answer")
		}), func(p *Proxy) {
			p.config.ServeTLS = scheme == "https"
			p.limits.readHeader, p.limits.read, p.limits.idle = soon, soon, soon
		})
		sides = append(sides, s)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(sides[1].fixture.ca.PEM)
	f.Fuzz(func(t *testing.T, data []byte) {
		want := requestsIn(data)
		var both sync.WaitGroup
		for _, s := range sides {
			both.Go(func() {
				s.mu.Lock()
				s.seen = nil
				s.mu.Unlock()
				c, err := net.Dial("tcp", s.fixture.address())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if s.scheme == "https" {
					secure := tls.Client(c, &tls.Config{ServerName: "localhost", RootCAs: roots})
					if secure.Handshake() != nil {
						return // the machine is too busy: the deadline has passed
					}
					c = secure
				}
				_ = c.SetDeadline(time.Now().Add(longest))
				go func() { _, _ = c.Write(data) }()
				got, err := io.ReadAll(c)
				var timeout net.Error
				if errors.As(err, &timeout) && timeout.Timeout() {
					t.Errorf("%s: the connection was left open", s.scheme)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.scheme == "http" && len(data) > 0 && data[0] == 0x16 {
					if len(got) > 0 && string(got) != tlsRefusal || len(s.seen) > 0 {
						t.Errorf("response to a ClientHello = %q, the registry got %v", got, s.seen)
					}
					return
				}
				if err := checkSeen(s.seen, want, s.scheme, s.fixture.proxy.upstream.hostPort); err != nil {
					t.Errorf("%s: %v", s.scheme, err)
				}
				answered, err := responsesIn(got, want, ordinary(data, want))
				if err != nil {
					t.Errorf("%s: the client got %q: %v", s.scheme, got, err)
				} else if answered > len(s.seen) {
					t.Errorf("%s: the client got %d responses of the registry, which got %d requests: %q",
						s.scheme, answered, len(s.seen), got)
				}
			})
		}
		both.Wait()
	})
}

// requestsIn returns the requests that net/http reads from a connection's bytes, up to the first
// that it cannot read.
func requestsIn(data []byte) (requests []*http.Request) {
	for reader := bufio.NewReader(bytes.NewReader(data)); ; {
		r, err := http.ReadRequest(reader)
		if err != nil {
			return requests
		}
		requests = append(requests, r)
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return requests
		}
	}
}

// checkSeen compares what the registry received with the client's requests. The last ones may be
// missing if the connection ended before them.
func checkSeen(got []sight, requests []*http.Request, scheme, registry string) error {
	for _, r := range requests {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			continue
		}
		if len(got) == 0 {
			return nil
		}
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			break // refused, and the connection closed
		}
		if r.Host != "" && !isLoopback(r.Host) || fromOtherSite(r.Header) {
			continue // refused
		}
		g := got[0]
		got = got[1:]
		header := r.Header.Clone()
		for name := range header {
			if dropFromRequest[name] {
				delete(header, name)
			}
		}
		dropNamed(header, r.Header)
		header.Set("X-Forwarded-Proto", scheme)
		want := sight{r.Method, r.URL.Path, r.URL.RawQuery, r.Host, header, false}
		if want.path == "" {
			want.path = "/" // RFC 9112, section 3.2.1
		}
		if want.host == "" {
			want.host = registry // the client names none, as in HTTP/1.0
		}
		if !reflect.DeepEqual(g, want) {
			return fmt.Errorf("the registry got\n%+v, want\n%+v", g, want)
		}
	}
	if len(got) > 0 {
		return fmt.Errorf("the registry got requests that the client did not send: %+v", got)
	}
	return nil
}

// dropNamed removes the headers that from's Connection header names.
func dropNamed(header, from http.Header) {
	for _, value := range from["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			header.Del(textproto.TrimString(name))
		}
	}
}

// ordinary reports whether there is no reason to refuse any of these requests, which have been read from
// data. net/http refuses more requests than its parser.
func ordinary(data []byte, requests []*http.Request) bool {
	for _, r := range requests {
		read := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !read || r.ProtoMajor != 1 || r.ContentLength != 0 || len(r.TransferEncoding) > 0 || r.URL.Host != "" ||
			!strings.HasPrefix(r.RequestURI, "/") || !isLoopback(r.Host) || fromOtherSite(r.Header) ||
			r.Header.Get("Expect") != "" {
			return false
		}
		for _, value := range slices.Concat(slices.Collect(maps.Values(r.Header))...) {
			if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
				return false
			}
		}
	}
	// Each request names its host once.
	return len(data) < 4<<10 && bytes.Count(bytes.ToLower(data), []byte("host:")) == len(requests)
}

// responsesIn reads the responses to these requests and counts those of the registry. The last one
// may be cut off. If ordinary is set, none of the requests may be refused.
func responsesIn(data []byte, requests []*http.Request, ordinary bool) (answered int, err error) {
	reader := bufio.NewReader(bytes.NewReader(data))
	for i := 0; ; {
		if _, err := reader.Peek(1); err != nil {
			return answered, nil
		}
		var request *http.Request // GET
		if i < len(requests) {
			request = requests[i]
		}
		response, err := http.ReadResponse(reader, request)
		if err != nil {
			return answered, err
		}
		if response.StatusCode < 200 {
			continue
		}
		i++
		body, err := io.ReadAll(response.Body)
		switch {
		case err != nil:
			return answered, err
		case response.StatusCode == http.StatusOK && response.Request != nil && response.Request.Method == http.MethodHead &&
			len(body) == 0:
		case response.StatusCode == http.StatusOK && string(body) == "answer":
		case ordinary && i <= len(requests):
			return answered, fmt.Errorf("%s with %q to an ordinary request", response.Status, body)
		case response.StatusCode >= 400 && response.Close:
			return answered, nil // net/http's own refusals have a body even for HEAD
		case response.StatusCode >= 400:
			continue
		default:
			return answered, fmt.Errorf("%s with %q", response.Status, body)
		}
		answered++
	}
}

// tlsRefusal is the response to a ClientHello where TLS is not served.
const tlsRefusal = "HTTP/1.1 400 Bad Request\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\n\r\n" +
	"This port serves plain HTTP only, not TLS\n"

// FuzzAnswer makes the registry respond with arbitrary bytes. If the client considers the response
// complete, it is the one that the standard library reads from these bytes, or one of the proxy's
// own.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nEtag: \"x\"\r\n\r\nbody",
		"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-4/9\r\nContent-Length: 4\r\n\r\nbody",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nConnection: x, close\r\nX: y\r\nContent-Length: " +
			"0\r\n\r\nextra",
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
			require.NoError(t, err, "the client got", response.Status, "but the registry sent no valid response")
			if want.StatusCode < 200 {
				continue
			}
			wantBody, err := io.ReadAll(want.Body)
			if err != nil || response.StatusCode != want.StatusCode || !bytes.Equal(body, wantBody) {
				t.Fatalf("the client got %s with %q, the registry sent %s with %q, %v",
					response.Status, body, want.Status, wantBody, err)
			}
			dropNamed(want.Header, want.Header)
			// net/http writes these as they are for this connection
			for _, name := range append([]string{"Content-Length", "Date"}, hopbyhop.Headers...) {
				delete(want.Header, name)
				delete(response.Header, name)
			}
			if !maps.EqualFunc(response.Header, want.Header, slices.Equal) {
				t.Fatalf("the client got the header %q, the registry sent %q", response.Header, want.Header)
			}
			return
		}
	})
}
