package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestMount(t *testing.T) {
	b := noise(1, 100_000)
	t.Run("a blob of another repository is mounted", func(t *testing.T) {
		registry := newTestRegistry(t, false)
		desc := registry.put(t, "first", b)
		open := func() (io.ReadCloser, error) { return nil, errors.New("opened") }
		mounted, err := repository(t, registry.client(t, nil), "second").PushBlob(t.Context(), desc, "first", open, nil)
		if err != nil || !mounted {
			t.Fatalf("mounted %v, error %v", mounted, err)
		}
		registry.has(t, "second", b)
	})
	t.Run("a missing blob is sent in the upload that the response starts", func(t *testing.T) {
		registry := newTestRegistry(t, false)
		mounted, err := repository(t, registry.client(t, nil), "second").PushBlob(t.Context(), describe(b), "first",
			opener(b), nil)
		if err != nil || mounted {
			t.Fatalf("mounted %v, error %v", mounted, err)
		}
		registry.has(t, "second", b)
		if n := registry.Count("POST"); n != 1 {
			t.Errorf("%d uploads were begun, want 1", n)
		}
	})
	t.Run("without a source repository, the registry is asked as well", func(t *testing.T) {
		registry := newTestRegistry(t, false)
		repo := repository(t, registry.client(t, nil), "second")
		require.Value(repo.PushBlob(t.Context(), describe(b), "", opener(b), nil))(t)
		if n := registry.Count("POST /v2/second/blobs/uploads/?mount=sha256"); n != 1 {
			t.Errorf("%d requests to mount, want 1: %q", n, registry.Requests())
		}
	})
	t.Run("an existing blob is not sent to a registry without mounts", func(t *testing.T) {
		registry := newTestRegistry(t, false)
		desc := registry.put(t, "second", b)
		registry.SetFront(func(_ http.ResponseWriter, r *http.Request) bool {
			r.URL.RawQuery = strings.Replace(r.URL.RawQuery, "from=first", "", 1)
			return false
		})
		open := func() (io.ReadCloser, error) { return nil, errors.New("opened") }
		mounted, err := repository(t, registry.client(t, nil), "second").PushBlob(t.Context(), desc, "first", open, nil)
		if err != nil || !mounted {
			t.Fatalf("mounted %v, error %v", mounted, err)
		}
		if n := registry.Count("DELETE"); n != 1 {
			t.Errorf("%d uploads were given up, want the one that was begun", n)
		}
	})
	t.Run("the blob is sent if the mount is forbidden", func(t *testing.T) {
		registry := newTestRegistry(t, false)
		registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Has("mount") {
				say(w, http.StatusForbidden, "DENIED")
				return true
			}
			return false
		})
		mounted, err := repository(t, registry.client(t, nil), "second").PushBlob(t.Context(), describe(b), "first",
			opener(b), nil)
		if err != nil || mounted {
			t.Fatalf("mounted %v, error %v", mounted, err)
		}
		registry.has(t, "second", b)
	})
}

func TestWrongContentIsNotCompleted(t *testing.T) {
	right := noise(2, 3<<20)
	wrong := bytes.Clone(right)
	wrong[len(wrong)/2] ^= 1
	for name, test := range map[string]struct {
		b    []byte
		desc ocispec.Descriptor
		want string
	}{
		"altered":                   {wrong, describe(right), "does not match its digest"},
		"small and altered":         {[]byte("b"), describe([]byte("a")), "does not match its digest"},
		"short":                     {right[:len(right)-1], describe(right), "ends 1 bytes early"},
		"empty instead of one byte": {nil, describe([]byte("a")), "ends 1 bytes early"},
	} {
		for kind, fromFile := range map[string]bool{"over TLS": false, "from a file over plain HTTP": true} {
			t.Run(name+" "+kind, func(t *testing.T) {
				open := opener(test.b)
				if fromFile {
					file := require.Value(os.Open(writeFile(t, test.b)))(t)
					defer file.Close()
					open = blob.FromReaderAt(file, 0, max(test.desc.Size, int64(len(test.b)))).Open
				}
				registry := newTestRegistry(t, fromFile)
				client := registry.client(t, nil)
				repo := repository(t, client, "some/where")
				var sent int64
				_, err := repo.PushBlob(t.Context(), test.desc, "", open, func(_, n int64) { sent += n })
				wantError(t, err, test.want)
				var content *blob.Error
				if !errors.As(err, &content) {
					t.Errorf("%T is no error about content", err)
				}
				registry.hasNot(t, "some/where", test.desc.Digest)
				if n := registry.Count("DELETE"); n != 1 {
					t.Errorf("%d uploads were cancelled, want 1", n)
				}
				if size := test.desc.Size; sent > size || sent == size && size > 0 {
					t.Errorf("sent %d bytes of %d", sent, size)
				}
			})
		}
	}
}

// halfTaken accepts the first PUT's body up to an offset and then closes the connection.
func halfTaken(registry testRegistry, upTo int64, status http.HandlerFunc) {
	var puts atomic.Int64
	registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPut && puts.Add(1) == 1:
			// The registry is handed a part, as it is in a PATCH.
			r.Method = http.MethodPatch
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r.Body, upTo), r.Body}
			r.ContentLength = -1
			r.Header.Del("Content-Length")
			registry.App.ServeHTTP(httptest.NewRecorder(), r)
			hijacked, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			hijacked.Close()
			return true
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/uploads/") && status != nil:
			status(w, r)
			return true
		}
		return false
	})
}

func TestBrokenUpload(t *testing.T) {
	const taken = 1_234_567
	b := noise(3, 3<<20)
	for name, test := range map[string]struct {
		status http.HandlerFunc // handles the request for the offset, unless nil
		begun  int              // uploads
		most   int64            // bytes that go twice
	}{
		"is continued where the registry has come to": {nil, 1, int64(len(b)) - taken},
		"begins again where the registry does not know uploads any more": {
			func(w http.ResponseWriter, _ *http.Request) {
				say(w, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN")
			}, 2, int64(len(b)),
		},
		"begins again where uploads cannot be asked about": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) }, 2, int64(len(b)),
		},
		"begins again where the registry claims to have more than it was sent": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Range", "0-"+strconv.Itoa(len(b)*2))
				w.WriteHeader(http.StatusNoContent)
			}, 2, int64(len(b)),
		},
		"restarts if the offset is ambiguous": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Range", "0-0")
				w.WriteHeader(http.StatusNoContent)
			}, 2, int64(len(b)),
		},
	} {
		for kind, open := range map[string]func() (io.ReadCloser, error){"file": fileOpener(t, b), "reader": opener(b)} {
			t.Run(name+", from a "+kind, func(t *testing.T) {
				registry := newTestRegistry(t, true)
				halfTaken(registry, taken, test.status)
				var sent int64
				highest := int64(0)
				_, err := repository(t, registry.client(t, nil), "some/where").PushBlob(t.Context(), describe(b), "", open,
					func(offset, n int64) {
						if offset < highest {
							sent += min(offset+n, highest) - offset
						}
						highest = max(highest, offset+n)
					})
				require.NoError(t, err)
				registry.has(t, "some/where", b)
				if n := registry.Count("POST"); n != test.begun {
					t.Errorf("%d uploads, want %d", n, test.begun)
				}
				if sent > test.most {
					t.Errorf("%d bytes went twice, want at most %d", sent, test.most)
				}
			})
		}
	}
}

func TestUploadThatCannotSucceed(t *testing.T) {
	b := noise(4, 200_000)
	cdn := newTestServer(t, true, http.NotFound)
	for name, test := range map[string]struct {
		front func(w http.ResponseWriter, r *http.Request) bool
		want  []string
	}{
		"sent elsewhere": {
			func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Location", cdn.URL+"/upload?Signature=abc")
				w.WriteHeader(http.StatusAccepted)
				return true
			},
			[]string{"redirected an upload to http://" + cdn.Host(), "not allowed"},
		},
		"redirected": {
			func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					http.Redirect(w, r, cdn.URL+"/upload?Signature=abc", http.StatusTemporaryRedirect)
				}
				return r.Method == http.MethodPut
			},
			[]string{"redirected a PUT to " + cdn.Host(), "not allowed"},
		},
		"no place given": {
			func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(http.StatusAccepted); return true },
			[]string{"returned no valid location"},
		},
		"forbidden": {
			func(w http.ResponseWriter, r *http.Request) bool { say(w, http.StatusForbidden, "DENIED"); return true },
			[]string{"denied access", "test message", "docker login", "--password-stdin"},
		},
		"too large": {
			func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					w.WriteHeader(http.StatusRequestEntityTooLarge)
				}
				return r.Method == http.MethodPut
			},
			[]string{"413"},
		},
		"taken as something else": {
			func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					io.Copy(io.Discard, r.Body)
					w.Header().Set(oci.HeaderDigest, string(digest.FromString("else")))
					w.WriteHeader(http.StatusCreated)
				}
				return r.Method == http.MethodPut
			},
			[]string{"returned digest", string(digest.FromString("else"))},
		},
		"taken before it was sent": {
			func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					w.WriteHeader(http.StatusCreated)
				}
				return r.Method == http.MethodPut
			},
			[]string{"before the whole blob was sent"},
		},
		"always mismatched": {
			func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					io.Copy(io.Discard, r.Body)
					say(w, http.StatusBadRequest, "DIGEST_INVALID")
				}
				return r.Method == http.MethodPut
			},
			[]string{"400", "digest invalid"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			big := b
			if name == "taken before it was sent" {
				big = noise(5, 16<<20) // more than the sockets hold
			}
			registry := newTestRegistry(t, true)
			registry.SetFront(test.front)
			log, lines := logged()
			repo := repository(t, registry.client(t, func(opts *Options) { opts.Log = log }), "some/where")
			_, err := repo.PushBlob(t.Context(), describe(big), "", opener(big), nil)
			wantError(t, err, append(test.want, registry.Host())...)
			noSecret(t, lines.String())
			registry.SetFront(nil)
			registry.hasNot(t, "some/where", describe(big).Digest)
			if len(cdn.Requests()) > 0 {
				t.Errorf("the other host was asked: %q", cdn.Requests())
			}
		})
	}
}

// A registry that copies a large blob before it responds, as on S3, is silent for a time that depends on the size.
func TestLargeUploadsHaveMoreTime(t *testing.T) {
	registry := newTestRegistry(t, true)
	registry.SetFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(raw))
			time.Sleep(500 * time.Millisecond)
		}
		return false
	})
	client := registry.client(t, func(opts *Options) { opts.responseTimeout, opts.Retries = 100*time.Millisecond, -1 })
	repo := repository(t, client, "large")
	for size, want := range map[int]bool{1000: false, 2*storageBytesPerSecond + 1: true} {
		raw := noise(1, size)
		_, err := repo.PushBlob(t.Context(), describe(raw), "", opener(raw), nil)
		if (err == nil) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	b := noise(6, 100_000)
	for name, test := range map[string]struct {
		header     func() string
		atLeast    time.Duration
		notMoreBy  time.Duration
		statusCode int
	}{
		"seconds": {func() string { return "31" }, 31 * time.Second, 0, http.StatusTooManyRequests},
		"a date": {func() string { return time.Now().Add(100 * time.Second).UTC().Format(http.TimeFormat) },
			20 * time.Second, 80 * time.Second, http.StatusServiceUnavailable},
		"too long": {func() string { return "86400" }, maxRetryAfter, 0, http.StatusTooManyRequests},
		"a date in the past": {func() string { return "Wed, 21 Oct 2015 07:28:00 GMT" }, firstDelay / 2, maxDelay,
			http.StatusTooManyRequests},
		"nothing": {func() string { return "" }, firstDelay / 2, maxDelay, http.StatusTooManyRequests},
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut} {
			t.Run(name+" "+method, func(t *testing.T) {
				registry := newTestRegistry(t, true)
				var once atomic.Bool
				registry.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != method || once.Swap(true) {
						return false
					}
					w.Header().Set("Retry-After", test.header())
					w.WriteHeader(test.statusCode)
					return true
				})
				var waited pauses
				repo := repository(t, registry.client(t, func(opts *Options) { opts.sleep = waited.sleep }), "some/where")
				require.Value(repo.PushBlob(t.Context(), describe(b), "", opener(b), nil))(t)
				registry.has(t, "some/where", b)
				if got := waited.longest(); got < test.atLeast || got > test.atLeast+test.notMoreBy {
					t.Errorf("waited %s, want %s and at most %s more", got, test.atLeast, test.notMoreBy)
				}
			})
		}
	}
}

// TestCancellation ends contexts while something is waited for that never comes.
func TestCancellation(t *testing.T) {
	b := noise(7, 16<<20) // more than the sockets hold
	var hang chan struct{}
	for name, test := range map[string]struct {
		front func(reached func()) func(w http.ResponseWriter, r *http.Request) bool
		pull  bool
	}{
		"during a stalled upload": {front: func(reached func()) func(http.ResponseWriter, *http.Request) bool {
			return func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut {
					return false
				}
				io.CopyN(io.Discard, r.Body, 1000)
				reached()
				<-hang
				return true
			}
		}},
		"while a pause is made": {front: func(reached func()) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Retry-After", "100")
				w.WriteHeader(http.StatusTooManyRequests)
				reached()
				return true
			}
		}},
		"while an answer is waited for": {front: func(reached func()) func(http.ResponseWriter, *http.Request) bool {
			return func(http.ResponseWriter, *http.Request) bool {
				reached()
				<-hang
				return true
			}
		}},
		"during a stalled download": {pull: true, front: func(reached func()) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Length", strconv.Itoa(len(b)))
				w.Write(b[:1000])
				w.(http.Flusher).Flush()
				reached()
				<-hang
				return true
			}
		}},
	} {
		for kind, plain := range map[string]bool{"over TLS": false, "over plain HTTP": true} {
			t.Run(name+" "+kind, func(t *testing.T) {
				registry := newTestRegistry(t, plain)
				hang = make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				registry.SetFront(test.front(cancel))
				repo := repository(t, registry.client(t, func(opts *Options) { opts.sleep = nil }), "some/where")
				var err error
				if test.pull {
					_, err = pull(ctx, repo, describe(b), 0)
				} else {
					_, err = repo.PushBlob(ctx, describe(b), "", fileOpener(t, b), nil)
				}
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want that the context ended", err)
				}
				close(hang)
				if n := registry.Count("DELETE"); n > 0 {
					t.Error("a request was sent after the cancellation")
				}
			})
		}
	}
}

// TestMemoryIsFlat pushes a blob that is larger than what may be allocated.
func TestMemoryIsFlat(t *testing.T) {
	const size, limit = 256 << 20, 8 << 20
	path, desc := largeFile(t, size)
	// A server of few words: what it allocates would count as well.
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	go swallow(listener, size)
	reg, err := New(Options{Host: listener.Addr().String(), PlainHTTP: true})
	require.NoError(t, err)
	defer reg.Close()
	repo := repository(t, reg, "large")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = repo.PushBlob(t.Context(), desc, "", func() (io.ReadCloser, error) { return os.Open(path) }, nil)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	if got := after.TotalAlloc - before.TotalAlloc; got > limit {
		t.Errorf("%d bytes were allocated, want at most %d", got, limit)
	} else {
		t.Logf("%d KiB were allocated for %d MiB", got>>10, size>>20)
	}
}

// swallow is as much of a registry as a push of one blob needs.
func swallow(listener net.Listener, size int64) {
	for { // the client may open another connection for its second request
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go swallowFrom(client, size)
	}
}

func swallowFrom(client net.Conn, size int64) {
	defer client.Close()
	buffer := make([]byte, 1<<20)
	for {
		var header []byte
		for !bytes.HasSuffix(header, []byte("\r\n\r\n")) {
			if _, err := client.Read(buffer[:1]); err != nil {
				return
			}
			header = append(header, buffer[0])
		}
		if bytes.HasPrefix(header, []byte("POST")) {
			io.WriteString(client, "HTTP/1.1 202 Accepted\r\nLocation: /v2/large/blobs/uploads/1\r\nContent-Length: 0\r\n\r\n")
			continue
		}
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(struct{ io.Reader }{client}, size), buffer)
		io.WriteString(client, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
	}
}

func TestTokenIsFetchedAgainDuringAnUpload(t *testing.T) {
	// The token of the first PUT has run out: the same body goes again with a new one.
	b := noise(8, 300_000)
	var tokens, puts atomic.Int64
	registry := newTestRegistry(t, true)
	registry.requireToken(registry.URL+"/token", func(r *http.Request) bool {
		return r.Method == http.MethodPut && puts.Add(1) == 1
	})
	registry.serveTokens(t, func(*http.Request) string { return fmt.Sprint("t", tokens.Add(1)) })
	reg := registry.client(t, nil)
	for _, open := range []func() (io.ReadCloser, error){fileOpener(t, b), opener(b)} {
		puts.Store(0)
		require.Value(repository(t, reg, "some/where").PushBlob(t.Context(), describe(b), "", open, nil))(t)
	}
	if tokens.Load() < 2 {
		t.Errorf("%d tokens were fetched, want one more for what ran out", tokens.Load())
	}
}

// A registry in a private network may have its token server there under another name.
func TestTokenServerOfAnotherName(t *testing.T) {
	b := noise(8, 1000)
	for name, test := range map[string]struct {
		realm func(registry string) string
		wrong string
	}{
		"beside the registry": {func(url string) string {
			return strings.Replace(url, "127.0.0.1", "localhost", 1) + "/token?account=a"
		}, ""},
		"where clouds have credentials": {func(string) string { return "http://169.254.169.254/token" }, "link-local"},
		"that is not there": {func(string) string { return "http://localhost:1/token" },
			"token server localhost:1"},
	} {
		t.Run(name, func(t *testing.T) {
			registry := newTestRegistry(t, true)
			registry.requireToken(test.realm(registry.URL), nil)
			registry.serveTokens(t, func(r *http.Request) string {
				if q := r.URL.Query(); q.Get("account") != "a" || q.Get("service") != "test" || q.Get("scope") == "" ||
					!strings.HasPrefix(r.Host, "localhost:") {
					t.Errorf("the token server was asked %s at %s", r.URL, r.Host)
				}
				return "t"
			})
			_, err := repository(t, registry.client(t, func(opts *Options) { opts.Retries = -1 }),
				"some/where").PushBlob(t.Context(), describe(b), "", opener(b), nil)
			if test.wrong != "" {
				wantError(t, err, registry.Host(), test.wrong)
				return
			}
			require.NoError(t, err)
		})
	}
}

// A registry that accepts any content does not weaken verification.
func TestRegistryThatAcceptsAnything(t *testing.T) {
	b := noise(3, 1<<20)
	for name, test := range map[string]struct {
		content []byte
		wrong   bool
	}{"right": {b, false}, "altered": {append(slices.Clone(b[:len(b)-1]), b[len(b)-1]+1), true}} {
		t.Run(name, func(t *testing.T) {
			registry := newTestServer(t, true, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Method == http.MethodPost {
					w.Header().Set("Location", "upload")
					w.WriteHeader(http.StatusAccepted)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			_, err := repository(t, registry.client(t, nil), "some/where").PushBlob(t.Context(), describe(b), "",
				fileOpener(t, test.content), nil)
			switch {
			case test.wrong:
				wantError(t, err, "does not match its digest")
			case err != nil:
				t.Error(err)
			}
		})
	}
}
