package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const inMemory = "version: 0.1\nstorage: {inmemory: {}}\n"

// observedDriver calls before with the path of what is read.
type observedDriver struct {
	storagedriver.StorageDriver
	before func(path string)
}

func (d observedDriver) GetContent(ctx context.Context, path string) ([]byte, error) {
	d.before(path)
	return d.StorageDriver.GetContent(ctx, path)
}

func (d observedDriver) Reader(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	d.before(path)
	return d.StorageDriver.Reader(ctx, path, offset)
}

// observe calls before with the path of each file that the registry's front reads as a whole.
func observe(i *instance, before func(path string)) {
	i.server.source.Driver = observedDriver{i.server.source.Driver, before}
}

// linkSizes returns the number of a repository's back links of a kind, and the size of the largest.
func linkSizes(t *testing.T, root, repository, kind string) (n int, largest int64) {
	t.Helper()
	links, err := filepath.Glob(filepath.Join(root, storage.RepositoriesPath, repository, kind, "*/*/*/*/descriptor.json"))
	require.NoError(t, err)
	for _, link := range links {
		info := require.Value(os.Stat(link))(t)
		largest = max(largest, info.Size())
	}
	return len(links), largest
}

// An index is not copied for each of its images, nor a referrer into the list of its subject.
//
// Claim: Referrers cannot make the registry write more than their own size.
func TestBackLinksAreSmall(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	var children []digest.Digest
	for n := range 3 {
		d, _ := c.pushImage("a", fmt.Sprintf("v%d", n), fmt.Sprintf("layer %d", n))
		children = append(children, d)
	}
	large := strings.Repeat("x", 1<<20)
	index := indexOf(children...)
	index["annotations"] = map[string]string{"x": large}
	c.put("a", "multi", ociIndex, index)
	if n, largest := linkSizes(t, root, "a", "_indexes"); n != 3 || largest > 512 {
		t.Errorf("%d links to the index, of up to %d bytes", n, largest)
	}
	subject, _ := c.pushImage("b", "v1", "layer")
	small := strings.Repeat("x", 32<<10)
	for n, text := range []string{"few", small, large, large + "y"} {
		c.put("b", "", ociManifest, artifact(subject, fmt.Sprintf("application/x-%d", n), "x", text))
	}
	if n, largest := linkSizes(t, root, "b", "_referrers"); n != 4 || largest < 32<<10 || largest > 64<<10 {
		t.Errorf("%d links to referrers, of up to %d bytes", n, largest)
	}
	// Clients get all annotations.
	found, _ := i.node().referrers("/v2/b/referrers/" + subject.String())
	var sizes []int
	for _, d := range found {
		sizes = append(sizes, len(d.Annotations["x"]))
	}
	if slices.Sort(sizes); !slices.Equal(sizes, []int{3, 32 << 10, 1 << 20, 1<<20 + 1}) {
		t.Errorf("annotations of %v bytes", sizes)
	}
}

func TestTypesAreShort(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	subject, _ := c.pushImage("a", "v1", "layer")
	manifest := encode(t, ociManifest, artifact(subject, "application/"+strings.Repeat("x", 300)))
	a := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/long", strings.NewReader(manifest), "Content-Type",
		ociManifest)
	mentions(t, a.body, "MANIFEST_INVALID", "artifact type")
}

// A page is cut before what it lists is read.
//
// Claim: A page of a listing reads no more than it sends.
func TestPagesReadWhatTheySend(t *testing.T) {
	t.Parallel()
	const all = 200
	i := open(t, newTestCA(t), "", configured(t, inMemory))
	var reads atomic.Int64
	observe(i, func(path string) {
		if strings.Contains(path, "_referrers") {
			reads.Add(1)
		}
	})
	i.run()
	subject, _ := i.pusher().pushImage("a", "v1", "layer")
	fillReferrers(t, i, "a", subject, all)
	eventually(t, "back links are rebuilt", i.server.source.Rebuilt.Load)
	reads.Store(0)
	a := i.node().must(http.StatusOK, "GET", "/v2/a/referrers/"+subject.String()+"?n=1", nil)
	if n := reads.Load(); n > 2*storage.Concurrency || a.Header.Get("Link") == "" {
		t.Errorf("%d of %d links were read for a page of one: %v", n, all, a.Header)
	}
	if found, _ := i.node().referrers("/v2/a/referrers/" + subject.String() + "?n=50"); len(found) != all {
		t.Errorf("%d referrers, want %d", len(found), all)
	}
}

// fillReferrers stores referrers of a subject as pushes do, but faster.
func fillReferrers(t *testing.T, i *instance, repository string, subject digest.Digest, n int) {
	t.Helper()
	source := i.server.source
	for k := range n {
		text := []byte(encode(t, ociManifest, artifact(subject, "application/x", "n", fmt.Sprint(k))))
		d := digest.FromBytes(text)
		described := require.Value(content.Describe(text))(t)
		links := described.BackLinks(repository, d)
		require.NoError(t, source.Write(t.Context(), repository, text, []digest.Digest{d}, links))
	}
}

// What a manifest makes the registry write, apart from itself, must fit into the storage, too.
//
// Claim: What the registry stores for referrers must fit into the volume.
func TestBackLinksMustFit(t *testing.T) {
	t.Parallel()
	i, _ := startOnVolume(t, newTestCA(t), t.TempDir(), 300_000)
	c := i.pusher()
	var children []digest.Digest
	for n := range 100 {
		children = append(children, digest.FromString(fmt.Sprint(n)))
	}
	index := encode(t, ociIndex, indexOf(children...))
	a := c.must(http.StatusInsufficientStorage, "PUT", "/v2/a/manifests/multi", strings.NewReader(index), "Content-Type",
		ociIndex)
	mentions(t, a.body, "INSUFFICIENT_STORAGE", "of the volume", "registry.persistence.size")
	i.expectsNothing()
	d, _ := c.pushImage("a", "v1", "layer")
	c.pushIndex("a", "two", d)
	i.expectsNothing()
}
