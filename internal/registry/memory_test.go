package registry

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"runtime/debug"
	heap "runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// liveHeap returns how much memory is in use after a garbage collection.
func liveHeap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// manyDigests is a manifest of 4 MiB with random digests.
func manyDigests() string {
	var b strings.Builder
	b.WriteString(`{"schemaVersion":2,"x":[""`)
	for b.Len() < oci.MaxManifestSize-100 {
		fmt.Fprintf(&b, `,"sha256:%016x%016x%016x%016x"`, rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64())
	}
	return b.String() + "]}"
}

// Claim: What the registry refuses takes no memory.
//
// It runs alone, because it measures.
func TestRefusedManifestsTakeNoMemory(t *testing.T) {
	i := start(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	before := liveHeap()
	for range 60 {
		a := c.must(http.StatusBadRequest, "PUT", "/v2/a/manifests/many", strings.NewReader(manyDigests()), "Content-Type",
			ociManifest)
		mentions(t, a.body, "MANIFEST_INVALID", "10000 digests")
	}
	if grown := (liveHeap() - before) >> 20; grown > 10 {
		t.Errorf("%d MB more after 60 refused manifests", grown)
	}
}

// Manifests that an earlier release accepted, or distribution.
//
// It runs alone, because it measures.
func TestStoredManifestsOfEmptyElementsTakeLittleMemory(t *testing.T) {
	filesystemOnly(t)
	root := t.TempDir()
	i := start(t, newTestCA(t), root)
	kept, _ := i.pusher().pushImage("a", "v1", "layer")
	var digests []digest.Digest
	for n := range 16 {
		content := fmt.Sprintf(`{"schemaVersion":2,"n":%d,"layers":[{}%s],"x":[{}%[2]s]}`, n,
			strings.Repeat(",{}", oci.MaxManifestSize/7))
		d := digest.FromString(content)
		digests = append(digests, d)
		for path, content := range map[string]string{storage.BlobPath(d): content, storage.RevisionPath("a", d): d.String()} {
			require.NoError(t, i.server.source.Driver.PutContent(t.Context(), path, []byte(content)))
		}
	}
	before := liveHeap()
	peak := watchHeap(t)
	var clients sync.WaitGroup
	for _, d := range digests {
		clients.Go(func() {
			for _, method := range []string{"GET", "HEAD"} {
				a, err := i.pusher().send(method, "/v2/a/manifests/"+d.String(), nil)
				if err != nil || a.StatusCode != http.StatusNotFound {
					t.Errorf("%s of a manifest of empty elements: %d, %v", method, a.StatusCode, err)
				}
			}
		})
	}
	clients.Go(func() {
		a := i.pusher().must(http.StatusOK, "GET", catalog.Path, nil)
		mentions(t, a.body, kept.String(), digests[0].String())
	})
	clients.Go(func() { collectNow(t, root, gc.Request{}) })
	clients.Wait()
	if grown := (peak() - before) >> 20; grown > 200 {
		t.Errorf("%d MB more while 16 manifests of empty elements were read", grown)
	}
}

// watchHeap returns a function that returns the largest size of the heap since then. It has little garbage until the test
// ends: the collector runs early.
func watchHeap(t *testing.T) (peak func() int64) {
	t.Helper()
	percent := debug.SetGCPercent(10)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	stop, ended := make(chan struct{}), make(chan int64)
	go func() {
		var largest int64
		sample := []heap.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			heap.Read(sample)
			largest = max(largest, int64(sample[0].Value.Uint64()))
			select {
			case <-stop:
				ended <- largest
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-ended
	}
}
