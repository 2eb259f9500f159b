package registry

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociIndex    = "application/vnd.oci.image.index.v1+json"
)

// startQuick starts a registry with quick collections.
func startQuick(t testing.TB, ca testCA, root string) *instance {
	t.Helper()
	i := open(t, ca, root)
	i.server.collector.Times = quick
	i.run()
	return i
}

// collect requests a collection and returns the events of the response.
func (c client) collect(request gc.Request) (events []gc.Event) {
	c.t.Helper()
	if request.Timeout == 0 {
		request.Timeout = time.Minute
	}
	a := c.must(http.StatusOK, "POST", gc.Path+"?"+request.Query().Encode(), nil)
	lines := json.NewDecoder(strings.NewReader(a.body))
	for {
		var e gc.Event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return events
		} else if err != nil {
			c.t.Fatalf("%v in %s", err, a.body)
		}
		events = append(events, e)
	}
}

func TestRunningRegistryCollectsGarbage(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	i, other := startQuick(t, ca, t.TempDir()), (*instance)(nil)
	c := i.pusher()
	c.pushImage("a", "kept", "kept layer")
	deleted, text := c.pushImage("a", "deleted", "deleted layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+deleted.String(), nil)
	other = startQuick(t, ca, i.root)

	young := c.collect(gc.Request{Grace: time.Hour})
	if last := young[len(young)-1]; last.Result == nil || *last.Result != (gc.Result{Kept: 2}) {
		t.Errorf("within the grace period: %+v", young)
	}
	older()
	before := time.Now().Truncate(time.Second)
	events := c.collect(gc.Request{})
	var story []string
	for _, e := range events {
		switch {
		case e.Phase != "" && (len(story) == 0 || story[len(story)-1] != e.Phase): // the current one is repeated every 5 s
			story = append(story, e.Phase)
		case e.Removed != nil:
			story = append(story, "removed")
		}
	}
	if got := strings.Join(story, " "); got != "marking settling remarking sweeping removed removed" {
		t.Errorf("%s", got)
	}
	want := gc.Result{Blobs: 2, Bytes: int64(len(text) + len("deleted layer"))}
	if last := events[len(events)-1]; last.Result == nil || *last.Result != want {
		t.Errorf("%+v, want %+v", last, want)
	}
	c.must(http.StatusNotFound, "GET", "/v2/a/blobs/"+digest.FromString("deleted layer").String(), nil)
	c.must(http.StatusOK, "GET", "/v2/a/manifests/kept", nil, "Accept", ociManifest)
	c.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("kept layer").String(), nil)

	// The other replica reads the result from the storage.
	eventually(t, "the result is read", func() bool {
		other.readLease()
		return other.loaded().GarbageCollection.SucceededAt != nil
	})
	for _, replica := range []*instance{i, other} {
		report := replica.loaded().GarbageCollection
		if report.Running || report.SucceededAt == nil || report.SucceededAt.Before(before) || report.Problem != "" {
			t.Errorf("%+v", report)
		}
		for name, want := range map[string]float64{
			"zarf_registry_gc_running":                        0,
			"zarf_registry_gc_last_failed":                    0,
			"zarf_registry_gc_last_removed_blobs":             2,
			"zarf_registry_gc_last_freed_bytes":               float64(want.Bytes),
			"zarf_registry_gc_last_success_timestamp_seconds": float64(report.SucceededAt.Unix()),
		} {
			replica.wantMetric(name, want)
		}
	}
}

func TestGarbageCollectionRequests(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	path := gc.Path + "?dry-run=true"
	c := i.pusher()
	for _, wrong := range []string{"?dry-run=perhaps", "?grace-period=-1h", "?timeout=0s", "?keep=5",
		"?dry-run=true&dry-run=false"} {
		c.must(http.StatusBadRequest, "POST", gc.Path+wrong, nil)
	}
	c.must(http.StatusOK, "POST", path, nil)

	// While another request collects.
	i.server.collector.Times.DrainPeriod = time.Hour
	c.pushBlob("a", "garbage")
	older()
	stop := c.background(gc.Path + "?grace-period=0s")
	eventually(t, "the lease is held", func() bool { return i.read(t).Held })
	c.must(http.StatusConflict, "POST", path, nil)
	stop()
}

// image is one that a registry has accepted.
type image struct {
	repository, manifest string
	layers               []string
}

// TestPushesRacingCollections pushes to two replicas while a third process collects repeatedly, with a
// grace period shorter than many pushes. Each client deletes an image and pushes its layers again a
// moment later, when they may be garbage. It continues until there were enough pushes and collections.
func TestPushesRacingCollections(t *testing.T) {
	t.Parallel()
	ca, root := newTestCA(t), t.TempDir()
	replicas := []*instance{startQuick(t, ca, root), startQuick(t, ca, root)}
	const enoughTaken, enoughCollections, enoughRemoved = 25, 8, 20
	deadline := time.Now().Add(15 * time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var taken []image
	var tries, held int
	var pushing sync.WaitGroup
	for p := range 4 {
		c := replicas[p%len(replicas)].pusher()
		repository := fmt.Sprintf("team%d/app", p)
		pushing.Go(func() {
			var layers []string
			for n := 0; ctx.Err() == nil; n++ {
				again := n%2 == 1
				if again {
					time.Sleep(rand.N(500 * time.Millisecond))
				} else {
					layers = []string{
						fmt.Sprintf("layer %d", rand.N(12)), fmt.Sprintf("layer %d of %s", n, repository),
						fmt.Sprintf("another %d of %s", n, repository),
					}
				}
				pushed, refused := c.pushRacing(repository, fmt.Sprintf("t%d", n), layers)
				mu.Lock()
				tries++
				held += refused
				if pushed != nil && again { // these must still exist at the end
					taken = append(taken, *pushed)
				}
				mu.Unlock()
				if pushed == nil || again {
					continue
				}
				reference := fmt.Sprintf("t%d", n)
				if n%4 == 0 {
					reference = digest.FromString(pushed.manifest).String()
				}
				if a, err := c.send("DELETE", "/v2/"+repository+"/manifests/"+reference, nil); err != nil ||
					a.StatusCode != http.StatusAccepted {
					t.Errorf("deleting an image: %v %v", a.Response, err)
				}
			}
		})
	}
	enoughPushed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(taken) >= enoughTaken
	}
	var removed, collections, abandoned int
	for !enoughPushed() || collections < enoughCollections || removed < enoughRemoved {
		if time.Now().After(deadline) {
			t.Errorf("only %d collections removed %d blobs in 15 minutes", collections, removed)
			break
		}
		request := gc.Request{DeleteUntagged: true, Grace: 20 * time.Millisecond, Timeout: time.Minute}
		result, err := fileLeases(t, root).Collect(t.Context(), request, func(e gc.Event) {
			if e.Phase == gc.Sweeping {
				time.Sleep(50 * time.Millisecond) // simulates a larger storage
			}
		})
		removed += result.Blobs
		switch {
		case err == nil:
			collections++
		case isLost(err): // on a busy machine
			abandoned++
		default:
			t.Error(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	cancel()
	pushing.Wait()
	collectNow(t, root, gc.Request{DeleteUntagged: true})
	t.Logf("%d pushes, %d to verify; %d collections removed %d blobs, %d lost their lease; %d pushes were refused",
		tries, len(taken), collections, removed, abandoned, held)
	for n, i := range taken {
		c := replicas[n%len(replicas)].node()
		c.must(http.StatusOK, "GET", "/v2/"+i.repository+"/manifests/"+digest.FromString(i.manifest).String(), nil, "Accept",
			ociManifest)
		for _, layer := range i.layers {
			if a := c.must(http.StatusOK, "GET", "/v2/"+i.repository+"/blobs/"+digest.FromString(layer).String(),
				nil); a.body != layer {
				t.Errorf("a layer of %s is %q", i.repository, a.body)
			}
		}
	}
}

// pushRacing pushes an image like clients do, and skips blobs that the registry has. If the push is
// refused, which is allowed, it returns nil and 1.
func (c client) pushRacing(repository, tag string, contents []string) (*image, int) {
	pushed := &image{repository: repository}
	pushed.layers = append([]string{"{}"}, contents...)
	for _, content := range pushed.layers {
		d := digest.FromString(content)
		if a, err := c.send("HEAD", "/v2/"+repository+"/blobs/"+d.String(), nil); err != nil ||
			a.StatusCode != http.StatusOK {
			begun, err := c.send("POST", "/v2/"+repository+"/blobs/uploads/?mount="+d.String(), nil)
			if err != nil {
				c.t.Error(err)
				return nil, 0
			}
			if begun.StatusCode == http.StatusAccepted {
				if a, err := c.send("PUT", c.base+begun.Header.Get("Location")+"&digest="+d.String(), strings.NewReader(content),
					"Content-Type", "application/octet-stream"); err != nil || a.StatusCode != http.StatusCreated {
					return nil, 1
				}
			} else if begun.StatusCode != http.StatusCreated {
				c.t.Errorf("beginning an upload: %d %s", begun.StatusCode, begun.body)
				return nil, 0
			}
		}
	}
	manifest := imageOf(contents...)
	manifest["annotations"] = map[string]string{"tag": repository + tag}
	pushed.manifest = encode(c.t, ociManifest, manifest)
	a, err := c.send("PUT", "/v2/"+repository+"/manifests/"+tag, strings.NewReader(pushed.manifest), "Content-Type",
		ociManifest)
	switch {
	case err != nil:
		c.t.Error(err)
	case a.StatusCode == http.StatusCreated:
		return pushed, 0
	case a.StatusCode == http.StatusServiceUnavailable && a.Header.Get("Retry-After") != "":
	case a.code() == "MANIFEST_BLOB_UNKNOWN":
	default:
		c.t.Errorf("the manifest: %d %s", a.StatusCode, a.body)
	}
	return nil, 1
}

// Another process collects, and may remove a layer.
func TestManifestsWaitForGarbageThatAnotherProcessCollects(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	i := open(t, ca, t.TempDir())
	i.server.collector.Times = quick
	i.server.collector.Times.WaitTimeout = time.Minute
	i.run()
	c := i.pusher()
	layer := c.pushBlob("a", "layer")
	h := condemn(t, i.root, layer)
	_, err := fileLeases(t, i.root).Collect(t.Context(), gc.Request{Timeout: time.Minute}, func(gc.Event) {})
	if err == nil || !strings.Contains(err.Error(), "already being collected") {
		t.Errorf("acquired a held lease: %v", err)
	}
	eventually(t, "the registry reports it", func() bool {
		i.readLease()
		return i.loaded().GarbageCollection.Running && i.metric("zarf_registry_gc_running") == 1
	})
	// Everything else is accepted, and pulls are served.
	c.pushImage("a", "other", "another layer")
	for _, method := range []string{"GET", "HEAD"} {
		i.node().must(http.StatusOK, method, "/v2/a/blobs/"+layer.String(), nil)
	}

	waits := func(what string, do func()) (done chan struct{}) {
		t.Helper()
		done = make(chan struct{})
		go func() {
			defer close(done)
			do()
		}()
		eventually(t, what+" waits", func() bool { return i.inFlight("tls") == 1 })
		select {
		case <-done:
			t.Errorf("%s was accepted", what)
		case <-time.After(20 * quick.PollInterval):
		}
		return done
	}
	done := waits("a mount", func() {
		c.must(http.StatusCreated, "POST", "/v2/b/blobs/uploads/?mount="+layer.String(), nil)
	})
	release(h)
	<-done
	h = condemn(t, i.root, layer)
	text := encode(t, ociManifest, imageOf("layer"))
	done = waits("a manifest", func() {
		c.must(http.StatusCreated, "PUT", "/v2/a/manifests/v1", strings.NewReader(text), "Content-Type", ociManifest)
	})
	c.must(http.StatusNotFound, "GET", "/v2/a/manifests/v1", nil, "Accept", ociManifest)
	release(h)
	<-done

	// Nobody knows what a blob with a SHA-512 digest is stored as.
	for content, d := range map[string]digest.Digest{"layer": layer, "new": digest.SHA512.FromString("new")} {
		h = condemn(t, i.root, layer)
		done = waits("blob "+content, func() { c.pushAs("a", d, content) })
		release(h)
		<-done
	}

	i.server.collector.Times.WaitTimeout = 50 * time.Millisecond
	h = condemn(t, i.root, layer)
	a := c.must(http.StatusServiceUnavailable, "PUT", "/v2/a/manifests/v2", strings.NewReader(text), "Content-Type",
		ociManifest)
	if a.Header.Get("Retry-After") == "" || a.code() != "UNAVAILABLE" ||
		!strings.Contains(a.body, "garbage is being collected") {
		t.Errorf("%v %s", a.Header, a.body)
	}
	c.must(http.StatusNotFound, "GET", "/v2/a/manifests/v2", nil, "Accept", ociManifest)

	// What is refused is refused before it is sent, and what was sent is kept.
	sent := c.must(http.StatusAccepted, "POST", "/v2/a/blobs/uploads/", nil).Header.Get("Location")
	sent = c.must(http.StatusAccepted, "PATCH", sent, strings.NewReader("layer")).Header.Get("Location")
	finish := sent + "&digest=" + layer.String()
	c.must(http.StatusServiceUnavailable, "PUT", finish, nil)
	c.must(http.StatusServiceUnavailable, "POST", "/v2/b/blobs/uploads/?mount="+layer.String(), nil)
	release(h)
	i.readLease()
	c.must(http.StatusCreated, "PUT", finish, nil)
	h = condemn(t, i.root, layer)
	i.readLease()

	// A dead collector does not block manifests for long.
	h.stopHeartbeats()
	i.server.collector.Times.WaitTimeout, i.server.collector.Times.LeaseDuration = time.Minute, shortLease
	c.must(http.StatusCreated, "PUT", "/v2/a/manifests/v2", strings.NewReader(text), "Content-Type", ociManifest)
	if got := c.manifestOf("a", "v2"); got != text {
		t.Errorf("%s, want %s", got, text)
	}
	leases := fileLeases(t, i.root)
	leases.Times.LeaseDuration = shortLease
	if result, err := leases.Collect(t.Context(), gc.Request{Timeout: time.Minute},
		func(gc.Event) {}); err != nil || result.Blobs != 1 { // the new blob, which no image needs
		t.Errorf("%+v, %v", result, err)
	}
}

// isLost reports whether a collector has lost its lease.
func isLost(err error) bool { return err != nil && strings.Contains(err.Error(), "lost the lease") }

// brokenDriver fails to write the lease while broken.
type brokenDriver struct {
	storagedriver.StorageDriver
	broken atomic.Bool
}

func (d *brokenDriver) wrap(driver storagedriver.StorageDriver) storagedriver.StorageDriver {
	d.StorageDriver = driver
	return d
}

func (d *brokenDriver) PutContent(ctx context.Context, path string, content []byte) error {
	if path == recordPath && d.broken.Load() {
		return errors.New("disk gone")
	}
	return d.StorageDriver.PutContent(ctx, path, content)
}

func TestCollectionStopsWhenTheClientDisconnects(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	i.server.collector.Times.DrainPeriod = time.Hour
	c := i.pusher()
	c.pushBlob("a", "garbage")
	older()
	ctx, cancel := context.WithCancel(t.Context())
	response := require.Value(c.stream(ctx, "POST", gc.Path+"?grace-period=0s"))(t)
	defer response.Body.Close()
	lines, previous := bufio.NewReader(response.Body), "" // a phase that takes long is repeated
	for _, want := range []string{`{"phase":"marking"}` + "\n", `{"phase":"settling"}` + "\n"} {
		line, err := lines.ReadString('\n')
		for ; line == previous; line, err = lines.ReadString('\n') {
		}
		if line != want || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		previous = line
	}
	eventually(t, "the list is published", func() bool { return i.read(t).Held })
	cancel()
	eventually(t, "the collection ends", func() bool {
		r := i.read(t)
		return !r.Held && r.Failure != ""
	})
	c.pushImage("a", "v1", "layer")
	if report := i.loaded().GarbageCollection; report.SucceededAt != nil || report.Problem == "" {
		t.Errorf("%+v", report)
	}
}

// read returns the record of the last collection.
func (i *instance) read(t testing.TB) collectionRecord {
	t.Helper()
	return readRecord(t, i.server.source.Driver)
}

// readLease makes the registry read the record, which it does every ten seconds.
func (i *instance) readLease() {
	ctx, cancel := context.WithTimeout(i.t.Context(), 200*time.Millisecond)
	defer cancel()
	i.server.collector.Poll(ctx, time.Nanosecond)
}

// TestCollectorStopsAfterItLostTheLease simulates a storage that hangs, like an NFS server
// that restarts: another process may have accepted a manifest meanwhile.
func TestCollectorStopsAfterItLostTheLease(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(t *testing.T, driver *brokenDriver){
		"the storage failed for a while": func(_ *testing.T, driver *brokenDriver) {
			driver.broken.Store(true)
			time.Sleep(2 * shortDeadline)
			driver.broken.Store(false)
		},
		"the storage fails": func(_ *testing.T, driver *brokenDriver) {
			driver.broken.Store(true)
			time.Sleep(2 * shortDeadline)
		},
		"another collector has acquired the lease": func(t *testing.T, driver *brokenDriver) {
			for beat := range 20 { // like a live collector; one of our heartbeats may overwrite its record
				content, err := json.Marshal(collectionRecord{ID: "another", Held: true, Heartbeat: beat})
				if err == nil {
					err = driver.PutContent(t.Context(), recordPath, content)
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(quick.Heartbeat / 2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := start(t, newTestCA(t), t.TempDir())
			i.pusher().pushBlob("a", "garbage")
			driver := &brokenDriver{}
			leases := fileLeases(t, i.root, driver.wrap)
			leases.Times.RenewDeadline, leases.Times.LeaseDuration = shortDeadline, shortLease
			_, err := leases.Collect(t.Context(), gc.Request{Timeout: time.Minute}, func(e gc.Event) {
				if e.Phase == gc.Sweeping {
					away(t, driver)
					time.Sleep(4 * quick.Heartbeat) // it renews the lease again
				}
			})
			if err == nil || driver.broken.Load() && !isLost(err) {
				t.Errorf("the collector continued: %v", err)
			}
			if driver.broken.Load() {
				if _, err := leases.Collect(t.Context(), gc.Request{Timeout: time.Minute}, func(gc.Event) {}); err == nil {
					t.Error("a collection began without a lease")
				}
			}
			i.node().must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("garbage").String(), nil)
		})
	}
}

// refillingDriver fails to delete a directory once, as if a push had written a file to it.
type refillingDriver struct {
	storagedriver.StorageDriver
	once sync.Once
}

func (d *refillingDriver) Delete(ctx context.Context, name string) (err error) {
	d.once.Do(func() {
		err = storagedriver.Error{DriverName: d.Name(), Detail: &os.PathError{Op: "unlinkat", Path: name,
			Err: syscall.ENOTEMPTY}}
	})
	if err != nil {
		return err
	}
	return d.StorageDriver.Delete(ctx, name)
}

func TestBlobPushedDuringItsRemovalIsKept(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	c.pushBlob("a", "one")
	c.pushBlob("a", "two")
	leases := fileLeases(t, i.root, func(driver storagedriver.StorageDriver) storagedriver.StorageDriver {
		return &refillingDriver{StorageDriver: driver}
	})
	result, err := leases.Collect(t.Context(), gc.Request{Timeout: time.Minute}, func(gc.Event) {})
	if err != nil || result != (gc.Result{Blobs: 1, Bytes: 3, Kept: 1}) {
		t.Errorf("%+v, %v", result, err)
	}
	if result, _ := collectNow(t, i.root, gc.Request{}); result.Blobs != 1 {
		t.Errorf("the next collection: %+v", result)
	}
}

// readerFunc is a body that runs a function when it is read.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCollectionKeepsReferencedContent(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	c.pushBlob("a", "{}")
	put := func(reference, name string, subjects ...digest.Digest) digest.Digest {
		t.Helper()
		c.pushBlob("a", "layer of "+name)
		manifest := imageOf("layer of " + name)
		for _, subject := range subjects {
			manifest["subject"] = describe(ociManifest, subject, 2)
		}
		d, _ := c.put("a", reference, ociManifest, manifest)
		return d
	}
	replaced := put("tagged", "replaced")
	child := put("", "child")
	index, _ := c.pushIndex("a", "multi", child)
	tagged := put("tagged", "tagged")
	signature := put("", "signature", tagged)
	attestation := put("", "attestation", signature)
	untagged := put("", "untagged")
	orphan := put("", "signature of untagged", untagged)
	withoutLayers := imageOf()
	withoutLayers["annotations"] = map[string]string{"base": untagged.String()}
	named, _ := c.put("a", "named", ociManifest, withoutLayers)
	about := put("about", "about", untagged)
	// An unfinished upload, and a blob whose manifest is not pushed yet.
	c.must(http.StatusAccepted, "POST", "/v2/b/blobs/uploads/", nil)
	c.pushBlob("b", "no manifest")
	kept := []digest.Digest{child, index, tagged, signature, attestation, named, about}

	if result, report := collectNow(t, root, gc.Request{DeleteUntagged: true, Grace: time.Hour}); result.Manifests != 0 ||
		result.Blobs != 0 || result.Kept != 1 {
		t.Errorf("within the grace period: %+v\n%s", result, report)
	}
	age(t, root, 2*time.Hour)
	// An old blob that a push has just mounted, before it sends its manifest.
	c.must(http.StatusCreated, "POST", "/v2/c/blobs/uploads/?mount="+digest.FromString("no manifest").String(), nil)
	if result, _ := collectNow(t, root, gc.Request{DryRun: true, Grace: time.Hour}); result != (gc.Result{Kept: 1}) {
		t.Errorf("just mounted: %+v", result)
	}
	result, report := collectNow(t, root, gc.Request{DeleteUntagged: true, Grace: time.Hour})
	if result.Manifests != 3 || result.Blobs != 6 || result.Kept != 1 {
		t.Errorf("%+v\n%s", result, report)
	}
	for _, gone := range []digest.Digest{untagged, orphan, replaced} {
		c.must(http.StatusNotFound, "GET", "/v2/a/manifests/"+gone.String(), nil, "Accept", ociManifest)
	}
	history := filepath.Join(root, storage.RepositoriesPath, "a/_manifests/tags/tagged/index/sha256")
	if found, err := os.ReadDir(history); err != nil || len(found) != 1 || found[0].Name() != tagged.Encoded() {
		t.Errorf("history of the tag: %v, %v", found, err)
	}
	for _, d := range kept {
		c.must(http.StatusOK, "GET", "/v2/a/manifests/"+d.String(), nil, "Accept", ociManifest+", "+ociIndex)
	}
	for _, name := range []string{"child", "tagged", "signature", "attestation", "about"} {
		c.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("layer of "+name).String(), nil)
	}
	age(t, root, 2*time.Hour)
	// Only in this process: a client was told that the blob exists.
	i.server.collector.Times = quick
	c.must(http.StatusOK, "HEAD", "/v2/b/blobs/"+digest.FromString("no manifest").String(), nil)
	if events := c.collect(gc.Request{Grace: time.Hour}); events[len(events)-1].Result.Kept != 1 {
		t.Errorf("just checked: %+v", events)
	}
	if result, report := collectNow(t, root, gc.Request{Grace: time.Hour}); result.Blobs != 1 {
		t.Errorf("%+v\n%s", result, report)
	}
}

func TestInvalidManifestPreventsCollection(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "v1", "layer")
	c.pushBlob("a", "garbage")
	writeFile(t, filepath.Join(i.root, storage.BlobPath(d)), []byte("not a manifest"))
	_, err := fileLeases(t, i.root).Collect(t.Context(), gc.Request{Timeout: time.Minute},
		func(gc.Event) {})
	if err == nil || !strings.Contains(err.Error(), d.String()) || !strings.Contains(err.Error(), "nothing is removed") {
		t.Errorf("%v", err)
	}
	c.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("garbage").String(), nil)
	c.pushImage("a", "v2", "layer of another") // manifests are accepted again
}

func TestNextCollectionContinuesAfterATimeout(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	const blobs = 2 * storage.Concurrency // more than are removed at once
	for n := range blobs {
		c.pushBlob("a", fmt.Sprint(n))
	}
	var result gc.Result
	var err error
	// a busy machine needs more time
	for timeout := time.Second; result.Blobs == 0 && timeout < time.Minute; timeout *= 2 {
		var once sync.Once
		result, err = fileLeases(t, i.root).Collect(t.Context(), gc.Request{Timeout: timeout},
			func(e gc.Event) {
				if e.Removed != nil {
					once.Do(func() { time.Sleep(timeout) })
				}
			})
	}
	if err == nil || !strings.Contains(err.Error(), "the next collection") || result.Blobs == 0 || result.Blobs == blobs {
		t.Errorf("%+v, %v", result, err)
	}
	rest, _ := collectNow(t, i.root, gc.Request{})
	if result.Blobs+rest.Blobs != blobs {
		t.Errorf("%+v and %+v", result, rest)
	}
}

// age sets the time of all files to that long ago.
func age(t *testing.T, root string, d time.Duration) {
	t.Helper()
	at := time.Now().Add(-d)
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		err = errors.Join(err, os.Chtimes(path, at, at))
		if strings.HasSuffix(path, ".tmp") && errors.Is(err, fs.ErrNotExist) {
			return nil // a running registry has renamed it
		}
		return err
	})
	require.NoError(t, err)
}

// pastDriver is a storage whose clock is behind, as the lease's file shows.
type pastDriver struct {
	storagedriver.StorageDriver
	behind time.Duration
}

func (d pastDriver) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	info, err := d.StorageDriver.Stat(ctx, name)
	if err == nil && name == recordPath {
		info = storagedriver.FileInfoInternal{FileInfoFields: storagedriver.FileInfoFields{
			Path: name, Size: info.Size(), ModTime: info.ModTime().Add(-d.behind),
		}}
	}
	return info, err
}

func TestGracePeriodOfAStorageWhoseClockIsBehind(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	i.pusher().pushBlob("a", "just pushed")
	age(t, i.root, 2*time.Hour)
	for _, tt := range []struct {
		behind time.Duration
		want   gc.Result
	}{{2 * time.Hour, gc.Result{Kept: 1}}, {30 * time.Minute, gc.Result{Blobs: 1, Bytes: 11}}} {
		leases := fileLeases(t, i.root, func(driver storagedriver.StorageDriver) storagedriver.StorageDriver {
			return pastDriver{driver, tt.behind}
		})
		result, err := leases.Collect(t.Context(), gc.Request{Grace: time.Hour, Timeout: time.Minute},
			func(gc.Event) {})
		if err != nil || result != tt.want {
			t.Errorf("%s behind: %+v, %v, want %+v", tt.behind, result, err, tt.want)
		}
	}
}

// vanishingDriver removes a directory after it was found and before it is listed.
type vanishingDriver struct {
	storagedriver.StorageDriver
	base string // of that directory
}

func (d vanishingDriver) List(ctx context.Context, name string) ([]string, error) {
	if path.Base(name) == d.base {
		if err := d.Delete(ctx, name); err != nil {
			return nil, err
		}
	}
	return d.StorageDriver.List(ctx, name)
}

func (d vanishingDriver) Walk(ctx context.Context, from string, f storagedriver.WalkFn,
	options ...func(*storagedriver.WalkOptions)) error {
	return storagedriver.WalkFallback(ctx, d, from, f, options...)
}

func TestTagDeletedDuringACollection(t *testing.T) {
	t.Parallel()
	filesystemOnly(t) // S3 is not listed one directory after another
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	c := i.pusher()
	c.pushImage("a", "deleted", "layer of a")
	c.pushImage("a", "kept", "layer of a")
	kept, _ := c.pushImage("b", "kept", "layer of b")
	leases := fileLeases(t, root, func(driver storagedriver.StorageDriver) storagedriver.StorageDriver {
		return vanishingDriver{driver, "deleted"}
	})
	result, err := leases.Collect(t.Context(), gc.Request{DeleteUntagged: true, Timeout: time.Minute},
		func(gc.Event) {})
	require.NoError(t, err)
	if result != (gc.Result{}) {
		t.Errorf("%+v", result)
	}
	c.must(http.StatusOK, "GET", "/v2/b/manifests/"+kept.String(), nil, "Accept", ociManifest)
	for _, name := range []string{"a", "b"} {
		c.must(http.StatusOK, "GET", "/v2/"+name+"/manifests/kept", nil, "Accept", ociManifest)
		c.must(http.StatusOK, "GET", "/v2/"+name+"/blobs/"+digest.FromString("layer of "+name).String(), nil)
	}
}
