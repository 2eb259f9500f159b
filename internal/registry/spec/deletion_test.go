package spec

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const indexType = "application/vnd.oci.image.index.v1+json"

// hookedDriver calls a function once, before or after something happens to a path. The function may use the driver.
type hookedDriver struct {
	storagedriver.StorageDriver
	beforeDelete, afterRead, beforeStat, beforeSecondStat, beforeGet, beforeList string

	beforeIntent  bool // is written
	afterBackLink bool // was written
	hook          func()
	fired         atomic.Bool
	stats         atomic.Int32
}

func (d *hookedDriver) fireIf(now bool) {
	if now && d.fired.CompareAndSwap(false, true) {
		d.hook()
	}
}

func (d *hookedDriver) Stat(ctx context.Context, path string) (storagedriver.FileInfo, error) {
	d.fireIf(path == d.beforeStat || path == d.beforeSecondStat && d.stats.Add(1) == 2)
	return d.StorageDriver.Stat(ctx, path)
}

func (d *hookedDriver) GetContent(ctx context.Context, path string) ([]byte, error) {
	d.fireIf(path == d.beforeGet)
	return d.StorageDriver.GetContent(ctx, path)
}

func (d *hookedDriver) List(ctx context.Context, path string) ([]string, error) {
	d.fireIf(path == d.beforeList)
	return d.StorageDriver.List(ctx, path)
}

func (d *hookedDriver) Delete(ctx context.Context, path string) error {
	d.fireIf(path == d.beforeDelete)
	return d.StorageDriver.Delete(ctx, path)
}

func (d *hookedDriver) Reader(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	reader, err := d.StorageDriver.Reader(ctx, path, offset)
	d.fireIf(path == d.afterRead)
	return reader, err
}

func (d *hookedDriver) PutContent(ctx context.Context, path string, content []byte) error {
	d.fireIf(d.beforeIntent && strings.Contains(path, "/deletions/"))
	err := d.StorageDriver.PutContent(ctx, path, content)
	d.fireIf(d.afterBackLink && strings.HasSuffix(path, "/descriptor.json"))
	return err
}

// openHooked opens a registry on a directory, whose driver is hooked.
func openHooked(t *testing.T, root string, hooked *hookedDriver) *Registry {
	t.Helper()
	return openAt(t, root, func(d storagedriver.StorageDriver) storagedriver.StorageDriver {
		hooked.StorageDriver = d
		return hooked
	})
}

// openAt opens a registry on a directory, as one of several processes.
func openAt(t *testing.T, root string, wrap func(storagedriver.StorageDriver) storagedriver.StorageDriver) *Registry {
	t.Helper()
	s := open(t, fmt.Sprintf("filesystem: {rootdirectory: %q}", root))
	s.Driver = wrap(s.Driver)
	c := collect.New(s.Store, root)
	c.Times = shortTimes
	s.Use(c, volume.New("", s.Log))
	return s
}

// withImage opens a registry on a directory, with an image.
func withImage(t *testing.T) (root string, s *Registry, image string) {
	t.Helper()
	root = t.TempDir()
	s = openAt(t, root, unchanged)
	image = s.image(t, "layer")
	s.request(t, http.StatusCreated, "PUT", manifestPath(image), strings.NewReader(image))
	return root, s, image
}

func unchanged(d storagedriver.StorageDriver) storagedriver.StorageDriver { return d }

// ask sends a request, and returns the response.
func ask(t *testing.T, s *Registry, method, target, mediaType, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return s.send(method, target, strings.NewReader(body), append([]string{"Content-Type", mediaType}, header...)...)
}

func ifUnmodified(after time.Duration) []string {
	return []string{"If-Unmodified-Since", time.Now().Add(after).UTC().Format(http.TimeFormat)}
}

func manifestPath(content string) string {
	return "/v2/a/manifests/" + digest.FromString(content).String()
}

func indexOfOne(child string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, indexType,
		manifestType, digest.FromString(child), len(child))
}

// A manifest of an index is deleted, as images prune does, while the index is pushed: after the push has looked at it,
// and before anything of the index is stored. The index must not be acknowledged without it.
func TestAnAcknowledgedIndexKeepsItsManifests(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprint(processes, " processes"), func(t *testing.T) {
			t.Parallel()
			root, other, child := withImage(t)
			var deleted *httptest.ResponseRecorder
			var s *Registry
			s = openHooked(t, root, &hookedDriver{afterRead: storage.BlobPath(digest.FromString(child)), hook: func() {
				deleter := other
				if processes == 1 {
					deleter = s
				}
				deleted = ask(t, deleter, "DELETE", manifestPath(child), "", "", ifUnmodified(time.Hour)...)
			}})
			index := indexOfOne(child)
			pushed := ask(t, s, "PUT", "/v2/a/manifests/multi", indexType, index)
			if deleted == nil || deleted.Code != http.StatusAccepted {
				t.Fatalf("the deletion responded %v", deleted)
			}
			if pushed.Code != http.StatusServiceUnavailable { // the index is stored
				t.Fatalf("the push of the index without its manifest: %d", pushed.Code)
			}
			if got := ask(t, s, "GET", "/v2/a/manifests/multi", "", ""); got.Code != http.StatusNotFound {
				t.Errorf("the refused index has the tag: %d", got.Code)
			}
			s.request(t, http.StatusCreated, "PUT", manifestPath(child), strings.NewReader(child))
			if got := ask(t, s, "PUT", "/v2/a/manifests/multi", indexType, index); got.Code != http.StatusCreated {
				t.Errorf("pushed again: %d %s", got.Code, got.Body)
			}
		})
	}
}

// The same deletion, when the push has written the back link of the index, but not the index.
func TestAManifestOfAnIndexThatIsBeingPushedIsKept(t *testing.T) {
	t.Parallel()
	root, other, child := withImage(t)
	index := indexOfOne(child)
	var deleted *httptest.ResponseRecorder
	s := openHooked(t, root, &hookedDriver{afterBackLink: true, hook: func() {
		deleted = ask(t, other, "DELETE", manifestPath(child), "", "", ifUnmodified(time.Hour)...)
	}})
	pushed := ask(t, s, "PUT", "/v2/a/manifests/multi", indexType, index)
	if deleted == nil || deleted.Code != http.StatusPreconditionFailed || pushed.Code != http.StatusCreated {
		t.Fatalf("deletion %v, push %d %s", deleted, pushed.Code, pushed.Body)
	}
	if got := ask(t, s, "GET", manifestPath(child), "", ""); got.Code != http.StatusOK {
		t.Errorf("the manifest of the acknowledged index: %d", got.Code)
	}
}

// An index is pushed when the deletion of its manifest has found no index, and before it deletes the manifest.
func TestAnIndexPushedDuringADeletionKeepsItsManifests(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprint(processes, " processes"), func(t *testing.T) {
			t.Parallel()
			root, other, child := withImage(t)
			pushed := make(chan int, 1)
			var s *Registry
			link := storage.RevisionPath("a", digest.FromString(child))
			s = openHooked(t, root, &hookedDriver{beforeSecondStat: link, beforeDelete: link, hook: func() {
				pusher := other
				if processes == 1 {
					pusher = s
				}
				go func() { pushed <- ask(t, pusher, "PUT", "/v2/a/manifests/multi", indexType, indexOfOne(child)).Code }()
				time.Sleep(300 * time.Millisecond) // it ends, or waits for the deletion
			}})
			if got := ask(t, s, "DELETE", manifestPath(child), "", "", ifUnmodified(time.Hour)...); got.Code != http.StatusAccepted {
				t.Fatalf("deletion: %d %s", got.Code, got.Body)
			}
			if code := <-pushed; code == http.StatusCreated {
				t.Fatal("the index is acknowledged, and its manifest is deleted")
			}
			if got := ask(t, s, "GET", "/v2/a/manifests/multi", "", ""); got.Code != http.StatusNotFound {
				t.Errorf("the refused index has the tag: %d", got.Code)
			}
		})
	}
}

// An index is deleted while it is pushed, and another push writes it again, after the deletion of its manifest has found
// no index, and before it deletes the manifest.
func TestAnIndexPushedTwiceDuringADeletionKeepsItsManifests(t *testing.T) {
	t.Parallel()
	root, other, child := withImage(t)
	index := indexOfOne(child)
	described, err := content.Describe([]byte(index))
	require.NoError(t, err)
	d := digest.FromString(index)
	links := described.BackLinks("a", d)
	link := storage.RevisionPath("a", digest.FromString(child))

	checked, deleted := make(chan struct{}), make(chan int, 1)
	deleter := openHooked(t, root, &hookedDriver{beforeDelete: link, hook: func() {
		close(checked)
		time.Sleep(300 * time.Millisecond) // the push ends, or waits for the deletion
	}})
	s := openHooked(t, root, &hookedDriver{beforeStat: link, hook: func() {
		for _, removed := range append(links.Dirs(), storage.RevisionPath("a", d)) {
			if err := other.Driver.Delete(t.Context(), removed); err != nil {
				t.Error(err)
			}
		}
		go func() {
			deleted <- ask(t, deleter, "DELETE", manifestPath(child), "", "", ifUnmodified(time.Hour)...).Code
		}()
		<-checked
		if err := other.Write(t.Context(), "a", []byte(index), []digest.Digest{d}, links); err != nil {
			t.Error(err)
		}
	}})
	pushed := ask(t, s, "PUT", "/v2/a/manifests/multi", indexType, index)
	if code := <-deleted; code != http.StatusAccepted || pushed.Code != http.StatusServiceUnavailable {
		t.Errorf("deletion %d, push %d: the index is acknowledged, and its manifest is deleted", code, pushed.Code)
	}
}

// A manifest that does not exist is deleted by one digest, while it is pushed by another: before its link is removed.
func TestAnAcknowledgedManifestKeepsAllItsDigests(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	other := openAt(t, root, unchanged)
	image := other.image(t, "layer")
	pushed := make(chan int, 1)
	s := openHooked(t, root, &hookedDriver{beforeDelete: storage.RevisionPath("a", digest.FromString(image)), hook: func() {
		byAnother := "/v2/a/manifests/" + digest.SHA512.FromString(image).String()
		go func() { pushed <- ask(t, other, "PUT", byAnother, manifestType, image).Code }()
		time.Sleep(300 * time.Millisecond) // it ends, or waits for the deletion
	}})
	ask(t, s, "DELETE", manifestPath(image), "", "")
	if code := <-pushed; code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	if got := ask(t, other, "GET", manifestPath(image), "", ""); got.Code != http.StatusOK {
		t.Errorf("the acknowledged manifest by its SHA-256 digest: %d", got.Code)
	}
}

// A manifest is pushed by another digest, the first of its kind, when its deletion has listed its digests, and nobody can
// see the deletion.
func TestADeletionRemovesAllDigests(t *testing.T) {
	t.Parallel()
	root, other, image := withImage(t)
	byAnother := "/v2/a/manifests/" + digest.SHA512.FromString(image).String()
	s := openHooked(t, root, &hookedDriver{beforeIntent: true, hook: func() {
		other.request(t, http.StatusCreated, "PUT", byAnother, strings.NewReader(image))
	}})
	for _, step := range []struct{ deleted, found int }{
		{http.StatusServiceUnavailable, http.StatusOK}, {http.StatusAccepted, http.StatusNotFound},
	} {
		s.request(t, step.deleted, "DELETE", manifestPath(image), nil)
		for _, path := range []string{manifestPath(image), byAnother} {
			s.request(t, step.found, "GET", path, nil)
		}
	}
}

// A referrer is pushed again by another process while it is deleted: after its link is gone, and before its back link
// is removed.
func TestAnAcknowledgedReferrerKeepsItsBackLink(t *testing.T) {
	t.Parallel()
	root, other, subject := withImage(t)
	referrer := strings.TrimSuffix(subject, "}") + fmt.Sprintf(`,"subject":{"mediaType":%q,"digest":%q,"size":%d}}`,
		manifestType, digest.FromString(subject), len(subject))
	other.request(t, http.StatusCreated, "PUT", manifestPath(referrer), strings.NewReader(referrer))
	link := storage.RepositoriesPath + "/a/_referrers/" + storage.DigestPath(digest.FromString(subject)) + "/" +
		storage.DigestPath(digest.FromString(referrer))
	pushed := make(chan int, 1)
	s := openHooked(t, root, &hookedDriver{beforeDelete: link, hook: func() {
		go func() { pushed <- ask(t, other, "PUT", manifestPath(referrer), manifestType, referrer).Code }()
		time.Sleep(300 * time.Millisecond) // it ends, or waits for the deletion
	}})
	if got := ask(t, s, "DELETE", manifestPath(referrer), "", ""); got.Code != http.StatusAccepted {
		t.Fatalf("deletion: %d %s", got.Code, got.Body)
	}
	if code := <-pushed; code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	listed := ask(t, other, "GET", "/v2/a/referrers/"+digest.FromString(subject).String(), "", "").Body.String()
	if !strings.Contains(listed, digest.FromString(referrer).String()) {
		t.Errorf("the acknowledged referrer is not listed: %s", listed)
	}
}

// countedTags counts how often tags are read.
type countedTags struct {
	storagedriver.StorageDriver
	reads *atomic.Int32
}

func (d countedTags) GetContent(ctx context.Context, path string) ([]byte, error) {
	if storage.CurrentLink.MatchString(path) {
		d.reads.Add(1)
	}
	return d.StorageDriver.GetContent(ctx, path)
}

// D8: each deletion read all tags of its repository.
func TestManyDeletionsReadTagsOnce(t *testing.T) {
	t.Parallel()
	var reads atomic.Int32
	s := openAt(t, t.TempDir(), func(d storagedriver.StorageDriver) storagedriver.StorageDriver {
		return countedTags{d, &reads}
	})
	const images = 10
	var digests []digest.Digest
	for n := range images {
		image := s.image(t, fmt.Sprint("layer ", n))
		digests = append(digests, digest.FromString(image))
		for _, tag := range []string{"", "-again"} {
			s.request(t, http.StatusCreated, "PUT", fmt.Sprintf("/v2/a/manifests/v%d%s", n, tag), strings.NewReader(image))
		}
	}
	reads.Store(0)
	err := s.deleteManifests(t.Context(), map[string][]digest.Digest{"a": digests}, time.Time{},
		func(m content.RepositoryDigest, existed bool, kept error) {
			if !existed || kept != nil {
				t.Errorf("%v: %t, %v", m, existed, kept)
			}
		})
	require.NoError(t, err)
	if n := reads.Load(); n > 2*2*images { // once to look, and once to remove
		t.Errorf("%d tags were read %d times", 2*images, n)
	}
	if tags := s.request(t, http.StatusOK, "GET", "/v2/a/tags/list", nil).Body.String(); !strings.Contains(tags, `"tags":null`) &&
		!strings.Contains(tags, `"tags":[]`) {
		t.Errorf("tags: %s", tags)
	}
}
