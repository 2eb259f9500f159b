package registry

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// overwrite replaces a file in the storage.
func (i *instance) overwrite(path, content string) {
	i.t.Helper()
	require.NoError(i.t, i.server.source.Driver.PutContent(context.Background(), path, []byte(content)))
}

func TestDamagedBlobsDoNotExist(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"empty": "", "cut off": "lay", "too long": "layer and more", "missing": "", "without a directory": "",
	} {
		t.Run(name, func(t *testing.T) {
			i := start(t, newTestCA(t), t.TempDir())
			c := i.pusher()
			d, manifest := c.pushImage("a", "v1", "layer")
			layer := digest.FromString("layer")
			i.overwrite(storage.BlobPath(layer), content)
			gone := map[string]string{"missing": storage.BlobPath(layer), "without a directory": path.Dir(storage.BlobPath(layer))}
			if name := gone[name]; name != "" {
				require.NoError(t, i.server.source.Driver.Delete(t.Context(), name))
			}

			blob := "/v2/a/blobs/" + layer.String()
			for who, client := range map[string]client{"a pusher": c, "a node": i.node()} {
				for _, method := range []string{"HEAD", "GET"} {
					if a := client.must(http.StatusNotFound, method, blob, nil); method == "GET" && a.code() != "BLOB_UNKNOWN" {
						t.Errorf("%s: %s", who, a.body)
					}
				}
			}
			c.must(http.StatusAccepted, "POST", "/v2/b/blobs/uploads/?mount="+layer.String(), nil)
			c.must(http.StatusAccepted, "POST", "/v2/b/blobs/uploads/?mount="+layer.String()+"&from=a", nil)
			query := strings.NewReader(fmt.Sprintf(`{"digests":[%q]}`, layer))
			if a := c.must(http.StatusOK, "POST", space.Path, query); !strings.Contains(a.body, layer.String()) {
				t.Errorf("missing are %s", a.body)
			}
			for _, reference := range []string{"v1", d.String()} {
				a := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/"+reference, strings.NewReader(manifest),
					"Content-Type", ociManifest)
				if a.code() != "MANIFEST_BLOB_UNKNOWN" || !strings.Contains(a.body, layer.String()) {
					t.Errorf("%s", a.body)
				}
			}

			c.pushBlob("b", "layer")
			if a := i.node().must(http.StatusOK, "GET", blob, nil); a.body != "layer" {
				t.Errorf("the layer is %q", a.body)
			}
			c.pushManifest("a", "v1", manifest)
		})
	}
}

// Only clients that may push are told that an incomplete image does not exist. Nodes would need more requests for each
// pull, and learn it from the blob.
func TestIncompleteManifestsDoNotExistForPushers(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "v1", "layer")
	index, _ := c.pushIndex("a", "multi", d)
	local := i.loopback().as(pushUser, pushPassword)
	references := []string{"v1", "multi", d.String(), index.String()}
	head := func(want int, clients ...client) {
		t.Helper()
		for _, client := range clients {
			for _, reference := range references {
				client.must(want, "HEAD", "/v2/a/manifests/"+reference, nil)
			}
		}
	}
	head(http.StatusOK, c, local, i.node())
	i.overwrite(storage.BlobPath(digest.FromString("layer")), "lay")
	head(http.StatusNotFound, c, local, i.plain().as(pushUser, pushPassword))
	head(http.StatusOK, i.node(), i.plain().as(pullUser, pullPassword))
	for _, reference := range references {
		c.must(http.StatusOK, "GET", "/v2/a/manifests/"+reference, nil)
	}
	c.pushBlob("a", "layer")
	head(http.StatusOK, c, local)
}

func TestDamagedManifests(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"empty": "", "cut off": `{"schemaVersion":2,`,
		"another": `{"schemaVersion":2,"mediaType":"` + ociManifest + `","config":{},"layers":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			i := start(t, newTestCA(t), t.TempDir())
			c := i.pusher()
			d, manifest := c.pushImage("a", "v1", "layer")
			c.pushIndex("a", "multi", d)
			i.overwrite(storage.BlobPath(d), content)
			for _, method := range []string{"HEAD", "GET"} {
				for _, reference := range []string{"v1", d.String()} {
					i.node().must(http.StatusNotFound, method, "/v2/a/manifests/"+reference, nil)
					c.must(http.StatusNotFound, method, "/v2/a/manifests/"+reference, nil)
				}
			}
			c.must(http.StatusNotFound, "HEAD", "/v2/a/manifests/multi", nil)
			c.pushManifest("a", d.String(), manifest)
			if a := i.node().must(http.StatusOK, "GET", "/v2/a/manifests/v1", nil); a.body != manifest {
				t.Errorf("the manifest is %s", a.body)
			}
			c.must(http.StatusOK, "HEAD", "/v2/a/manifests/multi", nil)
		})
	}
}

// A manifest with a wrong size is refused: nodes could not pull the image.
func TestWrongSizesAreRefused(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	_, manifest := c.pushImage("a", "v1", "layer")
	wrong := strings.Replace(manifest, `"size":5`, `"size":6`, 1)
	for _, recorded := range []bool{true, false} {
		if !recorded {
			require.NoError(t, i.server.source.Driver.Delete(t.Context(), storage.SizePath(digest.FromString("layer"))))
		}
		a := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/v2", strings.NewReader(wrong), "Content-Type", ociManifest)
		if a.code() != "MANIFEST_INVALID" || !strings.Contains(a.body, "has 5 bytes, and the manifest says 6") {
			t.Errorf("%s", a.body)
		}
	}
	path := "/v2/a/blobs/" + digest.FromString("layer").String()
	if a := i.node().must(http.StatusOK, "GET", path, nil); a.body != "layer" {
		t.Errorf("the layer is %q", a.body)
	}
}

// A push while an intact blob is read replaces it without harm.
func TestReplacingWhileReading(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	content := random(1 << 20)
	d := c.pushBlob("a", content)
	done := make(chan error)
	go func() {
		defer close(done)
		for range 30 {
			a, err := node.send("GET", "/v2/a/blobs/"+d.String(), nil)
			if err != nil || a.StatusCode != http.StatusOK || a.body != content {
				done <- fmt.Errorf("status %d, %d bytes, %w", a.StatusCode, len(a.body), err)
				return
			}
		}
	}()
	for range 10 {
		c.pushBlob("b", content)
	}
	for err := range done {
		t.Error(err)
	}
}

// Damaged links and tags are named by every command, and prevent none. What a damaged tag may refer to is kept.
func TestDamagedLinksPreventNothing(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	root := t.TempDir()
	i := startQuick(t, newTestCA(t), root)
	c := i.pusher()
	kept, _ := c.pushImage("a", "v1", "layer")
	untagged, _ := c.pushImage("b", "v1", "old layer")
	c.pushImage("b", "v1", "new layer")
	layer := digest.SHA512.FromString("another layer")
	c.pushAs("a", layer, "another layer")
	manifest := encode(t, ociManifest, imageOf("layer"))
	named := digest.SHA512.FromString(manifest)
	c.must(http.StatusCreated, "PUT", "/v2/a/manifests/"+named.String(), strings.NewReader(manifest), "Content-Type",
		ociManifest)
	names := []string{storage.RevisionsDir("a") + "/sha256/short/link", storage.RevisionsDir("a") + "/md5/0a/link",
		storage.TagDir("a", "v1") + "/index/sha256/short/link", storage.RepositoriesPath + "/a/_layers/sha512/0a/link",
		storage.RepositoriesPath + "/a/_referrers/sha256/0a/sha256/0b/descriptor.json",
		storage.BlobsPath + "/sha256/sh/short/data", storage.BlobsPath + "/sha512/sh/short/link"}
	for _, path := range append(names, storage.TagPath("a", "v1"), storage.LayerPath("a", layer),
		storage.DigestLinkPath(layer), storage.RevisionPath("a", named)) {
		i.overwrite(path, "sha512:damaged")
	}
	events := c.collect(gc.Request{DeleteUntagged: true})
	collected := ""
	for _, e := range events {
		collected += e.Problem + "\n"
	}
	if last := events[len(events)-1]; last.Result == nil || last.Result.Manifests != 1 {
		t.Errorf("the collection ends with %+v", last)
	}
	body := c.must(http.StatusOK, "GET", catalog.Path, nil).body
	mentions(t, body, `"end"`, "a:v1 is damaged", "a@"+named.String()+" is damaged", layer.String()+" is damaged",
		"it may have a tag")
	for _, name := range names {
		mentions(t, body, name+" is damaged")
		mentions(t, collected, name+" is damaged")
	}
	c.must(http.StatusOK, "GET", "/v2/a/manifests/"+kept.String(), nil, "Accept", ociManifest)
	c.must(http.StatusNotFound, "GET", "/v2/b/manifests/"+untagged.String(), nil, "Accept", ociManifest)
	problems, _ := c.scrub()
	mentions(t, strings.Join(problems, "\n"), "a:v1", named.String())
}
