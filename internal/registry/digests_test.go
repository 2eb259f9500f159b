package registry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var octets = []string{"Content-Type", "application/octet-stream"}

// pushAs uploads content in one piece under a digest of any algorithm.
func (c client) pushAs(repository string, d digest.Digest, content string) answer {
	c.t.Helper()
	return c.must(http.StatusCreated, "PUT", c.begin(repository)+"&digest="+d.String(), strings.NewReader(content),
		octets...)
}

// image512 is an image whose blobs have SHA-512 digests. It pushes the blobs.
func (c client) image512(repository, layer string) map[string]any {
	c.t.Helper()
	push := func(mediaType, content string) map[string]any {
		d := digest.SHA512.FromString(content)
		c.pushAs(repository, d, content)
		return describe(mediaType, d, len(content))
	}
	return map[string]any{
		"config": push(v1.MediaTypeImageConfig, "{}"), "layers": []any{push(v1.MediaTypeImageLayer, layer)},
	}
}

func TestSHA512Blobs(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	begin := func() string { return c.begin("a") }
	for name, push := range map[string]func(d, content string) answer{
		"in one piece": func(d, content string) answer {
			return c.must(http.StatusCreated, "PUT", begin()+"&digest="+d, strings.NewReader(content), octets...)
		},
		"in a stream": func(d, content string) answer {
			sent := c.must(http.StatusAccepted, "PATCH", begin(), io.MultiReader(strings.NewReader(content)), octets...)
			return c.must(http.StatusCreated, "PUT", sent.Header.Get("Location")+"&digest="+d, nil)
		},
		"in chunks": func(d, content string) answer {
			first := c.must(http.StatusAccepted, "PATCH", begin(), strings.NewReader(content[:5]), append(octets, "Content-Range", "0-4")...)
			return c.must(http.StatusCreated, "PUT", first.Header.Get("Location")+"&digest="+d, strings.NewReader(content[5:]), octets...)
		},
		"of a blob that exists under its SHA-256 digest": func(d, content string) answer {
			c.pushBlob("a", content)
			return c.must(http.StatusCreated, "PUT", begin()+"&digest="+d, strings.NewReader(content), octets...)
		},
		"of the empty blob": func(d, _ string) answer {
			return c.must(http.StatusCreated, "PUT", begin()+"&digest="+digest.SHA512.FromString("").String(), nil)
		},
		"mounted": func(d, content string) answer {
			c.pushAs("b", digest.Digest(d), content)
			return c.must(http.StatusCreated, "POST", "/v2/a/blobs/uploads/?mount="+d+"&from=b", nil)
		},
		"mounted from any repository": func(d, content string) answer {
			c.pushAs("b", digest.Digest(d), content)
			return c.must(http.StatusCreated, "POST", "/v2/a/blobs/uploads/?mount="+d, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			content := "content " + name
			if name == "of the empty blob" {
				content = ""
			}
			d := digest.SHA512.FromString(content).String()
			pushed := push(d, content)
			path := "/v2/a/blobs/" + d
			if pushed.Header.Get("Docker-Content-Digest") != d || pushed.Header.Get("Location") != path {
				t.Errorf("headers %v", pushed.Header)
			}
			got := node.must(http.StatusOK, "GET", path, nil)
			head := node.must(http.StatusOK, "HEAD", path, nil)
			for _, a := range []answer{got, head} {
				if a.Header.Get("Docker-Content-Digest") != d || a.Header.Get("ETag") != `"`+d+`"` ||
					a.ContentLength != int64(len(content)) {
					t.Errorf("%s: headers %v, length %d", a.Request.Method, a.Header, a.ContentLength)
				}
			}
			if got.body != content {
				t.Errorf("body %q", got.body)
			}
			node.must(http.StatusNotModified, "GET", path, nil, "If-None-Match", got.Header.Get("ETag"))
			if content != "" {
				part := node.must(http.StatusPartialContent, "GET", path, nil, "Range", "bytes=8-")
				if part.body != content[8:] {
					t.Errorf("part %q", part.body)
				}
			}
			node.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString(content).String(), nil)
			c.must(http.StatusAccepted, "DELETE", path, nil)
			node.must(http.StatusNotFound, "GET", path, nil)
		})
	}
	t.Run("other content is refused", func(t *testing.T) {
		d := digest.SHA512.FromString("one").String()
		got := c.must(http.StatusBadRequest, "PUT", begin()+"&digest="+d, strings.NewReader("two"), octets...)
		if got.code() != "DIGEST_INVALID" {
			t.Errorf("%s", got.body)
		}
		node.must(http.StatusNotFound, "GET", "/v2/a/blobs/"+d, nil)
		c.must(http.StatusAccepted, "POST", "/v2/a/blobs/uploads/?mount="+d, nil)
	})
}

func TestSHA512Manifests(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	d, pushed := c.put("a", "sha512?tag=v1&tag=v2", ociManifest, c.image512("a", "layer"))
	path := "/v2/a/manifests/" + d.String()
	if pushed.Header.Get("Docker-Content-Digest") != d.String() || pushed.Header.Get("Location") != path ||
		!slices.Equal(pushed.Header.Values("OCI-Tag"), []string{"v1", "v2"}) {
		t.Errorf("headers %v", pushed.Header)
	}
	for _, reference := range []string{d.String(), "v1", "v2"} {
		for _, method := range []string{"GET", "HEAD"} {
			got := node.must(http.StatusOK, method, "/v2/a/manifests/"+reference, nil)
			if got.Header.Get("Docker-Content-Digest") != d.String() || got.Header.Get("ETag") != `"`+d.String()+`"` {
				t.Errorf("%s %s: headers %v", method, reference, got.Header)
			}
			node.must(http.StatusNotModified, method, "/v2/a/manifests/"+reference, nil, "If-None-Match", got.Header.Get("ETag"))
			if method == "GET" && digest.SHA512.FromString(got.body) != d {
				t.Errorf("%s: %q", reference, got.body)
			}
		}
	}
	t.Run("in an index, and as a subject", func(t *testing.T) {
		c.pushBlob("a", "{}")
		index, _ := c.put("a", "sha512", ociIndex, indexOf(d))
		signature, pushed := c.put("a", "sha512", ociManifest, artifact(d, "application/x-signature"))
		if pushed.Header.Get("OCI-Subject") != d.String() {
			t.Errorf("headers %v", pushed.Header)
		}
		for _, source := range []string{"scanned", "indexed"} {
			i.server.source.Rebuilt.Store(source == "indexed")
			i.wantLinks(t, d, signature, index)
		}
	})
	t.Run("with another digest", func(t *testing.T) {
		got := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/"+digest.SHA512.FromString("x").String(), strings.NewReader("{}"),
			"Content-Type", ociManifest)
		if got.code() != "DIGEST_INVALID" {
			t.Errorf("%s", got.body)
		}
	})
	t.Run("with a missing layer", func(t *testing.T) {
		content := `{"schemaVersion":2,"mediaType":"` + ociManifest + `","config":{"mediaType":"x","digest":"` +
			digest.SHA512.FromString("missing").String() + `","size":7},"layers":[]}`
		got := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/"+digest.SHA512.FromString(content).String(),
			strings.NewReader(content), "Content-Type", ociManifest)
		if got.code() != "MANIFEST_BLOB_UNKNOWN" {
			t.Errorf("%s", got.body)
		}
	})
	t.Run("deleted by one digest", func(t *testing.T) {
		for name, reference := range map[string]func(digest.Digest, string) digest.Digest{
			"SHA-512": func(d digest.Digest, _ string) digest.Digest { return d },
			"SHA-256": func(_ digest.Digest, content string) digest.Digest { return digest.FromString(content) },
		} {
			d, _ := c.put("b", "sha512?tag=v512", ociManifest, c.image512("b", name))
			content := node.must(http.StatusOK, "GET", "/v2/b/manifests/v512", nil).body
			c.must(http.StatusCreated, "PUT", "/v2/b/manifests/v256", strings.NewReader(content), "Content-Type", ociManifest)
			c.must(http.StatusAccepted, "DELETE", "/v2/b/manifests/"+reference(d, content).String(), nil)
			for _, reference := range []string{"v256", "v512", d.String(), digest.FromString(content).String()} {
				node.must(http.StatusNotFound, "GET", "/v2/b/manifests/"+reference, nil)
			}
		}
	})
}

func TestTagParameters(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	d, manifest := c.pushImage("a", "v0", "layer")
	path := "/v2/a/manifests/" + d.String()
	pushed := c.must(http.StatusCreated, "PUT", path+"?tag=v1&tag=v2", strings.NewReader(manifest), "Content-Type", ociManifest)
	if got := pushed.Header.Values("OCI-Tag"); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("OCI-Tag %v", got)
	}
	for _, tag := range []string{"v1", "v2"} {
		if got := node.must(http.StatusOK, "HEAD", "/v2/a/manifests/"+tag, nil); got.Header.Get("Docker-Content-Digest") != d.String() {
			t.Errorf("%s: headers %v", tag, got.Header)
		}
		if !strings.Contains(i.logs.String(), `"reference":"a:`+tag+`"`) {
			t.Errorf("the audit trail has no push of %s", tag)
		}
	}
	for _, tag := range []string{"", "-v", "a/b", strings.Repeat("x", 129)} {
		got := c.must(http.StatusBadRequest, "PUT", path+"?tag=v3&tag="+tag, strings.NewReader(manifest), "Content-Type", ociManifest)
		if got.code() != "TAG_INVALID" {
			t.Errorf("%q: %s", tag, got.body)
		}
	}
	node.must(http.StatusNotFound, "HEAD", "/v2/a/manifests/v3", nil)
}

func TestManifestThatIsTooLarge(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	got := i.pusher().must(http.StatusRequestEntityTooLarge, "PUT", "/v2/a/manifests/v1",
		strings.NewReader(`{"annotations":{"x":"`+strings.Repeat("x", oci.MaxManifestSize)+`"}}`), "Content-Type", ociManifest)
	if got.code() != "SIZE_INVALID" {
		t.Errorf("%s", got.body)
	}
}

func TestGarbageCollectionKnowsAllDigests(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c, node := i.pusher(), i.node()
	kept, _ := c.put("a", "sha512?tag=kept", ociManifest, c.image512("a", "kept"))
	removed, _ := c.put("a", "sha512?tag=removed", ociManifest, c.image512("a", "removed"))
	mixed := c.image512("a", "mixed")
	mixed["layers"] = append(mixed["layers"].([]any), describe(v1.MediaTypeImageLayer, c.pushBlob("a", "of 256"), 6))
	c.put("a", "mixed", ociManifest, mixed)
	unused := digest.SHA512.FromString("unused")
	c.pushAs("a", unused, "unused")
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/removed", nil)

	result, report := collectNow(t, root, gc.Request{DeleteUntagged: true})
	// The manifest by both digests; it, its layer and the unused blob.
	if result.Manifests != 2 || result.Blobs != 3 || !strings.Contains(report, removed.String()) {
		t.Errorf("%+v\n%s", result, report)
	}
	for _, reference := range []string{"kept", kept.String(), "mixed"} {
		manifest := node.must(http.StatusOK, "GET", "/v2/a/manifests/"+reference, nil)
		needs, err := content.ParseReferences([]byte(manifest.body))
		if err != nil || len(needs.Needs) < 2 {
			t.Fatalf("%v, %v", needs, err)
		}
		for _, d := range needs.Needs {
			node.must(http.StatusOK, "GET", "/v2/a/blobs/"+d.String(), nil)
		}
	}
	for _, path := range []string{
		"/v2/a/manifests/" + removed.String(), "/v2/a/blobs/" + unused.String(),
		"/v2/a/blobs/" + digest.SHA512.FromString("removed").String(),
	} {
		node.must(http.StatusNotFound, "GET", path, nil)
	}
	if _, err := os.Stat(root + storage.DigestLinkPath(unused)); !os.IsNotExist(err) {
		t.Errorf("the digest's link: %v", err)
	}
	c.must(http.StatusAccepted, "POST", "/v2/b/blobs/uploads/?mount="+unused.String(), nil)
	if result, report := collectNow(t, root, gc.Request{DeleteUntagged: true}); result != (gc.Result{}) {
		t.Errorf("another collection: %+v\n%s", result, report)
	}
}

// Clients that were told that a blob exists under its SHA-512 digest rely on it.
func TestGarbageCollectionKeepsSHA512BlobsInUse(t *testing.T) {
	t.Parallel()
	d := digest.SHA512.FromString("layer")
	for name, rely := range map[string]func(c client){
		"after HEAD": func(c client) { c.must(http.StatusOK, "HEAD", "/v2/a/blobs/"+d.String(), nil) },
		"after it was mounted": func(c client) {
			c.must(http.StatusCreated, "POST", "/v2/b/blobs/uploads/?mount="+d.String(), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca, root := newTestCA(t), t.TempDir()
			first := start(t, ca, root)
			first.pusher().pushAs("a", d, "layer")
			require.NoError(t, first.stop())
			i := startQuick(t, ca, root)
			rely(i.pusher())
			age(t, root, 2*time.Hour)
			events := i.pusher().collect(gc.Request{Grace: time.Hour})
			if last := events[len(events)-1].Result; last == nil || last.Blobs != 0 {
				t.Errorf("the blob is not in use: %+v", last)
			}
		})
	}
}

// Operators can serve the volume with distribution's registry.
func TestDistributionReadsTheStorage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	d, manifest := c.pushImage("a", "v1", "layer")
	signature, _ := c.put("a", "", ociManifest, artifact(d, "application/x-signature"))
	layer := digest.FromString("layer").String()
	c.must(http.StatusCreated, "POST", "/v2/mounted/blobs/uploads/?mount="+layer, nil)
	d512, _ := c.put("b/c", "sha512?tag=v1", ociManifest, c.image512("b/c", "layer of 512"))
	require.NoError(t, i.stop())
	config := require.Value(configuration.Parse(strings.NewReader("version: 0.1\n" + storageAt(root))))(t)
	RouteLogs(slog.New(slog.DiscardHandler))
	server := httptest.NewServer(handlers.NewApp(context.Background(), config))
	t.Cleanup(server.Close)
	plain := client{Client: server.Client(), t: t, base: server.URL}
	accept := []string{"Accept", ociManifest}
	for path, want := range map[string]string{
		"/v2/a/manifests/v1":            manifest,
		"/v2/a/manifests/" + d.String(): manifest,
		"/v2/a/blobs/" + layer:          "layer",
		"/v2/mounted/blobs/" + layer:    "layer",
		"/v2/a/tags/list":               `{"name":"a","tags":["v1"]}` + "\n",
		"/v2/_catalog":                  `{"repositories":["a","b/c"]}` + "\n",
	} {
		if got := plain.must(http.StatusOK, "GET", path, nil, accept...); got.body != want {
			t.Errorf("%s: %q, want %q", path, got.body, want)
		}
	}
	plain.must(http.StatusOK, "GET", "/v2/a/manifests/"+signature.String(), nil, accept...)
	// It also finds content by its other digest.
	got := plain.must(http.StatusOK, "GET", "/v2/b/c/manifests/v1", nil, accept...)
	if digest.SHA512.FromString(got.body) != d512 {
		t.Errorf("%q", got.body)
	}
	plain.must(http.StatusOK, "GET", "/v2/b/c/blobs/"+digest.SHA512.FromString("layer of 512").String(), nil)
}
