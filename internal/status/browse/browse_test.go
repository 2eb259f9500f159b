package browse_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/browse"
)

const manifest = `{"config":{"digest":"sha256:` + zeros + `","size":7,"mediaType":"text/config"},
"layers":[{"digest":"sha256:` + zeros + `","size":2000,"mediaType":"text/<layer>"}]}`

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

// source is a registry with images app-000 to app-449.
type source struct {
	loads int
	err   error
	users bool
}

func (s *source) Load(context.Context) (*browse.Snapshot, error) {
	s.loads++
	if s.err != nil {
		return nil, s.err
	}
	c := &catalog.Catalog{Blobs: map[digest.Digest]catalog.Blob{}, At: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	for i := range 450 {
		name := fmt.Sprintf("app-%03d", i)
		d := digest.FromString(name)
		c.Blobs[d] = catalog.Blob{Digest: d, Size: int64(1000 + i)}
		c.Manifests = append(c.Manifests, &catalog.Manifest{Repository: name, Digest: d, Tags: []string{"1"},
			Platforms: []string{"linux/arm64"}, Pushed: c.At.Add(-time.Duration(i) * time.Hour)})
	}
	c.Manifests[7].Tags = nil
	c.Manifests[8].Problem = `<script>alert("x")</script>`
	snapshot := &browse.Snapshot{Address: "127.0.0.1:31999", Content: c}
	if s.users {
		snapshot.Using = func(i *catalog.Image) []string {
			if i.Repository == "app-005" {
				return []string{"Deployment shop/web", "Pod shop/extra"}
			}
			return nil
		}
	}
	snapshot.Status = &status.Report{Namespace: "zarf", Next: []string{"renew <now>"},
		State: &status.State{Desired: state.Settings{Mode: state.ModeProxy}},
		Registry: &status.Registry{Desired: 1, Message: "no pod exists", Claim: &status.Claim{Name: "images", Phase: "Bound"},
			GarbageCollection: &loaded.GarbageCollection{Problem: "no space"}},
		Nodes: []status.Node{{Name: "n1", Ready: true}}, Certificates: []status.Certificate{{Secret: "zarf-registry-ca"}}}
	return snapshot, nil
}

func (s *source) Manifest(_ context.Context, repository string, _ digest.Digest) ([]byte, error) {
	if repository == "app-008" {
		return nil, errors.New("404 Not Found") // the catalog says why
	}
	return []byte(manifest), nil
}

// get requests a path below the secret one.
func get(t *testing.T, s *browse.Server, path string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8080/secret/"+path, nil)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func contains(t *testing.T, page string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %q:\n%s", text, page)
		}
	}
}

func TestImages(t *testing.T) {
	s := browse.New(&source{users: true}, "127.0.0.1:8080", "secret")
	for query, want := range map[string][]string{
		"":                          {"1 to 200 of 450", "app-199", "Deployment shop/web", "and 1 more", "from=200", "<dd>450</dd>", "<dd>449</dd>"},
		"?from=200&q=app":           {"201 to 400 of 450", "from=0", "from=400", "q=app"},
		"?from=9999":                {"of 450"},
		"?q=app-01+arm64":           {"1 to 10 of 10", "app-017"},
		"?q=DEPLOYMENT":             {"1 to 1 of 1", "app-005"},
		"?q=nothing":                {"No image matches."},
		"?untagged=on":              {"1 to 1 of 1", "app-007@sha256:"},
		"?unused=on&q=app-005":      {"No image matches."},
		"?sort=size":                {"app-449"},
		"?q=%3Cscript%3E":           {"&lt;script&gt;"},
		"?q=app-008":                {"&lt;script&gt;alert("},
		"?sort=pushed&q=app-00&x=1": {"1 to 10 of 10"},
	} {
		code, page := get(t, s, query)
		if code != http.StatusOK || strings.Contains(page, "<script>alert") {
			t.Errorf("%s: %d: %s", query, code, page)
		}
		contains(t, page, want...)
	}
	_, page := get(t, s, "?sort=size")
	if strings.Index(page, "app-449") > strings.Index(page, "app-448") {
		t.Error("the largest image is not the first")
	}
}

func TestImage(t *testing.T) {
	s := browse.New(&source{users: true}, "127.0.0.1:8080", "secret")
	code, page := get(t, s, "image?id=app-005@"+digest.FromString("app-005").String())
	contains(t, page, "<h1>127.0.0.1:31999/app-005:1</h1>", "Pod shop/extra", "layer 1", "2.0 kB", "text/&lt;layer&gt;", "missing",
		"image for linux/arm64")
	if code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	if code, page = get(t, s, "image?id=app-005@sha256:1"); code != http.StatusNotFound {
		t.Errorf("status %d: %s", code, page)
	}
	code, page = get(t, s, "image?id=app-008@"+digest.FromString("app-008").String())
	if contains(t, page, "&lt;script&gt;alert("); code != http.StatusOK {
		t.Errorf("of a broken image: status %d", code)
	}
}

func TestStateAndUnknownUsers(t *testing.T) {
	s := browse.New(&source{}, "127.0.0.1:8080", "secret")
	_, page := get(t, s, "state")
	contains(t, page, "renew &lt;now&gt;", "zarf-registry-ca", "n1", "proxy",
		"no pod exists", "images: Bound", "the last one failed: no space")
	_, page = get(t, s, "?q=app-005")
	contains(t, page, "unknown") // users
}

func TestPagesAreReadAgainOnRequest(t *testing.T) {
	from := &source{err: errors.New("no route to <host>")}
	s := browse.New(from, "127.0.0.1:8080", "secret")
	code, page := get(t, s, "")
	contains(t, page, "no route to &lt;host&gt;")
	if code != http.StatusBadGateway {
		t.Errorf("status %d", code)
	}
	from.err = nil
	code, page = get(t, s, "")
	contains(t, page, "app-005")
	if code != http.StatusOK {
		t.Errorf("status %d after the error", code)
	}
	get(t, s, "state")
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8080/secret/refresh", strings.NewReader("page=state"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/secret/state" || from.loads != 2 {
		t.Errorf("status %d to %s after %d loads", w.Code, w.Header().Get("Location"), from.loads)
	}
	get(t, s, "")
	if from.loads != 3 {
		t.Errorf("%d loads", from.loads)
	}
}

func TestOnlyTheSecretURLIsServed(t *testing.T) {
	s := browse.New(&source{}, "127.0.0.1:8080", "secret")
	for target, want := range map[string]int{
		"http://127.0.0.1:8080/":              http.StatusNotFound,
		"http://127.0.0.1:8080/wrong/":        http.StatusNotFound,
		"http://evil.example:8080/secret/":    http.StatusMisdirectedRequest,
		"http://localhost:8080/secret/":       http.StatusMisdirectedRequest,
		s.URL():                               http.StatusOK,
		s.URL() + "style.css":                 http.StatusOK,
		s.URL() + "script.js":                 http.StatusOK,
		s.URL() + "assets/images.html":        http.StatusNotFound,
		s.URL() + "../secret/state?unknown=1": http.StatusTemporaryRedirect,
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		body, _ := io.ReadAll(w.Result().Body)
		if w.Code != want {
			t.Errorf("%s: status %d, want %d: %s", target, w.Code, want, body)
		}
		if w.Code == http.StatusOK && !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s has no policy", target)
		}
	}
}
