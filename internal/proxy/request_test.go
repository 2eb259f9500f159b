package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRequestWrite(t *testing.T) {
	for name, tt := range map[string]struct{ from, want string }{
		"a pull": {
			"GET /v2/a/manifests/b%2Fc?n=1&last=%20 HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nAccept: a/b\r\n\r\n",
			"GET /v2/a/manifests/b%2Fc?n=1&last=%20 HTTP/1.1\r\nHost: 127.0.0.1:31999\r\nX-Forwarded-Proto: http\r\nAccept: " +
				"a/b\r\n\r\n",
		},
		"a header with two values": {
			"HEAD / HTTP/1.1\r\nHost: a\r\nAccept: a/b\r\nAccept: c/d\r\n\r\n",
			"HEAD / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: http\r\nAccept: a/b\r\nAccept: c/d\r\n\r\n",
		},
		"credentials, and headers of the connection or that it names": {
			"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic eDp5\r\nCookie: a\r\nConnection: close, accept\r\nAccept: " +
				"a/b\r\nTe: trailers\r\nX-Forwarded-Proto: https\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: http\r\n\r\n",
		},
		"an absolute URL": {
			"GET http://b:5/%2f?x HTTP/1.1\r\nHost: a\r\n\r\n",
			"GET /%2f?x HTTP/1.1\r\nHost: b:5\r\nX-Forwarded-Proto: http\r\n\r\n",
		},
		"no host": {
			"GET / HTTP/1.0\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: registry:443\r\nX-Forwarded-Proto: http\r\n\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(tt.from)))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			newRequest(r).write(&got, "registry:443")
			if got.String() != tt.want {
				t.Errorf("got %q\nwant %q", &got, tt.want)
			}
		})
	}
}

func TestInvalidHost(t *testing.T) {
	f := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the registry got %+v", r)
	}))
	got := exchange(t, f, "GET http://%c3%a4/ HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "invalid characters") {
		t.Errorf("response = %q", got)
	}
}

// A header that arrives in pieces may take longer than limits.unwatched.
func TestSlowResponseHeader(t *testing.T) {
	content := newBlob(10)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for _, piece := range []string{"", "HTTP/1.1 200", " OK\r\nContent-Length: 10\r\n", "\r\n", string(content.data[:5]),
			string(content.data[5:])} {
			time.Sleep(2 * defaultLimits.unwatched)
			_, _ = io.WriteString(c, piece)
		}
	}), retryFor(0))
	response, body, err := f.get("/v2/")
	if err := content.check(response, body, err); err != nil {
		t.Error(err)
	}
}
