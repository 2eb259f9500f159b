package collect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// testStorage is a storage in memory with a repository a. Its files have the time of the bubble.
type testStorage struct {
	t *testing.T
	storagedriver.StorageDriver
}

func newTestStorage(t *testing.T) *testStorage { return &testStorage{t, inmemory.New()} }

func (m *testStorage) put(path, content string) {
	m.t.Helper()
	if err := m.PutContent(context.Background(), path, []byte(content)); err != nil {
		m.t.Error(err)
	}
}

// blob stores a blob like an upload.
func (m *testStorage) blob(content string) digest.Digest {
	m.t.Helper()
	d := digest.FromString(content)
	m.put(storage.BlobPath(d), content)
	m.put(storage.LayerPath("a", d), d.String())
	return d
}

// manifest stores a manifest that needs these digests, like a push.
func (m *testStorage) manifest(needs ...digest.Digest) digest.Digest {
	m.t.Helper()
	content := fmt.Sprintf(`{"needs":["%s"]}`, needs[0])
	if len(needs) > 1 {
		content = fmt.Sprintf(`{"needs":["%s","%s"]}`, needs[0], needs[1])
	}
	d := digest.FromString(content)
	m.put(storage.BlobPath(d), content)
	m.put(storage.RevisionPath("a", d), d.String())
	return d
}

func (m *testStorage) has(d digest.Digest) bool {
	_, err := m.Stat(context.Background(), storage.BlobPath(d))
	return err == nil
}

// process returns a process that uses the storage.
func (m *testStorage) process() *Collector {
	return New(&content.Store{Driver: m.StorageDriver}, "")
}

// collect collects in a process. It returns when the collection has ended.
func (m *testStorage) collect(c *Collector, request gc.Request, report func(gc.Event)) gc.Result {
	m.t.Helper()
	request.Timeout = time.Hour
	result, err := c.Collect(m.t.Context(), request, report)
	if err != nil {
		m.t.Error(err)
	}
	return result
}

// push sends a manifest with these needs to a process. Store stores it.
func (m *testStorage) push(c *Collector, needs []digest.Digest, store func()) (code int, took time.Duration) {
	m.t.Helper()
	began := time.Now()
	ctx := m.t.Context()
	a, err := c.Admit(ctx, "a", needs)
	if err != nil {
		return http.StatusServiceUnavailable, time.Since(began)
	}
	use := c.Rely(needs...)
	defer use.Done(true)
	if err := use.Missing(ctx, "a"); err != nil {
		return http.StatusBadRequest, time.Since(began)
	}
	store()
	if err := a.Finish(ctx); err != nil {
		return http.StatusServiceUnavailable, time.Since(began)
	}
	return http.StatusCreated, time.Since(began)
}

func nothing(gc.Event) {}

// missing returns an error if a part of what a client needs has been removed.
func missing(t *testing.T, c *Collector, needs ...digest.Digest) error {
	t.Helper()
	use := c.Rely(needs...)
	defer use.Done(true)
	return use.Missing(t.Context(), "a")
}

// Manifests that need garbage arrive in another process, which takes a while to store them.
func TestPushToAnotherProcessDuringACollection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at    time.Duration // since the collection began
		takes time.Duration
		needs string
		sweep time.Duration // how long it takes

		code   int
		waited time.Duration
		kept   bool // what the manifest needs
	}{
		"before the list is published": {at: -time.Second, takes: 10 * time.Second, needs: "garbage",
			code: http.StatusCreated, waited: 10 * time.Second, kept: true},
		"so slowly that the garbage may be gone": {at: -time.Second, takes: time.Minute, needs: "garbage",
			code: http.StatusServiceUnavailable, waited: time.Minute},
		"slowly, but it does not need garbage": {at: -time.Second, takes: 12 * time.Second, needs: "kept",
			code: http.StatusCreated, waited: 12 * time.Second, kept: true},
		"slowly, and it needs garbage that is not swept yet": {at: -time.Second, takes: 12 * time.Second, needs: "garbage",
			code: http.StatusServiceUnavailable, waited: 12 * time.Second, kept: true},
		"so slowly that the list is gone": {at: -time.Second, takes: time.Minute, needs: "kept",
			code: http.StatusServiceUnavailable, waited: time.Minute, kept: true},
		"while it waits, without need of garbage": {at: 5500 * time.Millisecond, needs: "kept", code: http.StatusCreated,
			kept: true},
		"while it waits": {at: 5500 * time.Millisecond, needs: "garbage", code: http.StatusCreated,
			waited: 15 * time.Second},
		"and the sweep takes long": {at: 5500 * time.Millisecond, needs: "garbage", sweep: time.Hour / 2,
			code: http.StatusServiceUnavailable, waited: 41 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newTestStorage(t)
				m.manifest(m.blob("kept"))
				m.blob("garbage")
				time.Sleep(time.Minute)
				needed := digest.FromString(tt.needs)
				ended := make(chan gc.Result)
				go func() {
					time.Sleep(max(0, -tt.at))
					ended <- m.collect(m.process(), gc.Request{}, func(e gc.Event) {
						if e.Removed != nil {
							time.Sleep(tt.sweep)
						}
					})
				}()
				time.Sleep(max(0, tt.at))
				keptAtEnd := false
				code, waited := m.push(m.process(), []digest.Digest{needed}, func() {
					time.Sleep(tt.takes)
					m.manifest(needed)
					keptAtEnd = m.has(needed)
				})
				result := <-ended
				if code != tt.code || waited < tt.waited || waited > tt.waited+time.Second {
					t.Errorf("%d after %s, want %d after %s", code, waited, tt.code, tt.waited)
				}
				if code == http.StatusCreated && keptAtEnd && !m.has(needed) {
					t.Error("acknowledged content is lost")
				}
				if got := m.has(needed); got != tt.kept {
					t.Errorf("kept: %t, %+v", got, result)
				}
			})
		})
	}
}

// Everything that the process itself is told during the sweep counts.
func TestRescueDuringASweep(t *testing.T) {
	t.Parallel()
	layerOf := func(_, _, layer digest.Digest) digest.Digest { return layer }
	imageOf := func(_, image, _ digest.Digest) digest.Digest { return image }
	indexOf := func(index, _, _ digest.Digest) digest.Digest { return index }
	for name, tt := range map[string]struct {
		needs func(index, image, layer digest.Digest) digest.Digest
		first bool // before the first removal
		want  gc.Result
	}{
		"the layer":                           {layerOf, false, gc.Result{Manifests: 3, Blobs: 4, Kept: 1}},
		"the image":                           {imageOf, false, gc.Result{Manifests: 2, Blobs: 3, Kept: 2}},
		"an index":                            {indexOf, false, gc.Result{Manifests: 1, Blobs: 2, Kept: 3}},
		"the layer, before the first removal": {layerOf, true, gc.Result{Manifests: 3, Blobs: 4, Kept: 1}},
		"an index, before the first removal":  {indexOf, true, gc.Result{Manifests: 1, Blobs: 2, Kept: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newTestStorage(t)
				layer := m.blob("layer")
				image := m.manifest(layer)
				index := m.manifest(image)
				garbage := m.blob(`{"name":"garbage"}`)
				m.put(storage.RevisionPath("0", garbage), garbage.String()) // is removed first
				m.blob("more garbage")
				time.Sleep(time.Minute)
				needed := tt.needs(index, image, layer)
				c := m.process()
				c.removals = 1
				done := false
				result := m.collect(c, gc.Request{DeleteUntagged: true}, func(e gc.Event) {
					if done || tt.first != (e.Phase == gc.Sweeping) || !tt.first && e.Removed == nil {
						return
					}
					done = true
					if code, took := m.push(c, []digest.Digest{needed}, func() {}); code != http.StatusCreated || took > 0 {
						t.Errorf("%d after %s", code, took)
					}
				})
				result.Bytes = 0
				if result != tt.want {
					t.Errorf("%+v, want %+v", result, tt.want)
				}
				if !m.has(layer) || m.has(garbage) {
					t.Error("wrong blobs remain")
				}
			})
		})
	}
}

// A part of an index was swept when somebody pushes that index: not even a second push may be acknowledged.
func TestSweptContentIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		layer := m.blob("layer")
		image := m.manifest(layer)
		index := digest.FromString("pushed")
		time.Sleep(time.Minute)
		c := m.process()
		removed := 0
		m.collect(c, gc.Request{DeleteUntagged: true}, func(e gc.Event) {
			if e.Removed == nil {
				return
			}
			removed++
			for range 2 {
				if err := missing(t, c, index, image); err != error(distribution.ErrManifestBlobUnknown{Digest: image}) {
					t.Errorf("%v", err)
				}
			}
			// It is pushed again.
			m.blob("layer")
			m.manifest(layer)
			if err := missing(t, c, index, image); err != nil {
				t.Errorf("%v", err)
			}
		})
		if removed != 1 || !m.has(layer) || !m.has(image) { // the link of the image was the only one
			t.Errorf("%d removals", removed)
		}
	})
}

// slowDriver deletes slowly.
type slowDriver struct{ storagedriver.StorageDriver }

func (d slowDriver) Delete(ctx context.Context, name string) error {
	time.Sleep(10 * time.Second)
	return d.StorageDriver.Delete(ctx, name)
}

func TestOnlyPushesOfTheBlobWaitForItsRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		blob := m.blob("one")
		time.Sleep(time.Minute)
		c := m.process()
		c.leases.driver = slowDriver{c.leases.driver}
		var took []time.Duration
		m.collect(c, gc.Request{}, func(e gc.Event) {
			if e.Phase != gc.Sweeping {
				return
			}
			go func() {
				time.Sleep(15 * time.Second) // its link is removed, its data is not
				for _, d := range []digest.Digest{digest.FromString("other"), blob} {
					began := time.Now()
					c.Rely(d).Done(true)
					took = append(took, time.Since(began))
				}
			}()
		})
		synctest.Wait()
		if len(took) != 2 || took[0] != 0 || took[1] != 5*time.Second {
			t.Errorf("waited for %s", took)
		}
	})
}

func TestSweepRemovesManyBlobsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		for n := range storage.Concurrency {
			m.blob(fmt.Sprint(n))
		}
		time.Sleep(time.Minute)
		c := m.process()
		c.leases.driver = slowDriver{c.leases.driver}
		var began, ended time.Time
		result := m.collect(c, gc.Request{}, func(e gc.Event) {
			if e.Phase == gc.Sweeping {
				began = time.Now()
			}
			ended = time.Now()
		})
		if took := ended.Sub(began); result.Blobs != storage.Concurrency || took != 20*time.Second { // as for one
			t.Errorf("%+v after %s", result, took)
		}
	})
}

func TestARecordWithoutItsListBlocksEveryManifest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		c := m.process()
		write := func(held bool) {
			m.put(leasePath, fmt.Sprintf(`{"id":"x","held":%t,"garbageList":%q}`, held, digest.FromString("list")))
		}
		write(true)
		go func() {
			time.Sleep(9500 * time.Millisecond)
			write(false)
		}()
		if code, took := m.push(c, nil, func() {}); code != http.StatusCreated || took != 10*time.Second {
			t.Errorf("%d after %s", code, took)
		}
	})
}

func TestSweptBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	never := leaseRecord{}
	list := digest.FromString("list")
	held := func(id, previous string) leaseRecord {
		return leaseRecord{ID: id, Previous: previous, Held: true, GarbageList: list}
	}
	ended := func(id, previous string) leaseRecord {
		return leaseRecord{ID: id, Previous: previous, GarbageList: list}
	}
	for name, tt := range map[string]struct {
		before, now leaseRecord
		want        removedContent
	}{
		"nothing changed":                   {never, never, removedNothing},
		"the first collection":              {never, held("a", ""), removedListed},
		"it has ended":                      {never, ended("a", ""), removedAnything},
		"it has ended, and there was none":  {never, leaseRecord{ID: "a", GarbageList: emptyList}, removedNothing},
		"the list was known":                {held("a", ""), held("a", ""), removedNothing},
		"the list was known, and it ended":  {held("a", ""), ended("a", ""), removedNothing},
		"the list was known, and a new one": {held("a", ""), held("b", "a"), removedListed},
		"another one after it":              {held("a", ""), held("c", "b"), removedAnything},
		"the second without garbage": {ended("a", ""), leaseRecord{ID: "c", Previous: "b", GarbageList: emptyList},
			removedAnything},
		"one that began long after the last": {ended("a", ""), held("b", "a"), removedListed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := removedBetween(tt.before, tt.now); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestListOfGarbage(t *testing.T) {
	t.Parallel()
	want := garbageSet{digest.FromString("a"): {}, digest.SHA512.FromString("a"): {}, digest.FromString("b"): {}}
	got := garbageSet(decode[digest.Digest](encode(want)))
	if len(got) != 3 || !got.has(digest.SHA512.FromString("a")) || got.has(digest.FromString("c")) {
		t.Errorf("%v", got)
	}
}

// A process that has forgotten what clients rely on removes nothing, and says so, until the grace period of that is over.
func TestACollectionWithAFullRecordRemovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		c := m.process()
		c.use.max = 1
		garbage, found := m.blob("garbage"), []digest.Digest{m.blob("found"), m.blob("found, too")}
		time.Sleep(2 * time.Hour)
		c.Rely(found...).Done(true)
		request := gc.Request{Grace: time.Hour, Timeout: time.Hour}
		result, err := c.Collect(t.Context(), request, func(e gc.Event) {
			if e.Removed != nil {
				t.Errorf("removed: %v", e.Removed)
			}
		})
		if !errors.Is(err, errInUse) || result.Blobs != 0 || !m.has(garbage) || !m.has(found[1]) {
			t.Errorf("%+v, %v", result, err)
		}
		if s := c.Status(); s.Failure != err.Error() {
			t.Errorf("the state of collections says %q", s.Failure)
		}
		time.Sleep(2 * time.Hour)
		if result := m.collect(c, request, func(gc.Event) {}); result.Blobs != 3 || m.has(garbage) {
			t.Errorf("later: %+v", result)
		}
	})
}

// secondsDriver stamps files with whole seconds, like S3.
type secondsDriver struct{ storagedriver.StorageDriver }

func (d secondsDriver) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	info, err := d.StorageDriver.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return storagedriver.FileInfoInternal{FileInfoFields: storagedriver.FileInfoFields{
		Path: info.Path(), Size: info.Size(), IsDir: info.IsDir(), ModTime: info.ModTime().Truncate(time.Second),
	}}, nil
}

func TestGracePeriodOfWholeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestStorage(t)
		old := m.blob("old")
		time.Sleep(10*time.Second + 900*time.Millisecond)
		young := m.blob("young") // with the stamp of 10 s
		time.Sleep(4700 * time.Millisecond)
		m.StorageDriver = secondsDriver{m.StorageDriver}
		result := m.collect(m.process(), gc.Request{Grace: 5 * time.Second}, nothing)
		if m.has(old) || !m.has(young) || result.Blobs != 1 || result.Kept != 1 {
			t.Errorf("%+v, old: %t, young: %t", result, m.has(old), m.has(young))
		}
	})
}
