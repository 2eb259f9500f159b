package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// plain is the part of a response that a client sees.
type plain struct {
	Status           string
	Header           http.Header
	Body             string
	ContentLength    int64
	TransferEncoding []string
	Error            string
}

func roundTrip(t *testing.T, transport http.RoundTripper, request *http.Request) plain {
	t.Helper()
	response := require.Value(transport.RoundTrip(request))(t)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	p := plain{response.Status, response.Header, string(body), response.ContentLength, response.TransferEncoding, ""}
	if err != nil {
		p.Error = err.Error()
	}
	// Both clients close their connections, so both servers announce that.
	p.Header.Del("Connection")
	return p
}

// A response passes through the proxy exactly as the registry sends it.
func TestResponsesPassUnchanged(t *testing.T) {
	content := newBlob(100_000)
	mux := http.NewServeMux()
	mux.Handle("/v2/repository/blobs/", store{content})
	answer := func(path string, handler http.HandlerFunc) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Date"] = []string{"Thu, 20 Nov 2025 10:00:00 GMT"}
			handler(w, r)
		})
	}
	ociError := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"…","detail":null}]}`, code)
		}
	}
	answer("/v2/{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	answer("/unauthorized", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Www-Authenticate", `Basic realm="zarf-registry"`)
		w.Header().Add("Www-Authenticate", `Bearer realm="https://example.invalid/token",service="s"`)
		ociError(http.StatusUnauthorized, "UNAUTHORIZED")(w, r)
	})
	answer("/denied", ociError(http.StatusForbidden, "DENIED"))
	answer("/toomany", ociError(http.StatusTooManyRequests, "TOOMANYREQUESTS"))
	answer("/broken", ociError(http.StatusInternalServerError, "UNKNOWN"))
	answer("/unavailable", ociError(http.StatusServiceUnavailable, "UNAVAILABLE"))
	answer("/elsewhere", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/v2/other?a=b&c=%2F")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	answer("/absolute", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.Header.Get("X-Forwarded-Proto")+"://"+r.Host+"/v2/x")
		w.WriteHeader(http.StatusAccepted)
	})
	answer("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", `</v2/_catalog?last=b&n=2>; rel="next"`)
		_, _ = io.WriteString(w, `{"repositories":["a","b"]}`)
	})
	answer("/chunked", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 5 {
			fmt.Fprintf(w, "part %d\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	})
	answer("/typeless", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>not to be guessed")
	})
	answer("/dateless", func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil })
	answer("/empty", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") })
	answer("/nocontent", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	answer("/gzip", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0})
	})
	answer("/twice", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Twice"] = []string{"b", "a", "b"}
		w.Header().Set("Docker-Upload-Uuid", "1")
	})
	answer("/early", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "late")
	})
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/echo/") { // the mux would clean the path
			_, _ = io.WriteString(w, r.Method+" "+r.RequestURI)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	direct := f.direct()
	proxied := &http.Transport{DisableKeepAlives: true, DisableCompression: true}

	with := func(name, value string) http.Header { return http.Header{name: {value}} }
	etag := `"` + content.digest + `"`
	for desc, tt := range map[string]struct {
		path   string
		header http.Header
		status int
	}{
		"the API's root":                            {"/v2/", nil, 200},
		"a blob":                                    {content.path(), nil, 200},
		"a range of a blob":                         {content.path(), with("Range", "bytes=10-99"), 206},
		"the rest of a blob":                        {content.path(), with("Range", "bytes=90000-"), 206},
		"the end of a blob":                         {content.path(), with("Range", "bytes=-7"), 206},
		"two ranges of a blob":                      {content.path(), with("Range", "bytes=0-9,20-29"), 206},
		"an unsatisfiable range":                    {content.path(), with("Range", "bytes=100000-"), 416},
		"an invalid range":                          {content.path(), with("Range", "bytes=9-1"), 416},
		"a blob that the client has":                {content.path(), with("If-None-Match", etag), 304},
		"a range of an unchanged blob":              {content.path(), http.Header{"Range": {"bytes=1-2"}, "If-Range": {etag}}, 206},
		"a range of a changed blob":                 {content.path(), http.Header{"Range": {"bytes=1-2"}, "If-Range": {`"x"`}}, 200},
		"an unknown blob":                           {"/v2/repository/blobs/sha256:00", nil, 404},
		"a challenge with two schemes":              {"/unauthorized", nil, 401},
		"a refusal":                                 {"/denied", nil, 403},
		"a rate limit":                              {"/toomany", nil, 429},
		"an error":                                  {"/broken", nil, 500},
		"the registry's own 503":                    {"/unavailable", nil, 503},
		"a redirect":                                {"/elsewhere", nil, 307},
		"a page with a link to the next":            {"/page", nil, 200},
		"a body of unknown length":                  {"/chunked", nil, 200},
		"a body without a type":                     {"/typeless", nil, 200},
		"a response without a date":                 {"/dateless", nil, 200},
		"an empty body":                             {"/empty", nil, 200},
		"no body":                                   {"/nocontent", nil, 204},
		"a compressed body":                         {"/gzip", with("Accept-Encoding", "gzip"), 200},
		"headers that come more than once":          {"/twice", nil, 200},
		"an interim response":                       {"/early", nil, 200},
		"a path with escapes":                       {"/echo/a%2Fb%20c/%E2%82%AC", nil, 200},
		"a path with two slashes":                   {"/echo//x", nil, 200},
		"a path that looks escaped":                 {"/echo/a+b;c=d", nil, 200},
		"a query":                                   {"/echo/?a=%2F&b=c+d&&=;", nil, 200},
		"an empty query":                            {"/echo/?", nil, 200},
		"a path that the registry's mux cleans up":  {"/v2/../v2/", nil, 307},
		"a client that accepts compression":         {content.path(), with("Accept-Encoding", "gzip, br"), 200},
		"a request for several types of a manifest": {"/echo/", http.Header{"Accept": {"a/b", "c/d, e/f"}}, 200},
		"a request with Cache-Control":              {content.path(), with("Cache-Control", "no-cache"), 200},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			t.Run(method+" "+desc, func(t *testing.T) {
				ask := func(transport http.RoundTripper, base string) plain {
					request := require.Value(http.NewRequest(method, base+tt.path, nil))(t)
					request.Header = tt.header.Clone()
					if request.Header == nil {
						request.Header = http.Header{}
					}
					request.Host = "127.0.0.1:31999"
					return roundTrip(t, transport, request)
				}
				want := ask(direct, "https://"+f.registry.address)
				got := ask(proxied, f.url(""))
				if tt.status != 0 && !strings.HasPrefix(got.Status, fmt.Sprint(tt.status)) {
					t.Errorf("status = %s, want %d", got.Status, tt.status)
				}
				got = ignoreChance(want, got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("direct (-) and proxied (+) responses differ:\n%s", diff)
				}
				if got.Error != "" {
					t.Error(got.Error)
				}
			})
		}
	}

	t.Run("an absolute URL uses the client's scheme and host", func(t *testing.T) {
		for scheme, client := range map[string]*http.Transport{"http": proxied, "https": trusting(f)} {
			request, _ := http.NewRequest(http.MethodGet, scheme+"://"+f.address()+"/absolute", nil)
			request.Header.Set("X-Forwarded-Proto", "gopher")
			got := roundTrip(t, client, request).Header.Get("Location")
			if want := scheme + "://" + f.address() + "/v2/x"; got != want {
				t.Errorf("Location = %q, want %q", got, want)
			}
		}
	})
}

// ignoreChance copies from want the date and multipart boundary that the servers generate.
func ignoreChance(want, got plain) plain {
	if at, err := http.ParseTime(want.Header.Get("Date")); err == nil {
		if other, err := http.ParseTime(got.Header.Get("Date")); err == nil && other.Sub(at).Abs() < time.Minute {
			got.Header.Set("Date", want.Header.Get("Date"))
		}
	}
	boundary := func(p plain) string {
		_, boundary, _ := strings.Cut(p.Header.Get("Content-Type"), "boundary=")
		return boundary
	}
	if from, to := boundary(got), boundary(want); len(from) == len(to) && from != "" {
		got.Header.Set("Content-Type", strings.ReplaceAll(got.Header.Get("Content-Type"), from, to))
		got.Body = strings.ReplaceAll(got.Body, from, to)
	}
	return got
}

func TestRequestHeaders(t *testing.T) {
	type seen struct {
		host   string
		header http.Header
	}
	requests := make(chan seen, 1)
	f := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests <- seen{r.Host, r.Header}
	}))
	for desc, tt := range map[string]struct{ send, want http.Header }{
		"forwards what a runtime sends": {
			send: http.Header{
				"Accept": {"application/vnd.oci.image.index.v1+json", "*/*"}, "Range": {"bytes=1-"}, "If-None-Match": {`"x"`},
				"User-Agent": {"containerd/2.2"}, "Accept-Encoding": {"zstd"}, "X-Meta-Source-Client": {"containerd/v2"},
			},
			want: http.Header{
				"Accept": {"application/vnd.oci.image.index.v1+json", "*/*"}, "Range": {"bytes=1-"}, "If-None-Match": {`"x"`},
				"User-Agent": {"containerd/2.2"}, "Accept-Encoding": {"zstd"}, "X-Meta-Source-Client": {"containerd/v2"},
			},
		},
		"adds nothing to a request without headers": {},
		"drops credentials": {
			send: http.Header{"Authorization": {"Basic c2VjcmV0"}, "Cookie": {"a=b"}, "Proxy-Authorization": {"Basic x"}},
		},
		"drops hop-by-hop headers": {
			send: http.Header{
				"Connection": {"close, X-One", "x-two,Accept"}, "X-One": {"1"}, "X-Two": {"2"}, "Accept": {"a/b"},
				"Keep-Alive": {"timeout=5"}, "Te": {"trailers"}, "Upgrade": {"websocket"}, "Proxy-Connection": {"keep-alive"},
				"Trailer": {"X"}, "X-Three": {"3"},
			},
			want: http.Header{"X-Three": {"3"}},
		},
		"drops the client's forwarding headers": {
			send: http.Header{
				"X-Forwarded-For": {"192.0.2.1"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"https"},
				"X-Forwarded-Port": {"1"}, "Forwarded": {"for=192.0.2.1"}, "X-Real-Ip": {"192.0.2.1"},
			},
		},
	} {
		t.Run(desc, func(t *testing.T) {
			c := f.dial(t)
			defer c.Close()
			fmt.Fprint(c, "GET /v2/ HTTP/1.1\r\nHost: 127.0.0.1:31999\r\n")
			require.NoError(t, tt.send.Write(c))
			fmt.Fprint(c, "\r\n")
			got := <-requests
			want := tt.want.Clone()
			if want == nil {
				want = http.Header{}
			}
			want["X-Forwarded-Proto"] = []string{"http"}
			if diff := cmp.Diff(want, got.header); diff != "" {
				t.Errorf("headers at the registry (-want +got):\n%s", diff)
			}
			if got.host != "127.0.0.1:31999" {
				t.Errorf("host at the registry = %q, want the client's", got.host)
			}
		})
	}
	t.Run("drops the hop-by-hop headers of a response", func(t *testing.T) {
		f.handle(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Connection", "X-One")
			h.Set("X-One", "1")
			h.Set("Keep-Alive", "timeout=5")
			h.Set("Upgrade", "h2c")
			h.Set("X-Two", "2")
		}))
		response, _, err := f.get("/v2/")
		require.NoError(t, err)
		for _, name := range []string{"X-One", "Keep-Alive", "Upgrade"} {
			if got := response.Header.Values(name); got != nil {
				t.Errorf("%s: %q passed", name, got)
			}
		}
		if response.Header.Get("X-Two") != "2" {
			t.Error("X-Two was not forwarded")
		}
	})
}

// Claim (DELETE; POST): Proxies only read.
func TestRefusals(t *testing.T) {
	f := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the registry got %s %s", r.Method, r.RequestURI)
	}))
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get", "G"} {
		t.Run(method, func(t *testing.T) {
			request, _ := http.NewRequest(method, f.url("/v2/repository/blobs/uploads/"), strings.NewReader("body"))
			response, body, err := do(request)
			require.NoError(t, err)
			if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s, Allow %q", response.Status, response.Header.Get("Allow"))
			}
			checkOCIError(t, response, body, "UNSUPPORTED", "read-only")
		})
	}
	t.Run("CONNECT", func(t *testing.T) {
		got := exchange(t, f,
			"CONNECT example.invalid:443 HTTP/1.1\r\nHost: example.invalid:443\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 405 ") {
			t.Errorf("response = %q", got)
		}
	})
	t.Run("GET with a body", func(t *testing.T) {
		request, _ := http.NewRequest(http.MethodGet, f.url("/v2/"), strings.NewReader("body"))
		response, body, err := do(request)
		require.NoError(t, err)
		if response.StatusCode != http.StatusBadRequest {
			t.Error(response.Status)
		}
		checkOCIError(t, response, body, "UNSUPPORTED", "must not have a body")
	})
	t.Run("a header of more than 32 KiB", func(t *testing.T) {
		request, _ := http.NewRequest(http.MethodGet, f.url("/v2/"), nil)
		request.Header.Set("X-Large", strings.Repeat("x", 64<<10))
		if response, _, err := do(request); err == nil && response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Error(response.Status)
		}
	})
	if got := f.metric(`requests_total{method="other",code="405"}`); got != 10 {
		t.Errorf("%v requests with other methods were counted, want 10", got)
	}
}

func checkOCIError(t *testing.T, response *http.Response, body []byte, code string, messages ...string) {
	t.Helper()
	var got struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(body, &got); err != nil || len(got.Errors) != 1 {
		t.Fatalf("body %q: %v", body, err)
	}
	if response.Header.Get("Content-Type") != "application/json" || got.Errors[0].Code != code {
		t.Errorf("Content-Type %q, code %q, want %q", response.Header.Get("Content-Type"), got.Errors[0].Code, code)
	}
	for _, message := range messages {
		if !strings.Contains(got.Errors[0].Message, message) {
			t.Errorf("message %q lacks %q", got.Errors[0].Message, message)
		}
	}
}

// exchange sends raw bytes on a new connection and returns everything received until it is closed.
func exchange(t *testing.T, f *fixture, send string) string {
	t.Helper()
	c := f.dial(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(longest))
	require.Value(io.WriteString(c, send))(t)
	got, err := io.ReadAll(c)
	require.NoError(t, err, "after", got)
	return string(got)
}

// An ambiguous request must not make the registry see a request that the proxy did not.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.RequestURI)
		mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		if len(body) > 0 || r.ContentLength != 0 || r.TransferEncoding != nil {
			t.Errorf("a body of %d bytes reached the registry", len(body))
		}
		_, _ = io.WriteString(w, "x")
	}), func(p *Proxy) { p.limits.idle = time.Second / 2 })

	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for name, tt := range map[string]struct {
		send string
		want []string // requests that reach the registry
	}{
		"one request": {"GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\n", []string{"GET /1"}},
		"two requests in one packet": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nHEAD /2 HTTP/1.1\r\nHost: localhost\r\n\r\n", []string{"GET /1", "HEAD /2"},
		},
		"a request in a body of given length": {
			fmt.Sprintf("GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(smuggled), smuggled), nil,
		},
		"a request in a chunked body": {
			fmt.Sprintf(
				"GET /1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled,
			),
			nil,
		},
		"both lengths, chunked second": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, nil,
		},
		"both lengths, chunked first": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled, nil,
		},
		"two different lengths": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 36\r\n\r\n" + smuggled, nil,
		},
		"a length with a sign": {"GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: +36\r\n\r\n" + smuggled, nil},
		"a negative length":    {"GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" + smuggled, nil},
		"an encoding that is almost chunked": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n" + smuggled, nil,
		},
		"a space before the colon": {"GET /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length : 36\r\n\r\n" + smuggled, nil},
		"a folded header": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nX: y\r\n Content-Length: 36\r\n\r\n", []string{"GET /1"},
		},
		"a line feed in a header": {"GET /1 HTTP/1.1\r\nHost: localhost\r\nX: y\rGET /smuggled HTTP/1.1\r\n\r\n", nil},
		"a NUL in a header":       {"GET /1 HTTP/1.1\r\nHost: localhost\r\nX: y\x00\r\n\r\n", nil},
		"a space in the target":   {"GET /1 HTTP/1.1 X HTTP/1.1\r\nHost: localhost\r\n\r\n", nil},
		"an escaped line break in the target": {
			"GET /1%0d%0aX:%20y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", []string{"GET /1%0d%0aX:%20y"},
		},
		"an escaped line break in the query": {
			"GET /1?%0d%0aX HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", []string{"GET /1?%0d%0aX"},
		},
		"bare line feeds": {"GET /1 HTTP/1.1\nHost: localhost\n\n", []string{"GET /1"}},
		"a target with another host": {
			"GET http://[::1]:5/%2f?x HTTP/1.1\r\nHost: localhost\r\n\r\n", []string{"GET /%2f?x"},
		},
		"a target with a user": {
			"GET http://u:p@127.0.0.1/1 HTTP/1.1\r\nHost: localhost\r\n\r\n", []string{"GET /1"},
		},
		"no host":                  {"GET /1 HTTP/1.1\r\n\r\n", nil},
		"two hosts":                {"GET /1 HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n", nil},
		"a host with a line break": {"GET /1 HTTP/1.1\r\nHost: localhost\r b\r\n\r\n", nil},
		"HTTP/1.0 without a host":  {"GET /1 HTTP/1.0\r\n\r\n", []string{"GET /1"}},
		"HTTP/0.9":                 {"GET /1\r\n", nil},
		"the HTTP/2 preface":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", nil},
		"an upgrade to HTTP/2": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: " +
				"AAMAAABk\r\n\r\n",
			[]string{"GET /1"},
		},
		"garbage": {"\x00\x01\x02\x03\r\n\r\n", nil},
		"an expectation with a body": {
			"GET /1 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 36\r\n\r\n" + smuggled, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			mu.Lock()
			asked = nil
			mu.Unlock()
			got := exchange(t, f, tt.send)
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(tt.want, asked); diff != "" {
				t.Errorf("requests at the registry (-want +got):\n%s\nthe client got %q", diff, got)
			}
		})
	}
}

// A client that stops reading must not hold its connection to the registry forever.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	f := start(t, endless, func(p *Proxy) { p.limits.write = 2 * time.Second })
	c := f.dial(t)
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	eventually(t, "the request has ended", func() bool {
		return f.metric("response_bytes_total") > 0 && f.metric("requests_in_flight") == 0
	})
	// What is queued for it is dropped.
	_ = c.SetReadDeadline(time.Now().Add(longest))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("it got %v, want a reset", err)
	}
}

// endless sends until its client disconnects.
var endless = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", fmt.Sprint(1<<40))
	for part := make([]byte, 1<<20); ; {
		if _, err := w.Write(part); err != nil {
			return
		}
	}
})

// When a client disconnects, its request to the registry is canceled.
func TestClientDisconnects(t *testing.T) {
	came, left := make(chan struct{}), make(chan struct{})
	for name, handler := range map[string]http.HandlerFunc{
		"before the answer": func(_ http.ResponseWriter, r *http.Request) {
			came <- struct{}{}
			<-r.Context().Done()
			left <- struct{}{}
		},
		"during the answer": func(w http.ResponseWriter, r *http.Request) {
			came <- struct{}{}
			endless(w, r)
			left <- struct{}{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, handler)
			c := f.dial(t)
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			<-came
			_ = c.Close()
			select {
			case <-left:
			case <-time.After(longest):
				t.Error("the registry still serves a client that has disconnected")
			}
			eventually(t, "the request has ended", func() bool { return f.metric("requests_in_flight") == 0 })
		})
	}
}

// The client gets at once what the registry has sent, even if the rest is still missing.
func TestStreams(t *testing.T) {
	for name, length := range map[string]string{"a body of known length": "12", "a body of unknown length": ""} {
		t.Run(name, func(t *testing.T) {
			next := make(chan struct{})
			f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				for range 3 {
					_, _ = io.WriteString(w, "part")
					_ = http.NewResponseController(w).Flush()
					<-next
				}
			}))
			c := f.dial(t)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(longest))
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			response := require.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
			for range 3 {
				part := make([]byte, 4)
				if _, err := io.ReadFull(response.Body, part); err != nil || !bytes.Equal(part, []byte("part")) {
					t.Fatalf("%q, %v", part, err)
				}
				next <- struct{}{}
			}
			if _, err := io.ReadFull(response.Body, make([]byte, 1)); err != io.EOF {
				t.Error(err)
			}
		})
	}
}
