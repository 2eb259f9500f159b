package registry

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The official suite tests the OCI distribution specification (test/conformance). These are tests of what it leaves
// open.

func TestManifestsHaveATypeThatTheClientAccepts(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	i.pusher().pushImage("a", "v1", "layer")
	for accept, want := range map[string]int{
		"": http.StatusOK, "*/*": http.StatusOK, ociIndex + ", " + ociManifest + ";q=0.5": http.StatusOK,
		ociIndex: http.StatusNotFound,
	} {
		if got := i.node().must(want, "GET", "/v2/a/manifests/v1", nil, "Accept", accept); want == http.StatusOK &&
			got.Header.Get("Content-Type") != ociManifest {
			t.Errorf("%s: %v", accept, got.Header)
		}
	}
	// What looks like a digest is no tag, and a name may have 255 characters.
	i.pusher().must(http.StatusBadRequest, "GET", "/v2/a/manifests/sha256:x", nil)
	i.pusher().must(http.StatusBadRequest, "GET", "/v2/"+strings.Repeat("a", 256)+"/manifests/v1", nil)
}

// Proxies pass on what caches respond only with this header, and older clients look for it.
func TestEachResponseHasTheVersionOfTheAPIOnce(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	push, node := i.pusher(), i.node()
	d, _ := push.pushImage("a", "v1", "layer")
	layer, upload := digest.FromString("layer").String(), push.begin("a")
	for _, tt := range []struct {
		client client
		status int
		method string
		path   string
	}{
		{push, 200, "GET", "/v2/"}, {push, 200, "GET", "/v2/_catalog"}, {node, 200, "GET", "/v2/a/tags/list"},
		{node, 200, "HEAD", "/v2/a/tags/list"}, {node, 200, "GET", "/v2/a/referrers/" + d.String()},
		{node, 200, "GET", "/v2/a/manifests/v1"}, {node, 200, "HEAD", "/v2/a/manifests/v1"},
		{node, 404, "GET", "/v2/a/manifests/none"}, {node, 200, "GET", "/v2/a/blobs/" + layer},
		{node, 200, "HEAD", "/v2/a/blobs/" + layer}, {node, 404, "HEAD", "/v2/none/blobs/" + layer},
		{node, 403, "PUT", "/v2/a/manifests/v1"}, {node.as("who", "wrong"), 200, "GET", "/v2/"},
		{push, 202, "POST", "/v2/a/blobs/uploads/"}, {push, 201, "POST", "/v2/b/blobs/uploads/?from=a&mount=" + layer},
		{push, 204, "GET", upload}, {push, 202, "PATCH", upload}, {push, 400, "PUT", upload},
		{push, 404, "GET", "/v2/a/blobs/uploads/none"}, {push, 202, "DELETE", "/v2/a/manifests/" + d.String()},
	} {
		a := tt.client.must(tt.status, tt.method, tt.path, nil)
		if got := a.Header[oci.HeaderAPIVersion]; !slices.Equal(got, []string{"registry/2.0"}) {
			t.Errorf("%s %s: %q", tt.method, tt.path, got)
		}
	}
}

func TestOnlyTheAPIIsServed(t *testing.T) {
	t.Parallel()
	node := start(t, newTestCA(t), t.TempDir()).node()
	node.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	if got := node.must(http.StatusOK, "GET", "/v2/", nil); got.Proto != "HTTP/1.1" {
		t.Errorf("protocol is %s", got.Proto)
	}
	for _, path := range []string{"/", "/metrics", "/healthz", "/debug/health", "/debug/pprof/", "/debug/vars"} {
		node.must(http.StatusNotFound, "GET", path, nil)
	}
}

// The registry does not know its external host, and does not believe headers that name one.
func TestLocationsAreRelative(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	octets := []string{"Content-Type", "application/octet-stream"}
	forwarded := []string{"X-Forwarded-Proto", "http", "X-Forwarded-Host", "elsewhere.example", "Forwarded",
		"host=elsewhere.example;proto=http"}
	location := func(a answer) string {
		t.Helper()
		got := a.Header.Get("Location")
		if parsed, err := url.Parse(got); err != nil || parsed.Host != "" || !strings.HasPrefix(got, "/v2/") {
			t.Fatalf("Location %q is not a relative URL", got)
		}
		return got
	}
	begin := func() string {
		t.Helper()
		return location(c.must(http.StatusAccepted, "POST", "/v2/push/me/blobs/uploads/", nil, forwarded...))
	}
	part := location(c.must(http.StatusAccepted, "PATCH", begin(), strings.NewReader("first"),
		append(octets, "Content-Range", "0-4")...))
	status := location(c.must(http.StatusNoContent, "GET", part, nil, forwarded...))
	blob := location(c.must(http.StatusCreated, "PUT", status+"&digest="+digest.FromString("firstlast").String(),
		strings.NewReader("last"), append(octets, forwarded...)...))
	if got := i.node().must(http.StatusOK, "GET", blob, nil); got.body != "firstlast" {
		t.Errorf("the blob is %q", got.body)
	}
	d := c.pushBlob("first", "shared").String()
	location(c.must(http.StatusCreated, "POST", "/v2/second/blobs/uploads/?mount="+d+"&from=first", nil, forwarded...))
	manifest, content := c.pushImage("push/me", "v1", "x")
	if got := location(c.must(http.StatusCreated, "PUT", "/v2/push/me/manifests/v1", strings.NewReader(content),
		append(forwarded, "Content-Type", "application/vnd.oci.image.manifest.v1+json")...)); !strings.HasSuffix(
		got, "/manifests/"+manifest.String()) {
		t.Errorf("Location %q", got)
	}

	// The state in a URL belongs to its upload.
	one, _, _ := strings.Cut(begin(), "?")
	other, state, _ := strings.Cut(begin(), "?")
	if one == other {
		t.Fatal("two uploads have one URL")
	}
	c.must(http.StatusNotFound, "PATCH", one+"?"+state, strings.NewReader("x"), octets...)
}

func TestListsAreOrderedAndPaged(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	// By path, as S3 lists them, v1-a and v1.0 precede v1.
	want := []string{"v1", "v1-a", "v1.0", "v2", "v3"}
	for _, tag := range want {
		c.pushImage("many/tags", tag, "same")
	}
	// list follows the links of pages, which must be relative.
	list := func(path, field string) (all []string, pages int) {
		t.Helper()
		for path != "" {
			a := node.must(http.StatusOK, "GET", path, nil)
			var body map[string]any
			require.NoError(t, json.Unmarshal([]byte(a.body), &body))
			for _, entry := range body[field].([]any) {
				all = append(all, entry.(string))
			}
			pages++
			path = ""
			if link := a.Header.Get("Link"); link != "" {
				target, _, _ := strings.Cut(strings.TrimPrefix(link, "<"), ">")
				if !strings.HasPrefix(target, "/v2/") || !strings.Contains(link, `rel="next"`) {
					t.Fatalf("Link %q is not relative", link)
				}
				path = target
			}
		}
		return all, pages
	}
	for path, pages := range map[string]int{"/v2/many/tags/tags/list": 1, "/v2/many/tags/tags/list?n=2": 3} {
		if got, n := list(path, "tags"); !slices.Equal(got, want) || n != pages {
			t.Errorf("%s: %v in %d pages, want %v in %d", path, got, n, want, pages)
		}
	}
	if got, _ := list("/v2/many/tags/tags/list?last=v2", "tags"); !slices.Equal(got, want[4:]) {
		t.Errorf("tags after v2: %v", got)
	}
	c.pushImage("another", "v1", "x")
	c.pushImage("another-one", "v1", "x")
	got, pages := list("/v2/_catalog?n=1", "repositories")
	slices.Sort(got) // S3 lists another-one first
	if !slices.Equal(got, []string{"another", "another-one", "many/tags"}) || pages < 3 {
		t.Errorf("catalog %v in %d pages", got, pages)
	}
}

// A client that has its content refused cannot have other content accepted as that.
func TestRefusedUploadsVouchForNothing(t *testing.T) {
	t.Parallel()
	if s3 != nil {
		t.Skip("about file systems")
	}
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	const content, other = "the content", "the attack!"
	d := digest.FromString(content)
	begun := c.begin("a")
	sent := c.must(http.StatusAccepted, "PATCH", begun, strings.NewReader(content)).Header.Get("Location")
	c.must(http.StatusBadRequest, "PUT", sent+"&digest="+digest.FromString(other).String(), nil)
	for _, step := range []struct{ method, path, body string }{
		{"PATCH", begun, other}, {"PUT", sent + "&digest=" + d.String(), ""},
	} {
		a, err := c.send(step.method, step.path, strings.NewReader(step.body))
		if err != nil || a.StatusCode < http.StatusBadRequest {
			t.Errorf("%s: %v, status %d", step.method, err, a.StatusCode)
		}
	}
	c.must(http.StatusNotFound, "GET", "/v2/a/blobs/"+d.String(), nil)
}

// A registry that shuts down closes connections also if a handler replaces the response.
func TestReplacedResponsesCloseTheConnection(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "v1", "layer")
	i.server.draining.Store(true)
	defer i.server.draining.Store(false)
	a := c.must(http.StatusPreconditionFailed, "DELETE", "/v2/a/manifests/"+d.String(), nil, "If-Unmodified-Since",
		"Thu, 01 Jan 1970 00:00:00 GMT")
	if !a.Close {
		t.Errorf("the connection stays open: %v", a.Header)
	}
}
