package cluster

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// answer is a registry that gives one response, and notes the request.
type answer struct {
	status  int
	body    string
	request *http.Request
}

func (a *answer) RoundTrip(r *http.Request) (*http.Response, error) {
	a.request = r
	return &http.Response{StatusCode: a.status, Status: http.StatusText(a.status),
		Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

func TestRequestsEndWithTheLastEvent(t *testing.T) {
	const unfinished = "the registry stopped before it had finished"
	access := release.PushAccess{ServerName: "registry", Username: "push", Password: "secret"}
	events := 0
	send := map[string]func(*answer) error{
		gc.Path: func(a *answer) error {
			return Collect(t.Context(), a, access, gc.Request{}, func(gc.Event) error { events++; return nil })
		},
		scrub.Path: func(a *answer) error {
			return Scrub(t.Context(), a, access, scrub.Request{}, func(scrub.Event) error { events++; return nil })
		},
		deletion.Path: func(a *answer) error {
			return DeleteManifests(t.Context(), a, access, deletion.Request{}, func(string, digest.Digest, string) { events++ })
		},
		catalog.Path: func(a *answer) error {
			_, err := Catalog(t.Context(), a, access)
			return err
		},
		"/v2/team/shop/manifests/1": func(a *answer) error { return DeleteTag(t.Context(), a, access, "team/shop", "1") },
	}
	for _, c := range []struct {
		path   string
		status int
		body   string
		events int
		want   string // in the error; "" means no error
	}{
		{gc.Path, 200, `{"phase":"mark"} {"result":{"blobs":1}} {}`, 2, ""},
		{gc.Path, 200, `{"phase":"mark"}`, 1, unfinished},
		{gc.Path, 200, `{"phase":"mark"} {"result`, 1, unfinished},
		{gc.Path, 200, `{"phase":"mark"} {"error":"the disk is full"}`, 1, "the disk is full"},
		{gc.Path, 200, "<html>", 0, "reading the registry's response"},
		{gc.Path, 409, "another runs", 0, "the registry responded Conflict: another runs"},
		{scrub.Path, 200, `{} {"result":{}}`, 2, ""},
		{scrub.Path, 200, `{"error":"the disk is full"}`, 0, "the disk is full"},
		{deletion.Path, 200, `{"repository":"a","digest":"sha256:1"} {"end":true}`, 1, ""},
		{deletion.Path, 200, `{"repository":"a","digest":"sha256:1"}`, 1, unfinished},
		{deletion.Path, 200, `{"error":"the disk is full"}`, 0, "the disk is full"},
		{catalog.Path, 200, "", 0, "the registry stopped in the middle of its catalog"},
		{catalog.Path, 401, "", 0, "reading the registry's catalog: the registry responded Unauthorized"},
		{"/v2/team/shop/manifests/1", 202, "", 0, ""},
		{"/v2/team/shop/manifests/1", 404, "", 0, ""},
		{"/v2/team/shop/manifests/1", 405, "not here", 0, "not here"},
	} {
		events = 0
		a := &answer{status: c.status, body: c.body}
		err := send[c.path](a)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || events != c.events {
			t.Errorf("%s %q: %d events, error %v; want %d, %q", c.path, c.body, events, err, c.events, c.want)
		}
		user, password, _ := a.request.BasicAuth()
		if a.request.URL.Path != c.path || user != "push" || password != "secret" {
			t.Errorf("the request is %s by %s", a.request.URL, user)
		}
	}
}
