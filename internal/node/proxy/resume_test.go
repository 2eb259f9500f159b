package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// cutter breaks the connection after some bytes of a body.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	if c.left -= n; c.left <= 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// cutResponses breaks off each response at a random position, if it is long enough.
func cutResponses(handler http.Handler, most int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(&cutter{w, 1 + rand.N(most)}, r)
	})
}

// A client gets the whole body, however often and wherever it breaks off.
func TestResumeCutBodies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler func(blob) http.Handler
		header  http.Header
		size    int
		want    func([]byte) []byte
	}{
		"a blob": {
			handler: func(b blob) http.Handler { return store{b} },
		},
		"the rest of a blob": {
			handler: func(b blob) http.Handler { return store{b} },
			header:  http.Header{"Range": {"bytes=1000-"}},
			want:    func(data []byte) []byte { return data[1000:] },
		},
		"a range within a blob": {
			handler: func(b blob) http.Handler { return store{b} },
			header:  http.Header{"Range": {"bytes=1000-700000"}},
			want:    func(data []byte) []byte { return data[1000:700001] },
		},
		"a conditional request": {
			handler: func(b blob) http.Handler { return store{b} },
			header:  http.Header{"If-None-Match": {`"other"`}, "Range": {"bytes=5-"}, "If-Range": {`"other"`}},
		},
		"a blob that has a digest but no ETag": {
			handler: func(b blob) http.Handler { return without("Etag", store{b}) },
		},
		"a blob that has an ETag but no digest": {
			handler: func(b blob) http.Handler { return without(oci.HeaderDigest, store{b}) },
		},
		"a manifest, for which the registry has no ranges": {
			handler: func(b blob) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					b.setHeader(w)
					w.Header().Set("Content-Length", strconv.Itoa(len(b.data)))
					_, _ = w.Write(b.data)
				})
			},
		},
		"a registry that fails temporarily": {
			handler: func(b blob) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("If-Range") != "" && rand.N(3) == 0 {
						w.Header().Set(oci.HeaderAPIVersion, "registry/2.0")
						w.WriteHeader(http.StatusInternalServerError)
						return
					}
					store{b}.ServeHTTP(w, r)
				})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			content := newBlob(1 << 20)
			f := start(t, cutResponses(tt.handler(content), 2*len(content.data)))
			resumed := func() float64 { return f.metric(`upstream_resumes_total{result="ok"}`) }
			for n := 0; resumed() < 5; n++ {
				if n == 1000 {
					t.Fatal("no body was resumed: the test checked nothing")
				}
				request, _ := http.NewRequest(http.MethodGet, f.url(content.path()), nil)
				if tt.header != nil {
					request.Header = tt.header.Clone()
				}
				response, body, err := do(request)
				want := content.data
				if tt.want != nil {
					want = tt.want(content.data)
				}
				if err != nil || response.StatusCode >= 300 || !bytes.Equal(body, want) {
					t.Fatalf("%v, %v, %d bytes, want %d", response, err, len(body), len(want))
				}
			}
		})
	}
}

// without removes a header from all responses.
func without(name string, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(&headerFilter{w, name}, r)
	})
}

type headerFilter struct {
	http.ResponseWriter
	name string
}

func (f *headerFilter) WriteHeader(code int) {
	f.Header().Del(f.name)
	f.ResponseWriter.WriteHeader(code)
}

// If a body cannot be resumed, the client must notice that it is incomplete, also over TLS and with
// HTTP/1.0.
func TestUnresumableBodies(t *testing.T) {
	t.Parallel()
	content, other := newBlob(200_000), newBlob(200_001)
	whole := store{content}.ServeHTTP
	length := func(w http.ResponseWriter) { w.Header().Set("Content-Length", strconv.Itoa(len(content.data))) }
	partial := func(contentRange string, n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			content.setHeader(w)
			w.Header().Set("Content-Range", contentRange)
			w.Header().Set("Content-Length", strconv.Itoa(n))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, n))
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, tt := range map[string]struct {
		first  http.HandlerFunc // its response breaks off
		second http.HandlerFunc // handles all other requests
	}{
		"no validators": {func(w http.ResponseWriter, _ *http.Request) { length(w); _, _ = w.Write(content.data) }, whole},
		"only a weak ETag": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `W/"x"`)
			length(w)
			_, _ = w.Write(content.data)
		}, whole},
		"an unknown length": {
			func(w http.ResponseWriter, _ *http.Request) { content.setHeader(w); _, _ = w.Write(content.data) }, whole,
		},
		"the content has changed": {whole, func(w http.ResponseWriter, r *http.Request) {
			other.setHeader(w)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(other.data))
		}},
		"the content was deleted":               {whole, status(http.StatusNotFound)},
		"the registry now requires credentials": {whole, status(http.StatusUnauthorized)},
		"the registry responds with not modified": {whole, func(w http.ResponseWriter, _ *http.Request) {
			content.setHeader(w)
			w.WriteHeader(http.StatusNotModified)
		}},
		"the part starts too early":    {whole, partial("bytes 99999-199999/200000", 100_001)},
		"the part starts too late":     {whole, partial("bytes 100001-199999/200000", 99_999)},
		"the part ends too early":      {whole, partial("bytes 100000-199998/200000", 99_999)},
		"the part is of a longer blob": {whole, partial("bytes 100000-199999/200001", 100_000)},
		"the part has a wrong length":  {whole, partial("bytes 100000-199999/200000", 99_999)},
		"the part has no range":        {whole, partial("bytes */200000", 100_000)},
		"the whole has another length": {whole, func(w http.ResponseWriter, _ *http.Request) {
			content.setHeader(w)
			w.Header().Set("Content-Length", "200001")
			_, _ = w.Write(other.data)
		}},
		"the registry always stops at the same byte": {whole, func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			whole(&cutter{w, 100_000}, r)
		}},
		"the registry does not come back": {whole, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		for _, client := range []string{"http", "https", "HTTP/1.0", "HTTP/1.0 with TLS"} {
			t.Run(name+", "+client, func(t *testing.T) {
				first := func(w http.ResponseWriter, r *http.Request) { tt.first(&cutter{w, 100_000}, r) }
				f := start(t, firstThen(first, tt.second), retryFor(time.Second/5))
				var got []byte
				var err error
				switch client {
				case "http":
					_, got, err = f.get(content.path())
				case "https":
					var response *http.Response
					request, _ := http.NewRequest(http.MethodGet, "https://"+f.address()+content.path(), nil)
					if response, err = trusting(f).RoundTrip(request); err == nil {
						var body bytes.Buffer
						_, err = body.ReadFrom(response.Body)
						got = body.Bytes()
						_ = response.Body.Close()
					}
				default:
					got, err = getHTTP10(t, f, content.path(), strings.HasSuffix(client, "TLS"))
				}
				if err == nil {
					t.Fatalf("the client accepted %d bytes as the whole body", len(got))
				}
				if !bytes.HasPrefix(content.data, got) {
					t.Error("the client got bytes that are not in the blob")
				}
				if got := f.metric("responses_aborted_total"); got != 1 {
					t.Errorf("%v responses were counted as aborted, want 1", got)
				}
			})
		}
	}
}

// A registry that stops in the middle of a body without closing the connection.
func TestResumeStalledBodies(t *testing.T) {
	content := newBlob(300_000)
	f := start(t, firstThen(func(w http.ResponseWriter, r *http.Request) {
		content.setHeader(w)
		w.Header().Set("Content-Length", strconv.Itoa(len(content.data)))
		_, _ = w.Write(content.data[:123_456])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, store{content}.ServeHTTP), func(p *Proxy) { p.limits.progressTimeout = time.Second / 4 })
	f.pull(t, content)
}

// A registry that sends a few bytes at a time is slow, not broken.
func TestSlowBodies(t *testing.T) {
	content := newBlob(200_000)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		content.setHeader(w)
		w.Header().Set("Content-Length", strconv.Itoa(len(content.data)))
		for rest := content.data; len(rest) > 0; {
			n := min(len(rest), 1+rand.N(20_000))
			_, _ = w.Write(rest[:n])
			_ = http.NewResponseController(w).Flush()
			rest = rest[n:]
			time.Sleep(rand.N(2 * fillTimeout))
		}
	}))
	f.pull(t, content)
	if got := f.metric(`upstream_resumes_total{result="ok"}`); got != 0 {
		t.Errorf("%v bodies were resumed although they had not broken off", got)
	}
}

// A client that disconnects while its body waits to be resumed no longer counts as waiting.
func TestResumeEndsWaiting(t *testing.T) {
	f := start(t, store{})
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
	r := require.Value(http.NewRequestWithContext(ctx, http.MethodGet, "https://registry/v2/a/blobs/x", nil))(t)
	body := &interruptedBody{want: validators{etag: `"x"`}, budget: f.proxy.newRetryBudget()}
	body.budget.attempts = 10 // the next one is a second away
	if _, _, err := f.proxy.resume(&request{Request: r, scheme: "https"}, body, 1, io.ErrUnexpectedEOF); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if n := f.metric("requests_waiting"); n != 0 {
		t.Errorf("%f requests wait", n)
	}
}
