package stored

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

func TestImagesScrub(t *testing.T) {
	const progress = `{"progress":{"bytes":1,"total":2}}` + "\n"
	const damaged = `{"problem":{"kind":"damaged","digest":"sha256:d","images":[{"repository":"a/b","tag":"v1",` +
		`"digest":"sha256:m"},{"repository":"c","digest":"sha256:n"}]}}` + "\n"
	const missing = `{"problem":{"kind":"missing","digest":"sha256:e","images":[{"repository":"a/b","tag":"v1",` +
		`"digest":"sha256:m"}]}}` + "\n"
	const garbage = `{"problem":{"kind":"damaged","digest":"sha256:g","images":[]}}` + "\n"
	result := func(problems string) string {
		return `{"result":{"blobs":3,"bytes":2000,"problems":` + problems + `}}` + "\n"
	}
	for description, tt := range map[string]struct {
		output string
		status int
		answer string
		out    string
		err    string
	}{
		"everything is intact": {"table", 200, progress + result("0"), "read 3 blobs (2.0 kB): 0 problems\n", ""},
		"content is damaged and missing": {"table", 200, damaged + progress + missing + result("2"),
			"damaged sha256:d a/b:v1 c@sha256:n\nmissing sha256:e a/b:v1\nread 3 blobs (2.0 kB): 2 problems\n\nnext\n" +
				"  - Push these images again: a/b:v1 c@sha256:n\n", "1 problems"},
		"garbage is damaged": {"table", 200, garbage + result("1"), "damaged sha256:g (no image needs it)\n" +
			"read 3 blobs (2.0 kB): 1 problems\n\nnext\n  - No image needs the damaged content: zarf-registry images garbage-collect " +
			"removes it.\n", "1 problems"},
		"a registry that fails":  {"table", 200, damaged + `{"error":"disk gone"}`, "damaged sha256:d", "disk gone"},
		"one that stops early":   {"table", 200, progress, "", "stopped before it had finished"},
		"another one is reading": {"table", 409, "already being read\n", "", "already being read"},
		"as JSON":                {"json", 200, missing + result("1"), "", "1 problems"},
	} {
		t.Run(description, func(t *testing.T) {
			server := newTLSServer(t, func(w http.ResponseWriter, r *http.Request) {
				user, password, _ := r.BasicAuth()
				got, err := scrub.ParseQuery(r.URL.Query())
				if r.Method != "POST" || r.URL.Path != scrub.Path || user+password != "me"+"secret" || err != nil ||
					got.Rate != 1000 {
					t.Errorf("%s %s %s: %+v, %v", r.Method, r.URL, user, got, err)
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.answer))
			})
			var out bytes.Buffer
			f := scrubFlags{request: scrub.Request{Rate: 1000}, output: tt.output}
			err := f.scrub(t.Context(), server,
				release.PushAccess{ServerName: "r", Username: "me", Password: "secret"}, &out, slog.New(slog.DiscardHandler))
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			if silent, ok := errors.AsType[*render.SilentError](err); ok && silent.Code != exitcode.Found {
				t.Errorf("exit code %d", silent.Code)
			}
			if !strings.HasPrefix(out.String(), tt.out) {
				t.Errorf("%q, want %q", out.String(), tt.out)
			}
			if tt.output == "json" {
				clitest.JSON(t, render.Scrub, out.String())
			}
		})
	}
}
