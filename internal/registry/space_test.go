package registry

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// startOnVolume starts a registry on a volume of so many bytes, of which others use some.
func startOnVolume(t *testing.T, ca testCA, root string, limit int64) (i *instance, others *atomic.Int64) {
	t.Helper()
	filesystemOnly(t)
	i, others = open(t, ca, root), new(atomic.Int64)
	i.server.space.Measure = func() space.Usage {
		used := others.Load()
		_ = filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				if info, err := entry.Info(); err == nil { // else it was just removed
					used += info.Size()
				}
			}
			return nil
		})
		return space.Usage{Used: used, Limit: limit}
	}
	i.server.collector.Times = quick
	i.run()
	i.used()
	return i, others
}

// used measures how much of the volume is used.
func (i *instance) used() int64 {
	i.server.space.Update()
	return i.server.space.Usage().Used
}

// expectsNothing fails the test if space is reserved although nothing is in progress.
func (i *instance) expectsNothing() {
	i.t.Helper()
	if expected := i.server.space.ExpectedBytes(); expected != 0 {
		i.t.Errorf("%d bytes are expected although nothing is in progress", expected)
	}
}

// mentions fails the test unless the text contains all words.
func mentions(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q lacks %q", text, word)
		}
	}
}

func TestAFullVolumeRefusesPushes(t *testing.T) {
	t.Parallel()
	i, others := startOnVolume(t, newTestCA(t), t.TempDir(), 200_000)
	c := i.pusher()
	kept, _ := c.pushImage("a", "kept", "kept layer")
	deleted, _ := c.pushImage("a", "deleted", random(100_000))
	uses := func(when string, least, most int64) {
		t.Helper()
		if used := i.used(); used < least || used > most {
			t.Errorf("%s, %d bytes are used", when, used)
		}
	}
	uses("at first", 100_000, 115_000)
	begin := func() string { return c.begin("a") }

	// Refused at its beginning: the server never reads the body.
	large := c.must(http.StatusInsufficientStorage, "PATCH", begin(), strings.NewReader(random(90_000)))
	if large.code() != "INSUFFICIENT_STORAGE" {
		t.Errorf("code %s", large.code())
	}
	mentions(t, large.body, "90.0 kB", "of the volume", "200.0 kB", "95 %", "registry.persistence.size", "garbage-collect")
	uses("after a refused upload", 0, 115_000)
	i.expectsNothing()

	// Bodies of unknown length are accepted while there is space.
	stream := func(n int) io.Reader { return readerFunc(strings.NewReader(random(n)).Read) }
	continued, finish, canceled := begin(), begin(), begin()
	canceled = c.base + c.must(http.StatusAccepted, "PATCH", canceled, stream(1_000)).Header.Get("Location")
	continued = c.base + c.must(http.StatusAccepted, "PATCH", continued, stream(5_000)).Header.Get("Location")

	others.Store(80_000)
	i.used()
	for name, request := range map[string][2]string{
		"begins an upload":    {"POST", "/v2/a/blobs/uploads/"},
		"mounts":              {"POST", "/v2/b/blobs/uploads/?from=a&mount=" + digest.FromString("kept layer").String()},
		"continues an upload": {"PATCH", continued},
		"finishes an upload":  {"PUT", finish + "&digest=" + digest.FromString("").String()},
		"writes a manifest":   {"PUT", "/v2/a/manifests/new"},
	} {
		t.Run("when it is full, a client that "+name, func(t *testing.T) {
			a := c.must(http.StatusInsufficientStorage, request[0], request[1], strings.NewReader("{}"))
			if a.code() != "INSUFFICIENT_STORAGE" || a.Header.Get("Retry-After") != "" {
				t.Errorf("%s, %v", a.code(), a.Header)
			}
			mentions(t, a.body, "the storage is full", "of the volume", "200.0 kB", "95 %", "registry.persistence.size")
		})
	}
	c.must(http.StatusOK, "GET", "/v2/a/manifests/kept", nil, "Accept", ociManifest)
	c.must(http.StatusOK, "HEAD", "/v2/a/blobs/"+digest.FromString("kept layer").String(), nil)
	c.pushImage(probesOfProxies, "v1", "a small image of the project")
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+deleted.String(), nil)
	for _, removed := range []string{continued, finish} {
		c.must(http.StatusNotFound, "GET", removed, nil) // or it would still occupy space
	}
	c.must(http.StatusNoContent, "DELETE", canceled, nil)
	others.Store(0)
	older()
	c.collect(gc.Request{})
	uses("after garbage collection", 0, 20_000)
	c.pushImage("a", "new", random(100_000))
	c.must(http.StatusOK, "GET", "/v2/a/manifests/"+kept.String(), nil, "Accept", ociManifest)
}

func TestStorageIsReported(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	c.pushBlob("a", "{}")
	usage := i.loaded().Space
	if usage == nil || usage.Used <= 0 || usage.Limit <= usage.Used {
		t.Fatalf("%+v", usage)
	}
	i.wantMetric("zarf_registry_storage_limit_bytes", float64(usage.Limit))
	if i.metric("zarf_registry_storage_used_bytes") <= 0 {
		t.Error("the volume is empty")
	}

	var asked space.Usage
	a := c.must(http.StatusOK, "GET", space.Path, nil)
	if err := json.Unmarshal([]byte(a.body), &asked); err != nil || asked.Limit != usage.Limit || asked.Used <= 0 {
		t.Errorf("%v: %s", err, a.body)
	}
	missing, stored := digest.FromString("missing"), digest.FromString("{}")
	query := func(digests ...string) io.Reader {
		return strings.NewReader(`{"digests":["` + strings.Join(digests, `","`) + `"]}`)
	}
	a = c.must(http.StatusOK, "POST", space.Path, query(stored.String(), missing.String()))
	if want := `{"missing":["` + missing.String() + `"]}`; strings.TrimSpace(a.body) != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	c.must(http.StatusBadRequest, "POST", space.Path, query("sha256:1"))
	c.must(http.StatusBadRequest, "POST", space.Path, strings.NewReader("["))
	c.must(http.StatusBadRequest, "POST", space.Path, strings.NewReader(
		`{"digests":["`+strings.Repeat(missing.String()+`","`, space.MaxDigests)+missing.String()+`"]}`))
	c.must(http.StatusMethodNotAllowed, "DELETE", space.Path, nil)
	i.node().must(http.StatusForbidden, "POST", space.Path, query())
	c.as("", "").must(http.StatusUnauthorized, "POST", space.Path, query())
	i.plain().as(pushUser, pushPassword).must(http.StatusNotFound, "GET", space.Path, nil)
}

// smallVolume mounts a file system of so many bytes.
func smallVolume(t *testing.T, options string) string {
	t.Helper()
	filesystemOnly(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, options); err != nil {
		t.Skipf("needs to mount full volumes (%v): run it as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return root
}

// fill writes a file until not a single block is left, and returns a function that removes it.
func fill(t *testing.T, root string) (remove func()) {
	t.Helper()
	path := filepath.Join(root, "of others")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer file.Close()
	for _, size := range []int{1 << 20, 1 << 16, 4096} {
		for err == nil {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// ballast returns the paths of the ballast files.
func ballast(root string) []string {
	dir := filepath.Join(root, "docker/registry/v2/zarf-registry")
	return []string{filepath.Join(dir, "ballast-0"), filepath.Join(dir, "ballast-1")}
}

// ballastExists waits until the registry can write its lease to a full file system.
func ballastExists(t *testing.T, root string) {
	t.Helper()
	eventually(t, "there is ballast", func() bool {
		for _, path := range ballast(root) {
			if info, err := os.Stat(path); err != nil || info.Size() != 4096 {
				return false
			}
		}
		return true
	})
}

// A volume is used up by others. The very first collection has no previous lease, whose inode would be free after the write.
func TestCompletelyFullVolume(t *testing.T) {
	t.Parallel()
	for name, collections := range map[string]int{"a first collection": 0, "a second collection": 1} {
		t.Run(name, func(t *testing.T) {
			ca, root := newTestCA(t), smallVolume(t, "size=8m")
			i := startQuick(t, ca, root)
			c := i.pusher()
			c.pushImage("a", "kept", "kept layer")
			deleted, _ := c.pushImage("a", "deleted", random(1<<20))
			for range collections {
				c.collect(gc.Request{})
			}
			ballastExists(t, root)
			location := c.begin("a")
			fill(t, root)

			// It has been measured long ago, seen from a fast client.
			i.server.space.Arrived(-8<<20, 0)
			a := c.must(http.StatusInsufficientStorage, "PATCH", c.base+location, strings.NewReader(random(100_000)))
			if a.code() != "INSUFFICIENT_STORAGE" {
				t.Errorf("%s", a.body)
			}
			mentions(t, a.body, "no space left", "registry.persistence.size")
			if left, err := filepath.Glob(filepath.Join(root, storage.RepositoriesPath, "a/_uploads/*")); err != nil || len(left) > 0 {
				t.Errorf("the upload occupies space: %v, %v", left, err)
			}
			fill(t, root)
			i.server.space.Update()

			a = c.must(http.StatusInsufficientStorage, "POST", "/v2/a/blobs/uploads/", nil)
			mentions(t, a.body, "100.0 % of the volume is used, 8.4 MB of 8.4 MB")
			c.must(http.StatusOK, "GET", "/v2/a/manifests/kept", nil, "Accept", ociManifest)
			c.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("kept layer").String(), nil)
			older()
			if events := c.collect(gc.Request{}); events[len(events)-1].Result == nil {
				t.Fatalf("nothing was deleted yet: %+v", events)
			}
			c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+deleted.String(), nil)
			fill(t, root)
			events := c.collect(gc.Request{})
			if last := events[len(events)-1]; last.Result == nil || last.Result.Bytes < 1<<20 {
				t.Fatalf("%+v", last)
			}
			if r := i.read(t); r.Held || r.Succeeded == 0 || r.Result.Bytes < 1<<20 {
				t.Errorf("%+v", r)
			}
			ballastExists(t, root)
			i.server.space.Update()
			c.pushImage("a", "new", random(100_000))
		})
	}
}

func TestRecordsOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	record := func(text string) []byte { return []byte(`{"id":"` + text + `"}`) }
	for name, options := range map[string]string{"no blocks": "size=1m", "no inodes": "size=1m,nr_inodes=16"} {
		t.Run(name, func(t *testing.T) {
			root := smallVolume(t, options)
			driver, err := storage.Open(t.Context(), loadConfig(t, "version: 0.1\n"+storageAt(root)).Config.Storage)
			require.NoError(t, err)
			put := func(text string) error {
				return storage.PutRecord(t.Context(), driver, root, recordPath, record(text))
			}
			storage.KeepBallast(root)
			ballastExists(t, root)
			size := 1 << 17
			if name == "no inodes" {
				size = 0
			}
			exhaust := func() {
				t.Helper()
				var err error
				for n := 0; err == nil; n++ {
					err = os.WriteFile(filepath.Join(root, "file"+string(rune('a'+n))), make([]byte, size), 0o600)
				}
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				if name == "no blocks" {
					fill(t, root)
				}
			}
			exhaust()
			for _, text := range []string{"first", "second", "third", "fourth"} {
				require.NoError(t, put(text), text)
				if got := readRecord(t, driver).ID; got != text {
					t.Errorf("read %s, want %s", got, text)
				}
			}
			for _, path := range ballast(root) {
				_ = os.Remove(path)
			}
			exhaust()
			if err := put("fifth"); err == nil || !storage.NoSpace(err) {
				t.Errorf("without ballast: %v", err)
			} else {
				mentions(t, err.Error(), "delete an image")
			}
		})
	}
}
