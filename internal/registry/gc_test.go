package registry

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

func TestGarbageCollect(t *testing.T) {
	t.Parallel()
	ca, root := newTestCA(t), t.TempDir()
	i := start(t, ca, root)
	c := i.pusher()
	kept, _ := c.pushImage("a/b", "kept", "kept layer")
	overwritten, overwrittenText := c.pushImage("a/b", "tag", "overwritten layer")
	c.pushImage("a/b", "tag", "new layer")
	deleted, deletedText := c.pushImage("c", "v1", "deleted layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/c/manifests/"+deleted.String(), nil)
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	collect := func(t *testing.T, request gc.Request) (gc.Result, string) {
		t.Helper()
		return collectNow(t, root, request)
	}
	// A deleted image leaves its manifest and its layer; its configuration is shared.
	orphans := gc.Result{Blobs: 2, Bytes: int64(len(deletedText) + len("deleted layer"))}
	untagged := gc.Result{Manifests: 1, Blobs: 4, Bytes: orphans.Bytes +
		int64(len(overwrittenText)+len("overwritten layer"))}
	nothing := gc.Result{}
	for _, step := range []struct {
		name     string
		options  gc.Request
		want     gc.Result
		reported []string
	}{
		{"a dry run finds what a deleted image left", gc.Request{DryRun: true}, orphans,
			[]string{"blob " + deleted.String(), "blob " + digest.FromString("deleted layer").String()}},
		{"a dry run finds untagged manifests too", gc.Request{DryRun: true, DeleteUntagged: true}, untagged,
			[]string{"manifest a/b@" + overwritten.String()}},
		{"a dry run removes nothing", gc.Request{}, orphans, []string{"blob " + deleted.String()}},
		{"a second collection finds nothing", gc.Request{}, nothing, nil},
		{"untagged manifests are removed on request", gc.Request{DeleteUntagged: true},
			gc.Result{Manifests: 1, Blobs: 2, Bytes: untagged.Bytes - orphans.Bytes},
			[]string{"manifest a/b@" + overwritten.String(), "blob " + overwritten.String()}},
		{"a second collection finds no untagged manifests", gc.Request{DeleteUntagged: true}, nothing, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			got, report := collect(t, step.options)
			if got != step.want {
				t.Errorf("collected %+v, want %+v", got, step.want)
			}
			mentions(t, report, step.reported...)
			if lines := strings.Count(report, "\n"); lines != got.Blobs+got.Manifests {
				t.Errorf("%d lines for %+v:\n%s", lines, got, report)
			}
		})
	}
	again := start(t, ca, root)
	accept := []string{"Accept", "application/vnd.oci.image.manifest.v1+json"}
	again.node().must(http.StatusOK, "GET", "/v2/a/b/manifests/"+kept.String(), nil, accept...)
	again.node().must(http.StatusOK, "GET", "/v2/a/b/blobs/"+digest.FromString("kept layer").String(), nil)
	again.node().must(http.StatusOK, "GET", "/v2/a/b/blobs/"+digest.FromString("new layer").String(), nil)
	again.node().must(http.StatusNotFound, "GET", "/v2/a/b/blobs/"+digest.FromString("overwritten layer").String(), nil)
	// Removed blobs can be pushed again.
	again.pusher().pushImage("c", "v1", "deleted layer")
}

// quick is collect.defaultTimes divided by a hundred, except for renewDeadline and leaseDuration: on a
// busy machine a heartbeat may be late by seconds. Tests of dead collectors use shortDeadline and
// shortLease.
var quick = collect.Times{
	PollInterval: 5 * time.Millisecond, Validity: 100 * time.Millisecond, DrainPeriod: 200 * time.Millisecond,
	WaitTimeout: 5 * time.Second,
	Heartbeat:   50 * time.Millisecond, RenewDeadline: 5 * time.Minute, LeaseDuration: 10 * time.Minute,
}

const (
	shortDeadline = 500 * time.Millisecond
	shortLease    = 600 * time.Millisecond
)

// collectNow collects garbage in root, next to any running registry, and returns the result and the
// reported lines.
func collectNow(t testing.TB, root string, request gc.Request) (gc.Result, string) {
	t.Helper()
	if request.Timeout == 0 {
		request.Timeout = time.Minute
	}
	var report strings.Builder
	result, err := fileLeases(t, root).Collect(t.Context(), request, func(e gc.Event) {
		if e.Removed != nil {
			report.WriteString(e.Removed.String() + "\n")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return result, report.String()
}

// fileLeases returns a collector of another process. Wrap is called with the driver of its storage.
func fileLeases(
	t testing.TB, root string, wrap ...func(storagedriver.StorageDriver) storagedriver.StorageDriver,
) *collect.Collector {
	t.Helper()
	older()
	driver, err := storage.Open(t.Context(), loadConfig(t, "version: 0.1\n"+storageAt(root)).Config.Storage)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrap {
		driver = w(driver)
	}
	c := collect.New(&content.Store{Driver: driver}, root)
	c.Times = quick
	return c
}

// The record of the last collection, and the list of what it may remove.
const (
	recordPath = "/docker/registry/v2/zarf-registry/garbage-collection.json"
	listPath   = "/docker/registry/v2/zarf-registry/garbage-list"
)

// collectionRecord is the content of recordPath.
type collectionRecord struct {
	ID          string        `json:"id"`
	Held        bool          `json:"held"`
	Heartbeat   int           `json:"heartbeat"`
	Previous    string        `json:"previous"`
	GarbageList digest.Digest `json:"garbageList"`
	Succeeded   int64         `json:"succeeded"`
	Failure     string        `json:"failure"`
	Result      gc.Result     `json:"result"`
}

// readRecord returns the record, or the zero value before the first collection.
func readRecord(t testing.TB, driver storagedriver.StorageDriver) (r collectionRecord) {
	t.Helper()
	data, err := driver.GetContent(t.Context(), recordPath)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil && !storage.IsNotFound(err) {
		t.Fatal(err)
	}
	return r
}

// condemned is a collection by a process that the test plays.
type condemned struct {
	t      testing.TB
	driver storagedriver.StorageDriver
	mu     sync.Mutex
	record collectionRecord
	stop   context.CancelFunc
	ended  sync.WaitGroup
}

// condemn begins a collection that may remove these digests, and waits until it may sweep.
func condemn(t testing.TB, root string, digests ...digest.Digest) *condemned {
	t.Helper()
	driver, err := storage.Open(context.Background(), loadConfig(t, "version: 0.1\n"+storageAt(root)).Config.Storage)
	if err != nil {
		t.Fatal(err)
	}
	list := ""
	for _, d := range slices.Sorted(slices.Values(digests)) {
		list += d.String() + "\n"
	}
	if err := driver.PutContent(t.Context(), listPath, []byte(list)); err != nil {
		t.Fatal(err)
	}
	c := &condemned{t: t, driver: driver, record: collectionRecord{ID: crand.Text(), Held: true,
		Previous: readRecord(t, driver).ID, GarbageList: digest.FromString(list)}}
	c.write()
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	c.ended.Go(func() {
		for poll.Sleep(ctx, quick.Heartbeat) == nil {
			c.write()
		}
	})
	time.Sleep(quick.DrainPeriod)
	return c
}

// write writes the record with another heartbeat.
func (c *condemned) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Heartbeat++
	data, err := json.Marshal(c.record)
	if err == nil {
		err = c.driver.PutContent(context.Background(), recordPath, data)
	}
	if err != nil {
		c.t.Error(err)
	}
}

func (c *condemned) stopHeartbeats() {
	c.stop()
	c.ended.Wait()
}

// release ends the collection.
func release(c *condemned) {
	c.stopHeartbeats()
	if err := c.driver.Delete(context.Background(), listPath); err != nil {
		c.t.Error(err)
	}
	c.record.Held, c.record.Succeeded = false, time.Now().Unix()
	c.write()
}

func TestGarbageCollectWithoutContent(t *testing.T) {
	t.Parallel()
	request, ignore := gc.Request{Timeout: time.Minute}, func(gc.Event) {}
	t.Run("a registry that was never pushed to", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\n"+storageAt(t.TempDir()))
		if got, err := collect.Offline(t.Context(), options.Config, request, ignore); err != nil || got != (gc.Result{}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("storage in memory is refused", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\nstorage: inmemory\n")
		if _, err := collect.Offline(t.Context(), options.Config, request, ignore); err == nil ||
			!strings.Contains(err.Error(), "nothing to collect") {
			t.Errorf("%v", err)
		}
	})
	t.Run("storage that cannot be read is an error", func(t *testing.T) {
		file := writeFile(t, filepath.Join(t.TempDir(), "file"), nil)
		options := loadConfig(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+file+"}}\n")
		if _, err := collect.Offline(t.Context(), options.Config, request, ignore); err == nil ||
			!strings.Contains(err.Error(), "reading the storage") {
			t.Errorf("%v", err)
		}
	})
}
