package stored

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

func TestGarbageCollect(t *testing.T) {
	const blob = `{"removed":{"digest":"sha256:b","bytes":12}}` + "\n"
	const manifest = `{"removed":{"repository":"a/b","digest":"sha256:m"}}` + "\n"
	const phases = `{"phase":"settling"}` + "\n" + `{"phase":"settling"}` + "\n" + `{"phase":"sweeping"}` + "\n"
	const result = `{"result":{"manifests":1,"blobs":1,"bytes":12,"kept":3}}` + "\n"
	for description, tt := range map[string]struct {
		flags  collectFlags
		status int
		answer string
		out    string
		err    string
	}{
		"what is removed is told": {collectFlags{output: "table"}, 200, phases + manifest + blob + result,
			"manifest a/b@sha256:m\nblob sha256:b 12 bytes\nremoved 1 (12 B), 1 of them manifests; kept 3 blobs within the " +
				"grace period\n", ""},
		"nothing is removed by dry": {collectFlags{output: "table", request: gc.Request{DryRun: true}}, 200,
			`{"result":{"kept":0}}`, "would remove 0, 0 of them manifests; kept 0 blobs within the grace period\n", ""},
		"all of it as JSON": {collectFlags{output: "json"}, 200, phases + manifest + blob + result, "", ""},
		"a registry that fails": {collectFlags{output: "table"}, 200, blob + `{"error":"disk gone"}`,
			"blob sha256:b 12 bytes\n", "disk gone"},
		"one that stops early":      {collectFlags{output: "table"}, 200, phases + blob, "", "stopped before it had finished"},
		"one that truncates a line": {collectFlags{output: "table"}, 200, `{"res`, "", "stopped before it had finished"},
		"one that is busy": {collectFlags{output: "table"}, 409, "collected already\n", "",
			"409 Conflict: collected already"},
	} {
		t.Run(description, func(t *testing.T) {
			tt.flags.request.Grace, tt.flags.request.Timeout = time.Hour, time.Minute
			server := newTLSServer(t, func(w http.ResponseWriter, r *http.Request) {
				user, password, _ := r.BasicAuth()
				got, err := gc.ParseQuery(r.URL.Query())
				if r.Method != "POST" || r.URL.Path != gc.Path || user+password != "me"+"secret" || err != nil ||
					got != tt.flags.request {
					t.Errorf("%s %s %s: %+v, %v", r.Method, r.URL, user, got, err)
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.answer))
			})
			var out bytes.Buffer
			err := tt.flags.collect(t.Context(), server,
				release.PushAccess{ServerName: "r", Username: "me", Password: "secret"}, &out, slog.New(slog.DiscardHandler))
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("%q, want %q", out.String(), tt.out)
			}
			if tt.flags.output == "json" {
				clitest.JSON(t, render.GarbageCollection, out.String())
			}
		})
	}
}

// newTLSServer starts a server and returns a transport that sends every request to it.
func newTLSServer(t *testing.T, answer http.HandlerFunc) http.RoundTripper {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	transport := server.Client().Transport.(*http.Transport)
	transport.TLSClientConfig.ServerName = "example.com" // of httptest's certificate
	return redirected{transport, server.Listener.Addr().String()}
}

// redirected sends every request to one address.
type redirected struct {
	*http.Transport
	address string
}

func (r redirected) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.Host = r.address
	return r.Transport.RoundTrip(request)
}
