package registry

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// Tests of the OCI distribution specification, section by section, through the front and over TLS.

func TestConformancePull(t *testing.T) {
	i := start(t, newTestCA(t), t.TempDir())
	manifestDigest, manifest := i.pusher().pushImage("pull/me", "v1", "the layer")
	layer, node := digest.FromString("the layer").String(), i.node()

	for name, tt := range map[string]struct {
		path, want, digest string
	}{
		"a manifest by tag":    {"/v2/pull/me/manifests/v1", manifest, manifestDigest.String()},
		"a manifest by digest": {"/v2/pull/me/manifests/" + manifestDigest.String(), manifest, manifestDigest.String()},
		"a blob":               {"/v2/pull/me/blobs/" + layer, "the layer", layer},
	} {
		t.Run(name, func(t *testing.T) {
			got := node.must(http.StatusOK, "GET", tt.path, nil)
			if got.body != tt.want {
				t.Errorf("body %q, want %q", got.body, tt.want)
			}
			head := node.must(http.StatusOK, "HEAD", tt.path, nil)
			for _, a := range []answer{got, head} {
				if a.Header.Get("Docker-Content-Digest") != tt.digest || a.Header.Get("ETag") != `"`+tt.digest+`"` ||
					a.ContentLength != int64(len(tt.want)) || a.Header.Get("Content-Type") == "" {
					t.Errorf("%s: headers %v, length %d", a.Request.Method, a.Header, a.ContentLength)
				}
			}
			if head.body != "" {
				t.Errorf("HEAD has a body: %q", head.body)
			}
			node.must(http.StatusNotModified, "GET", tt.path, nil, "If-None-Match", got.Header.Get("ETag"))
		})
	}
	t.Run("missing content returns 404 with an error code", func(t *testing.T) {
		for path, code := range map[string]string{
			"/v2/pull/me/manifests/v2":                                "MANIFEST_UNKNOWN",
			"/v2/pull/me/manifests/sha256:" + strings.Repeat("0", 64): "MANIFEST_UNKNOWN",
			"/v2/pull/me/blobs/sha256:" + strings.Repeat("0", 64):     "BLOB_UNKNOWN",
			"/v2/another/blobs/" + layer:                              "BLOB_UNKNOWN",
			"/v2/nothing/here/tags/list":                              "NAME_UNKNOWN",
		} {
			if got := node.must(http.StatusNotFound, "GET", path, nil).code(); got != code {
				t.Errorf("%s: code %q, want %q", path, got, code)
			}
			if !strings.HasSuffix(path, "/tags/list") {
				node.must(http.StatusNotFound, "HEAD", path, nil)
			}
		}
	})
	t.Run("any media type, whatever the header Accept", func(t *testing.T) {
		for _, accept := range []string{"", "*/*", "application/*", "text/html, */*;q=0.8"} {
			if got := node.must(http.StatusOK, "GET", "/v2/pull/me/manifests/v1", nil, "Accept", accept); got.body != manifest {
				t.Errorf("Accept %q: body %q", accept, got.body)
			}
		}
	})
	t.Run("a part of a blob", func(t *testing.T) {
		path := "/v2/pull/me/blobs/" + layer
		for header, want := range map[string]string{
			"bytes=4-": "layer", "bytes=0-2": "the", "bytes=-2": "er", "bytes=4-100": "layer",
		} {
			got := node.must(http.StatusPartialContent, "GET", path, nil, "Range", header)
			if got.body != want || !strings.HasSuffix(got.Header.Get("Content-Range"), "/9") {
				t.Errorf("%s: %q, Content-Range %q", header, got.body, got.Header.Get("Content-Range"))
			}
		}
		node.must(http.StatusRequestedRangeNotSatisfiable, "GET", path, nil, "Range", "bytes=9-")
	})
	t.Run("the base endpoint responds", func(t *testing.T) {
		if got := node.must(http.StatusOK, "GET", "/v2/", nil); got.Header.Get(
			"Docker-Distribution-Api-Version") != "registry/2.0" {
			t.Errorf("headers %v", got.Header)
		}
	})
	t.Run("only HTTP/1.1 is supported", func(t *testing.T) {
		c := i.node()
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
		if got := c.must(http.StatusOK, "GET", "/v2/", nil); got.Proto != "HTTP/1.1" {
			t.Errorf("protocol is %s", got.Proto)
		}
	})
	t.Run("other paths are not served", func(t *testing.T) {
		for _, path := range []string{"/", "/metrics", "/healthz", "/debug/health", "/debug/pprof/", "/debug/vars"} {
			node.must(http.StatusNotFound, "GET", path, nil)
		}
	})
}

func TestConformancePush(t *testing.T) {
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	octets := []string{"Content-Type", "application/octet-stream"}
	// location requires a URL without a host: the registry does not know its external host.
	location := func(a answer) string {
		t.Helper()
		got := a.Header.Get("Location")
		if parsed, err := url.Parse(got); err != nil || parsed.IsAbs() || parsed.Host != "" ||
			!strings.HasPrefix(got, "/v2/") {
			t.Fatalf("Location %q is not a relative URL", got)
		}
		return got
	}
	begin := func() string {
		t.Helper()
		// Forwarding headers must not change where clients are sent.
		return location(c.must(http.StatusAccepted, "POST", "/v2/push/me/blobs/uploads/", nil,
			"X-Forwarded-Proto", "http", "X-Forwarded-Host", "elsewhere.example", "Forwarded",
			"host=elsewhere.example;proto=http"))
	}
	finish := func(to, content string, rest io.Reader) {
		t.Helper()
		d := digest.FromString(content).String()
		done := c.must(http.StatusCreated, "PUT", to+"&digest="+d, rest, octets...)
		if got := node.must(http.StatusOK, "GET", location(done), nil); got.body != content {
			t.Errorf("the blob is %q, want %q", got.body, content)
		}
	}

	t.Run("in one piece", func(t *testing.T) {
		finish(begin(), "one piece", strings.NewReader("one piece"))
	})
	t.Run("in a single request", func(t *testing.T) {
		for _, d := range []digest.Digest{digest.FromString("single"), digest.SHA512.FromString("single")} {
			path := "/v2/push/me/blobs/uploads/?digest=" + d.String()
			done := c.must(http.StatusCreated, "POST", path, strings.NewReader("single"), octets...)
			if got := node.must(http.StatusOK, "GET", location(done), nil); got.body != "single" ||
				done.Header.Get("Docker-Content-Digest") != d.String() {
				t.Errorf("%q, headers %v", got.body, done.Header)
			}
			got := c.must(http.StatusBadRequest, "POST", path, strings.NewReader("other"), octets...)
			if got.code() != "DIGEST_INVALID" || got.Header.Get("Location") != "" {
				t.Errorf("%s, headers %v", got.body, got.Header)
			}
		}
	})
	t.Run("in one piece of unknown length", func(t *testing.T) {
		finish(begin(), "a stream", io.MultiReader(strings.NewReader("a stream")))
	})
	t.Run("in one stream", func(t *testing.T) {
		streamed := c.must(http.StatusAccepted, "PATCH", begin(), io.MultiReader(strings.NewReader("streamed")), octets...)
		finish(location(streamed), "streamed", nil)
	})
	t.Run("in chunks", func(t *testing.T) {
		first := c.must(http.StatusAccepted, "PATCH", begin(), strings.NewReader("first"),
			append(octets, "Content-Range", "0-4")...)
		if got := first.Header.Get("Range"); got != "0-4" {
			t.Errorf("Range %q after five bytes", got)
		}
		c.must(http.StatusRequestedRangeNotSatisfiable, "PATCH", location(first), strings.NewReader("lost"),
			append(octets, "Content-Range", "9-12")...)
		status := c.must(http.StatusNoContent, "GET", location(first), nil)
		if got := status.Header.Get("Range"); got != "0-4" {
			t.Errorf("Range %q of an upload to continue", got)
		}
		second := c.must(http.StatusAccepted, "PATCH", location(status), strings.NewReader("second"),
			append(octets, "Content-Range", "5-10")...)
		finish(location(second), "firstsecondlast", strings.NewReader("last"))
	})
	t.Run("from another repository", func(t *testing.T) {
		d := c.pushBlob("first", "shared").String()
		mounted := c.must(http.StatusCreated, "POST", "/v2/second/blobs/uploads/?mount="+d+"&from=first", nil)
		if got := node.must(http.StatusOK, "GET", location(mounted), nil); got.body != "shared" {
			t.Errorf("the mounted blob is %q", got.body)
		}
		// If the blob cannot be mounted, an upload starts.
		location(c.must(http.StatusAccepted, "POST", "/v2/second/blobs/uploads/?mount=sha256:"+strings.Repeat("0", 64)+
			"&from=first", nil))
	})
	t.Run("canceled", func(t *testing.T) {
		upload := begin()
		c.must(http.StatusNoContent, "DELETE", upload, nil)
		c.must(http.StatusNotFound, "GET", upload, nil)
	})
	t.Run("with a wrong digest", func(t *testing.T) {
		a := c.must(http.StatusBadRequest, "PUT", begin()+"&digest=sha256:"+strings.Repeat("0", 64), strings.NewReader("x"),
			octets...)
		if a.code() != "DIGEST_INVALID" {
			t.Errorf("code %q", a.code())
		}
	})
	t.Run("with the state of another upload", func(t *testing.T) {
		one, _, _ := strings.Cut(begin(), "?")
		other, state, _ := strings.Cut(begin(), "?")
		if one == other {
			t.Fatal("two uploads have one URL")
		}
		c.must(http.StatusNotFound, "PATCH", one+"?"+state, strings.NewReader("x"), octets...)
	})
	t.Run("a manifest whose blobs are missing", func(t *testing.T) {
		manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
			"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":2},"layers":[]}`,
			strings.Repeat("0", 64))
		a := c.must(http.StatusBadRequest, "PUT", "/v2/push/me/manifests/broken", strings.NewReader(manifest), "Content-Type",
			"application/vnd.oci.image.manifest.v1+json")
		if a.code() != "MANIFEST_BLOB_UNKNOWN" {
			t.Errorf("code %q", a.code())
		}
	})
	t.Run("a manifest", func(t *testing.T) {
		d, manifest := c.pushImage("push/me", "again", "x")
		a := c.must(http.StatusCreated, "PUT", "/v2/push/me/manifests/again", strings.NewReader(manifest), "Content-Type",
			"application/vnd.oci.image.manifest.v1+json")
		if !strings.HasSuffix(location(a), "/manifests/"+d.String()) || a.Header.Get("Docker-Content-Digest") != d.String() {
			t.Errorf("headers %v", a.Header)
		}
	})
}

func TestConformanceDiscovery(t *testing.T) {
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
			if err := json.Unmarshal([]byte(a.body), &body); err != nil {
				t.Fatal(err)
			}
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

func TestConformanceDelete(t *testing.T) {
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	d, _ := c.pushImage("delete/me", "v1", "layer")
	blob := "/v2/delete/me/blobs/" + digest.FromString("layer").String()

	c.must(http.StatusAccepted, "DELETE", "/v2/delete/me/manifests/v1", nil)
	node.must(http.StatusNotFound, "GET", "/v2/delete/me/manifests/v1", nil)
	node.must(http.StatusOK, "GET", "/v2/delete/me/manifests/"+d.String(), nil)
	c.must(http.StatusAccepted, "DELETE", "/v2/delete/me/manifests/"+d.String(), nil)
	node.must(http.StatusNotFound, "GET", "/v2/delete/me/manifests/"+d.String(), nil)
	node.must(http.StatusOK, "GET", blob, nil)
	c.must(http.StatusAccepted, "DELETE", blob, nil)
	node.must(http.StatusNotFound, "GET", blob, nil)
	c.must(http.StatusNotFound, "DELETE", blob, nil)
	// What was deleted can be pushed again.
	c.pushImage("delete/me", "v1", "layer")
	node.must(http.StatusOK, "GET", "/v2/delete/me/manifests/v1", nil)
}
