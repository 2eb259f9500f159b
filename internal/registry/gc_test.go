package registry

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
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
			for _, want := range step.reported {
				if !strings.Contains(report, want) {
					t.Errorf("%q is not reported in\n%s", want, report)
				}
			}
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

// quick is defaultLeaseTimes divided by a hundred, except for renewDeadline and leaseDuration: on a
// busy machine a heartbeat may be late by seconds. Tests of dead collectors use shortDeadline and
// shortLease.
var quick = leaseTimes{
	pollInterval: 5 * time.Millisecond, validity: 100 * time.Millisecond, drainPeriod: 200 * time.Millisecond,
	waitTimeout: 5 * time.Second,
	heartbeat:   50 * time.Millisecond, renewDeadline: 10 * time.Second, leaseDuration: 20 * time.Second,
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
	result, err := collect(t.Context(), fileLeases(t, root), &blobsInUse{}, request, func(e gc.Event) {
		if e.Removed != nil {
			report.WriteString(e.Removed.String() + "\n")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return result, report.String()
}

func fileLeases(t testing.TB, root string) *leaseClient {
	t.Helper()
	older()
	driver, err := storage.Open(t.Context(), loadConfig(t, "version: 0.1\n"+storageAt(root)).Config.Storage)
	if err != nil {
		t.Fatal(err)
	}
	leases := newLeaseClient(driver, root)
	leases.times = quick
	return leases
}

func TestGarbageCollectWithoutContent(t *testing.T) {
	t.Parallel()
	request, ignore := gc.Request{Timeout: time.Minute}, func(gc.Event) {}
	t.Run("a registry that was never pushed to", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\n"+storageAt(t.TempDir()))
		if got, err := GarbageCollect(t.Context(), options.Config, request, ignore); err != nil || got != (gc.Result{}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("storage in memory is refused", func(t *testing.T) {
		options := loadConfig(t, "version: 0.1\nstorage: inmemory\n")
		if _, err := GarbageCollect(t.Context(), options.Config, request, ignore); err == nil ||
			!strings.Contains(err.Error(), "nothing to collect") {
			t.Errorf("%v", err)
		}
	})
	t.Run("storage that cannot be read is an error", func(t *testing.T) {
		file := writeFile(t, filepath.Join(t.TempDir(), "file"), nil)
		options := loadConfig(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+file+"}}\n")
		if _, err := GarbageCollect(t.Context(), options.Config, request, ignore); err == nil ||
			!strings.Contains(err.Error(), "reading the storage") {
			t.Errorf("%v", err)
		}
	})
}

// countingDriver counts how many files are read at once.
type countingDriver struct {
	storagedriver.StorageDriver
	mu           sync.Mutex
	running, max int
}

func (d *countingDriver) GetContent(ctx context.Context, path string) ([]byte, error) {
	d.mu.Lock()
	d.running++
	d.max = max(d.max, d.running)
	d.mu.Unlock()
	time.Sleep(20 * time.Millisecond) // as long as a request to S3 takes
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running--
	}()
	return d.StorageDriver.GetContent(ctx, path)
}

// Object storage takes long for each file, so a large registry could not be marked in time.
func TestMarkingReadsInParallel(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	for n := range 20 {
		c.pushImage("a", fmt.Sprint(n), fmt.Sprint(n))
	}
	driver := &countingDriver{StorageDriver: i.server.source.Driver}
	stored := &content.Inventory{Driver: driver}
	if err := stored.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if driver.max < 2 || len(stored.Tagged) != 20 {
		t.Errorf("read %d of 20 tags, %d at once", len(stored.Tagged), driver.max)
	}
	driver.max = 0
	m, err := mark(t.Context(), stored, true, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if driver.max < 2 || len(m.references) != 20 || len(m.keep) != 20+20+1 {
		t.Errorf("read %d of 20 manifests, %d at once; kept %d", len(m.references), driver.max, len(m.keep))
	}
}
