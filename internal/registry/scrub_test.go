package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// scrub reads all content and returns the problems, one per line, and the result.
func (c client) scrub() (problems []string, result scrub.Result) {
	c.t.Helper()
	a := c.must(http.StatusOK, "POST", scrub.Path+"?rate=1000000000", nil)
	decoder := json.NewDecoder(strings.NewReader(a.body))
	for {
		var e scrub.Event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			c.t.Fatalf("no result: %s", a.body)
		} else if err != nil {
			c.t.Fatal(err)
		}
		switch {
		case e.Error != "":
			c.t.Fatal(e.Error)
		case e.Problem != nil:
			problems = append(problems, e.Problem.String())
		case e.Result != nil:
			return problems, *e.Result
		}
	}
}

// flip returns content of the same size with another digest.
func flip(content string) string { return "X" + content[1:] }

func TestScrub(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c, driver := i.pusher(), i.server.source.Driver
	ctx := t.Context()
	var digests []digest.Digest
	for _, name := range []string{"one", "two", "three", "four", "five", "six", "seven"} {
		d, _ := c.pushImage("a", name, "layer of "+name)
		digests = append(digests, d)
	}
	c.pushImage("b", "v1", "layer of one")
	c.pushIndex("a", "multi", digests[:2]...)
	untagged, manifest := c.pushImage("a", "six", "layer of untagged")
	c.pushImage("a", "six", "layer of six")
	garbage := c.pushBlob("a", "garbage")
	if problems, result := c.scrub(); len(problems) > 0 || result.Problems != 0 || result.Bytes == 0 {
		t.Fatalf("%q, %+v", problems, result)
	}

	layer := func(name string) digest.Digest { return digest.FromString("layer of " + name) }
	remove := func(path string) {
		t.Helper()
		if err := driver.Delete(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	threeManifest := c.manifestOf("a", "three")
	three := digest.FromString(threeManifest)
	i.overwrite(storage.BlobPath(layer("one")), flip("layer of one"))
	remove(storage.BlobPath(layer("two")))
	i.overwrite(storage.BlobPath(three), flip(threeManifest))
	remove(storage.LayerPath("a", layer("four")))
	i.overwrite(storage.LayerPath("a", layer("five")), "")
	i.overwrite(storage.TagPath("a", "seven"), "")
	i.overwrite(storage.BlobPath(layer("untagged")), "short")
	i.overwrite(storage.BlobPath(garbage), flip("garbage"))
	want := []string{
		"damaged " + garbage.String() + " (no image needs it)",
		"damaged " + layer("one").String() + " a:multi a:one b:v1",
		"damaged " + layer("untagged").String() + " a@" + untagged.String(),
		"damaged " + three.String() + " a:three",
		"damaged tag a:seven",
		"missing " + layer("five").String() + " a:five",
		"missing " + layer("four").String() + " a:four",
		"missing " + layer("two").String() + " a:multi a:two",
	}
	slices.Sort(want)
	for range 2 {
		problems, result := c.scrub()
		slices.Sort(problems)
		if !slices.Equal(problems, want) || result.Problems != len(want) {
			t.Errorf("%s\nwant\n%s\n%+v", strings.Join(problems, "\n"), strings.Join(want, "\n"), result)
		}
		i.wantMetric("zarf_registry_scrub_problems", float64(len(want)))
	}
	status := i.loaded().Scrub
	if status == nil || status.Problems != len(want) || !slices.Contains(status.Images, "a:three") ||
		time.Since(status.FinishedAt) > time.Minute {
		t.Errorf("status %+v", status)
	}

	// Content of the right size is known to be damaged now, so a push replaces it.
	for _, name := range []string{"one", "two", "three", "four", "five", "seven"} {
		c.must(http.StatusNotFound, "HEAD", "/v2/a/manifests/"+name, nil)
		if name == "one" {
			c.must(http.StatusNotFound, "HEAD", "/v2/a/blobs/"+layer(name).String(), nil)
			c.must(http.StatusNotFound, "GET", "/v2/a/blobs/"+layer(name).String(), nil)
		}
		c.pushImage("a", name, "layer of "+name)
	}
	c.pushBlob("a", "layer of untagged")
	c.pushManifest("a", untagged.String(), manifest)
	collectNow(t, i.root, gc.Request{})
	i.server.scrubber.Refresh(t.Context())
	i.wantMetric("zarf_registry_scrub_problems", 0)
	if status := i.loaded().Scrub; status == nil || status.Problems != 0 || status.Images != nil {
		t.Errorf("status %+v", status)
	}
	if problems, _ := c.scrub(); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
}

// manifestOf returns the content of a manifest.
func (c client) manifestOf(repository, reference string) string {
	c.t.Helper()
	return c.must(http.StatusOK, "GET", "/v2/"+repository+"/manifests/"+reference, nil).body
}

// An image that is deleted is no problem any more.
func TestScrubForgetsDeletedImages(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	d, _ := c.pushImage("a", "v1", "layer")
	i.overwrite(storage.BlobPath(digest.FromString("layer")), "Layer")
	if problems, _ := c.scrub(); len(problems) != 1 {
		t.Fatalf("%q", problems)
	}
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+d.String(), nil)
	i.server.scrubber.Refresh(t.Context())
	i.wantMetric("zarf_registry_scrub_problems", 0)
}

// A scrub that was interrupted continues, at its rate, and reports what it had found.
func TestScrubContinues(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	c.pushImage("a", "v1", "layer")
	var blobs []digest.Digest
	for n := range 20 {
		blobs = append(blobs, c.pushBlob("a", random(100_000)+string(rune('a'+n))))
	}
	slices.Sort(blobs)
	i.overwrite(storage.BlobPath(digest.FromString("layer")), "Layer")
	ctx, cancel := context.WithCancel(t.Context())
	read := int64(0)
	progress := func(p *scrub.Progress) {
		if read = p.Bytes; read > 1_000_000 {
			cancel()
		}
	}
	began := time.Now()
	_, err := i.server.scrubber.Run(ctx, scrub.Request{Rate: 4_000_000}, progress, func(scrub.Problem) {})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("read %d bytes in %s", read, took)
	}
	var record struct {
		Last     digest.Digest
		Finished time.Time
	}
	data, err := i.server.source.Driver.GetContent(t.Context(), "/docker/registry/v2/zarf-registry/scrub.json")
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil || record.Last == "" || record.Last >= blobs[19] || !record.Finished.IsZero() {
		t.Fatalf("record %+v, %v", record, err)
	}
	// What was read is not read again, so this damage remains unnoticed until the next one.
	n, found := slices.BinarySearch(blobs, record.Last)
	if !found { // a manifest
		n--
	}
	damaged := blobs[n]
	i.overwrite(storage.BlobPath(damaged), strings.Repeat("x", i.sizeOf(damaged)))
	want := []string{"damaged " + digest.FromString("layer").String() + " a:v1"}
	if problems, _ := c.scrub(); !slices.Equal(problems, want) {
		t.Errorf("%q, want %q", problems, want)
	}
	if problems, _ := c.scrub(); len(problems) != 2 {
		t.Errorf("then %q", problems)
	}
}

// Requests to S3 take longer than reading a small blob.
func TestScrubReadsSmallBlobsAtOnce(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	for n := range 2 * storage.Concurrency {
		c.pushBlob("a", fmt.Sprint("blob ", n))
	}
	c.pushBlob("a", random(300_000))
	var reading, most atomic.Int64
	observe(i, func(path string) {
		if storage.BlobData.MatchString(path) {
			most.Store(max(most.Load(), reading.Add(1)))
			time.Sleep(50 * time.Millisecond)
			reading.Add(-1)
		}
	})
	if problems, result := c.scrub(); len(problems) > 0 || result.Blobs != 2*storage.Concurrency+1 {
		t.Errorf("%q, %+v", problems, result)
	}
	if got := most.Load(); got < storage.Concurrency/2 || got > storage.Concurrency {
		t.Errorf("read %d blobs at once", got)
	}
}

func (i *instance) sizeOf(d digest.Digest) int {
	i.t.Helper()
	info, err := i.server.source.Driver.Stat(context.Background(), storage.BlobPath(d))
	if err != nil {
		i.t.Fatal(err)
	}
	return int(info.Size())
}

func TestScrubRequests(t *testing.T) {
	t.Parallel()
	i := open(t, newTestCA(t), t.TempDir())
	blob := random(100_000)
	var reading atomic.Bool
	observe(i, func(path string) {
		if path == storage.BlobPath(digest.FromString(blob)) {
			reading.Store(true)
		}
	})
	i.run()
	c := i.pusher()
	for _, query := range []string{"?rate=0", "?rate=x", "?speed=1", "?rate=1&rate=2"} {
		c.must(http.StatusBadRequest, "POST", scrub.Path+query, nil)
	}
	c.pushBlob("a", blob)
	reading.Store(false)
	stop := c.background(scrub.Path + "?rate=1000")
	eventually(t, "it is running", reading.Load)
	c.must(http.StatusConflict, "POST", scrub.Path, nil)
	stop()
	i.wantMetric("zarf_registry_scrub_problems", -1) // before the first
	if got := i.loaded().Scrub; got != (*loaded.Scrub)(nil) {
		t.Errorf("status %+v", got)
	}
}
