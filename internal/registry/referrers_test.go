package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// put pushes a manifest by digest, with the given algorithm, or by a tag.
func (c client) put(repository, reference, mediaType string, manifest map[string]any) (digest.Digest, answer) {
	c.t.Helper()
	content := encode(c.t, mediaType, manifest)
	d := digest.FromString(content)
	path, query, _ := strings.Cut(reference, "?")
	switch path {
	case "":
		path = d.String()
	case "sha512":
		d = digest.SHA512.FromString(content)
		path = d.String()
	}
	return d, c.must(http.StatusCreated, "PUT", "/v2/"+repository+"/manifests/"+path+"?"+query,
		strings.NewReader(content), "Content-Type", mediaType)
}

// artifact is a manifest that refers to a subject. The repository must have the blob {}.
func artifact(subject digest.Digest, artifactType string, more ...string) map[string]any {
	empty := map[string]any{"mediaType": v1.MediaTypeEmptyJSON, "digest": digest.FromString("{}"), "size": 2}
	annotations := map[string]any{}
	for i := 0; i < len(more); i += 2 {
		annotations[more[i]] = more[i+1]
	}
	return map[string]any{
		"artifactType": artifactType, "config": empty, "layers": []any{empty}, "annotations": annotations,
		"subject": map[string]any{"mediaType": ociManifest, "digest": subject, "size": 1},
	}
}

// referrers lists all pages.
func (c client) referrers(path string) (found []v1.Descriptor, pages int) {
	c.t.Helper()
	for path != "" {
		a := c.must(http.StatusOK, "GET", path, nil)
		var index v1.Index
		if err := json.Unmarshal([]byte(a.body), &index); err != nil || a.Header.Get("Content-Type") != ociIndex ||
			index.MediaType != ociIndex || index.SchemaVersion != 2 || index.Manifests == nil {
			c.t.Fatalf("%s: %v: %s", path, err, a.body)
		}
		if strings.Contains(path, "artifactType=") != (a.Header.Get("OCI-Filters-Applied") == "artifactType") {
			c.t.Errorf("%s: headers %v", path, a.Header)
		}
		if head := c.must(http.StatusOK, "HEAD", path, nil); head.ContentLength != int64(len(a.body)) {
			c.t.Errorf("HEAD %s: length %d, want %d", path, head.ContentLength, len(a.body))
		}
		found, pages, path = append(found, index.Manifests...), pages+1, ""
		if link := a.Header.Get("Link"); link != "" {
			path, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
		}
	}
	return found, pages
}

func digestsOf(found []v1.Descriptor) (digests []digest.Digest) {
	for _, d := range found {
		digests = append(digests, d.Digest)
	}
	slices.Sort(digests)
	return digests
}

// wantLinks fails the test unless an image of repository a has just this referrer, and, once all manifests have back
// links, is in just this index.
func (i *instance) wantLinks(t *testing.T, image, referrer, index digest.Digest) {
	t.Helper()
	found, _ := i.node().referrers("/v2/a/referrers/" + image.String())
	if got := digestsOf(found); !slices.Equal(got, []digest.Digest{referrer}) {
		t.Errorf("referrers %v, want %v", got, referrer)
	}
	if !i.server.source.Rebuilt.Load() {
		return
	}
	stored := content.Inventory{Driver: i.server.source.Driver}
	err := stored.ReadManifests(t.Context(), "a")
	got := stored.Indexes()[content.RepositoryDigest{Repository: "a", Digest: image}]
	if err != nil || !slices.Equal(got, []content.RepositoryDigest{{Repository: "a", Digest: index}}) {
		t.Errorf("indexes %s, %v, want %s", got, err, index)
	}
}

// The official suite has indexes, missing subjects, and the types of configurations.
func TestReferrers(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	subject, _ := c.pushImage("a", "v1", "layer")
	list := "/v2/a/referrers/" + subject.String()
	want := func(path string, digests ...digest.Digest) []v1.Descriptor {
		t.Helper()
		found, _ := node.referrers(path)
		slices.Sort(digests)
		if !slices.Equal(digestsOf(found), digests) {
			t.Errorf("%s: %v, want %v", path, digestsOf(found), digests)
		}
		return found
	}
	want(list)
	want("/v2/nothing/here/referrers/" + subject.String())

	signature, pushed := c.put("a", "", ociManifest, artifact(subject, "application/x-signature", "key", "value"))
	if got := pushed.Header.Get("OCI-Subject"); got != subject.String() {
		t.Errorf("OCI-Subject %q", got)
	}
	found := want(list, signature)[0]
	if found.MediaType != ociManifest || found.ArtifactType != "application/x-signature" || found.Size == 0 ||
		!maps.Equal(found.Annotations, map[string]string{"key": "value"}) {
		t.Errorf("%+v", found)
	}
	t.Run("other repositories and subjects", func(t *testing.T) {
		want("/v2/b/referrers/" + subject.String())
		want("/v2/a/referrers/" + signature.String())
		of, _ := c.put("a", "", ociManifest, artifact(signature, "application/x-signature"))
		want("/v2/a/referrers/"+signature.String(), of)
		want(list, signature)
	})
	t.Run("a deleted referrer", func(t *testing.T) {
		d, _ := c.put("a", "temporary", ociManifest, artifact(subject, "application/x-sbom"))
		want(list, signature, d)
		c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+d.String(), nil)
		want(list, signature)
		node.must(http.StatusNotFound, "GET", "/v2/a/manifests/temporary", nil)
	})
	t.Run("requests that are refused", func(t *testing.T) {
		if got := node.must(http.StatusBadRequest, "GET", "/v2/a/referrers/latest", nil).code(); got != "DIGEST_INVALID" {
			t.Errorf("code %s", got)
		}
		for _, n := range []string{"0", "-1", "many"} {
			got := node.must(http.StatusBadRequest, "GET", list+"?n="+n, nil).code()
			if got != "PAGINATION_NUMBER_INVALID" {
				t.Errorf("n=%s: code %s", n, got)
			}
		}
		manifest := `{"schemaVersion":2,"mediaType":"` + ociManifest + `","subject":{"digest":"x"}}`
		got := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/bad", strings.NewReader(manifest), "Content-Type", ociManifest)
		if got.code() != "MANIFEST_INVALID" {
			t.Errorf("%s", got.body)
		}
	})
}

func TestReferrersHavePages(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, node := i.pusher(), i.node()
	subject, _ := c.pushImage("a", "v1", "layer")
	var all, odd []digest.Digest
	for n := range 7 {
		d, _ := c.put("a", "", ociManifest, artifact(subject, fmt.Sprintf("application/x-%d", n%2), "n", fmt.Sprint(n)))
		if all = append(all, d); n%2 == 1 {
			odd = append(odd, d)
		}
	}
	// Two of these do not fit into 4 MiB.
	for n := range 2 {
		d, _ := c.put("a", "", ociManifest, artifact(subject, "large", "n", fmt.Sprint(n), "x", strings.Repeat("x", 3<<20)))
		all = append(all, d)
	}
	slices.Sort(all)
	slices.Sort(odd)
	list := "/v2/a/referrers/" + subject.String()
	for path, want := range map[string]struct {
		pages   int
		digests []digest.Digest
	}{
		"":                                  {2, all},
		"?n=1":                              {9, all},
		"?artifactType=application/x-1":     {1, odd},
		"?artifactType=application/x-1&n=2": {2, odd},
		"?artifactType=application/x-none":  {1, nil},
		"?artifactType=application/x-1&last=" + odd[0].String(): {1, odd[1:]},
		"?artifactType=large":                     {2, nil},
		"?n=1000000&artifactType=application/x-1": {1, odd},
	} {
		found, pages := node.referrers(list + path)
		got := digestsOf(found)
		if path == "?artifactType=large" {
			want.digests = got
			if len(got) != 2 {
				t.Errorf("large: %v", got)
			}
		}
		if !slices.Equal(got, want.digests) || pages != want.pages {
			t.Errorf("%q: %v in %d pages, want %v in %d", path, got, pages, want.digests, want.pages)
		}
	}
}

// removeBackLinksOf makes a storage what distribution leaves: without back links, and without the record of a rebuild.
func removeBackLinksOf(t *testing.T, root string) {
	t.Helper()
	links, err := filepath.Glob(root + storage.RepositoriesPath + "/*/_[ri]*")
	if err != nil || len(links) == 0 {
		t.Fatalf("no back links: %v", err)
	}
	for _, path := range append(links, root+"/docker/registry/v2/zarf-registry/back-links.json") {
		require.NoError(t, os.RemoveAll(path))
	}
}

func TestReferrersOfDistribution(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	earlier := start(t, newTestCA(t), root)
	c := earlier.pusher()
	subject, _ := c.pushImage("a", "v1", "layer")
	signature, _ := c.put("a", "", ociManifest, artifact(subject, "application/x-signature"))
	// Clients of a registry without the referrers API list them in an index with this tag.
	c.put("a", strings.Replace(subject.String(), ":", "-", 1), ociIndex, map[string]any{
		"manifests": []any{map[string]any{"mediaType": ociManifest, "digest": signature, "size": 1}},
	})
	index, _ := c.pushIndex("a", "multi", subject)
	require.NoError(t, earlier.stop())
	removeBackLinksOf(t, root)

	check := func(t *testing.T, i *instance) {
		t.Helper()
		i.wantLinks(t, subject, signature, index)
	}
	t.Run("are found by a scan", func(t *testing.T) {
		readOnly := open(t, newTestCA(t), root, func(o *Options) {
			o.Config.Storage["maintenance"]["readonly"] = map[any]any{"enabled": true}
		})
		readOnly.run()
		check(t, readOnly)
		if readOnly.server.source.Rebuilt.Load() {
			t.Error("a read-only registry writes back links")
		}
	})
	t.Run("are indexed at the start", func(t *testing.T) {
		i := start(t, newTestCA(t), root)
		eventually(t, "back links are rebuilt", i.server.source.Rebuilt.Load)
		check(t, i)
		if links, _ := filepath.Glob(root + storage.RepositoriesPath + "/a/_referrers/*/*/*/*/descriptor.json"); len(links) != 1 {
			t.Errorf("back links %v", links)
		}
	})
	t.Run("are indexed again after distribution has served the storage", func(t *testing.T) {
		dir := root + storage.RepositoriesPath + "/a/_referrers"
		require.NoError(t, os.RemoveAll(dir))
		// A rebuild reads what was written since the last one.
		revision := root + storage.RevisionPath("a", signature)
		require.NoError(t, os.Chtimes(revision, time.Time{}, time.Now().Add(time.Hour)))
		i := start(t, newTestCA(t), root)
		eventually(t, "back links are rebuilt", i.server.source.Rebuilt.Load)
		check(t, i)
	})
	t.Run("only what changed is read", func(t *testing.T) {
		i := start(t, newTestCA(t), root)
		eventually(t, "back links are rebuilt", i.server.source.Rebuilt.Load)
		old := time.Now().Add(-time.Hour)
		require.NoError(t, os.Chtimes(root+storage.RevisionPath("a", signature), old, old))
		require.NoError(t, os.RemoveAll(root+storage.RepositoriesPath+"/a/_referrers"))
		require.NoError(t, i.server.source.Rebuild(t.Context()))
		if links, _ := filepath.Glob(root + storage.RepositoriesPath + "/a/_referrers/*"); len(links) != 0 {
			t.Errorf("an old manifest was read again: %v", links)
		}
	})
}

func TestGarbageCollectionRemovesBackLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	subject, _ := c.pushImage("a", "v1", "layer")
	signature, _ := c.put("a", "", ociManifest, artifact(subject, "application/x-signature"))
	orphan, _ := c.put("a", "", ociManifest, artifact(digest.FromString("missing"), "application/x-signature"))
	// A crash after a manifest was removed and before its back link was.
	dangling := root + storage.RepositoriesPath + "/a/_referrers/" + storage.DigestPath(subject) + "/" + storage.DigestPath(digest.FromString("gone"))
	require.NoError(t, os.MkdirAll(dangling, 0o700))
	writeFile(t, dangling+"/descriptor.json", []byte("{}"))

	if result, report := collectNow(t, root, gc.Request{DeleteUntagged: true}); result.Manifests != 1 ||
		!strings.Contains(report, orphan.String()) {
		t.Errorf("%+v\n%s", result, report)
	}
	found, _ := i.node().referrers("/v2/a/referrers/" + subject.String())
	if got := digestsOf(found); !slices.Equal(got, []digest.Digest{signature}) {
		t.Errorf("referrers %v", got)
	}
	links, err := filepath.Glob(root + storage.RepositoriesPath + "/a/_referrers/*/*/*/*/descriptor.json")
	if err != nil || len(links) != 1 {
		t.Errorf("back links %v, %v", links, err)
	}
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/v1", nil)
	if result, report := collectNow(t, root, gc.Request{DeleteUntagged: true}); result.Manifests != 2 {
		t.Errorf("%+v\n%s", result, report)
	}
	if links, _ = filepath.Glob(root + storage.RepositoriesPath + "/a/_referrers/*/*/*/*/descriptor.json"); len(links) != 0 {
		t.Errorf("back links %v", links)
	}
}
