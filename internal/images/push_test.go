package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
)

func TestPush(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "docker.io/library/hello:1", 100_000, "amd64", "arm64")
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	total := graph.Size(nodes)

	first := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]
	server.CheckWhole(t, store, image)
	if first.BlobsSent != len(nodes) || first.BlobsSkipped != 0 || first.BytesSent != total || first.BytesSkipped != 0 {
		t.Errorf("first push: %+v, want %d blobs and %d bytes sent", first, len(nodes), total)
	}
	if want := server.Host() + "/library/hello:1"; first.Reference != want || first.Digest != image.Descriptor.Digest ||
		first.Image != image.Reference {
		t.Errorf("first push: %+v, want reference %s", first, want)
	}

	server.Requests()
	again := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]
	if again.BlobsSent != 0 || again.BlobsSkipped != len(nodes) || again.BytesSent != 0 || again.BytesSkipped != total {
		t.Errorf("second push: %+v, want all skipped", again)
	}
	if n := server.Count("P"); n != 0 {
		t.Errorf("second push: %d write requests", n)
	}

	image.Reference = "docker.io/library/hello:2"
	renamed := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]
	server.CheckWhole(t, store, image)
	if renamed.BlobsSent != 1 || renamed.BytesSent != image.Descriptor.Size {
		t.Errorf("push under another tag: %+v, want only the index sent", renamed)
	}

	other := imagestest.Index(t, store, "hello:3", 100_000, "amd64", "arm64", "riscv64")
	more := mustPush(t, graph.Items(store, other), server.NewClient(t, nil), Options{})[0]
	server.CheckWhole(t, store, other)
	nodes = imagestest.Nodes(t, store, other.Descriptor)
	// Layer, configuration and manifest for riscv64, and the index.
	if more.BlobsSent != 4 || more.BlobsSkipped != len(nodes)-4 ||
		more.BytesSent+more.BytesSkipped != graph.Size(nodes) || more.BytesSent > 110_000 {
		t.Errorf("push of an image that shares most blobs: %+v, want 4 blobs sent", more)
	}
}

func TestPushAsksWhetherItFitsBeforeItSendsAnything(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	one, other := imagestest.Index(t, store, "one:1", 10_000, "amd64"), imagestest.Index(t, store, "other:1", 20_000, "amd64")
	want := map[digest.Digest]int64{}
	for _, image := range []graph.Image{one, other} {
		for _, desc := range imagestest.Nodes(t, store, image.Descriptor) {
			want[desc.Digest] = desc.Size
		}
	}
	full := errors.New("it does not fit")
	items := graph.Items(store, one, other, one)
	items[2].Reference = "again:1"
	_, err := Push(t.Context(), items, server.NewClient(t, nil), Options{
		Fits: func(_ context.Context, content []ocispec.Descriptor) error {
			got := map[digest.Digest]int64{}
			for _, desc := range content {
				got[desc.Digest] = desc.Size
			}
			if len(content) != len(want) || !maps.Equal(got, want) {
				t.Errorf("%d blobs: %v, want %v", len(content), got, want)
			}
			return full
		},
	})
	if !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	if n := server.Count(""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestPushByDigest(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 100, "amd64")
	image.Reference = "quay.io/a/b:1@" + image.Descriptor.Digest.String()
	result := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]
	server.CheckWhole(t, store, image)
	if want := server.Host() + "/a/b@" + image.Descriptor.Digest.String(); result.Reference != want {
		t.Errorf("reference %s, want %s", result.Reference, want)
	}

	other := imagestest.Index(t, store, image.Reference, 200, "amd64")
	_, err := Push(t.Context(), graph.Items(store, other), server.NewClient(t, nil), Options{})
	if err == nil || !strings.Contains(err.Error(), "its reference has digest "+image.Descriptor.Digest.String()+
		", but its content has "+other.Descriptor.Digest.String()) {
		t.Errorf("error: %v", err)
	}
}

func TestResultAsJSON(t *testing.T) {
	got := string(imagestest.JSON(t, Result{Image: "a:1", Reference: "r/a:1", Digest: "sha256:abc", BlobsSent: 1, BytesSent: 2,
		BytesSkipped: 3, Duration: 1500 * time.Millisecond}))
	want := `{"image":"a:1","reference":"r/a:1","digest":"sha256:abc","blobsSent":1,"blobsMounted":0,"blobsSkipped":0,"bytesSent":2,"bytesReceived":0,"bytesSkipped":3,"seconds":1.5}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPushOmitsForeignLayers(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	config := imagestest.AddJSON(t, store, ocispec.MediaTypeImageConfig, ocispec.Image{})
	base := content.NewDescriptorFromBytes(oci.MediaTypeDockerForeignLayer, []byte("not here"))
	manifest := imagestest.AddJSON(t, store, oci.MediaTypeDockerManifest, map[string]any{
		"schemaVersion": 2, "mediaType": oci.MediaTypeDockerManifest, "config": config, "layers": []ocispec.Descriptor{base},
	})
	image := graph.Image{Reference: "windows:1", Descriptor: manifest}
	// distribution wants the layer's URL to be allowed, or the layer to be there;
	// what matters here is that it is not sent.
	server.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusCreated)
			return true
		}
		return false
	})
	if result := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]; result.BlobsSent != 2 {
		t.Errorf("%+v; want the configuration and the manifest sent", result)
	}
}

// progress records the progress of a push and checks that it is consistent.
type progress struct {
	t     *testing.T
	last  Progress
	calls int
	busy  atomic.Bool
}

func (p *progress) report(next Progress) {
	if p.busy.Swap(true) {
		p.t.Error("progress was reported concurrently")
	}
	defer p.busy.Store(false)
	p.calls++
	if next.Done < p.last.Done || next.Skipped < p.last.Skipped || p.calls > 1 && next.Total != p.last.Total ||
		next.Done+next.Skipped > next.Total {
		p.t.Errorf("progress went from %+v to %+v", p.last, next)
	}
	p.last = next
}

func (p *progress) checkDone() {
	p.t.Helper()
	if p.calls == 0 || p.last.Done+p.last.Skipped != p.last.Total {
		p.t.Errorf("progress ended with %+v after %d reports", p.last, p.calls)
	}
}

// Bytes count as sent when they are sent, not when a local blob is opened.
func TestPushProgressFollowsSentBytes(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "hello:1", 200_000, "amd64")
	var before int64
	mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{Concurrency: 1, Progress: func(p Progress) {
		if step := p.Done - before; step > 150_000 {
			t.Errorf("%d bytes were counted at once", step)
		}
		before = p.Done
	}})
}

func TestPushResumesAfterAnInterruption(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "big:1", 1<<20, "amd64", "arm64", "riscv64")
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	total := graph.Size(nodes)

	// The connection breaks permanently in the middle of the third large blob.
	var down atomic.Bool
	var uploads atomic.Int32
	server.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if down.Load() {
			drop(t, w)
			return true
		}
		if r.Method == http.MethodPut && r.ContentLength == 1<<20 && uploads.Add(1) == 3 {
			io.CopyN(io.Discard, r.Body, 300_000)
			down.Store(true)
			drop(t, w)
			return true
		}
		return false
	})
	p := &progress{t: t}
	_, err := Push(t.Context(), graph.Items(store, image), server.NewClient(t, func(o *remote.Options) { o.Retries = 1 }),
		Options{Concurrency: 1, Progress: p.report})
	if err == nil {
		t.Fatal("the first push did not fail")
	}
	if !strings.HasPrefix(err.Error(), "pushing image big:1 to "+server.Host()+": blob sha256:") {
		t.Errorf("the error names neither image nor blob: %v", err)
	}
	for _, request := range server.Requests() {
		if strings.HasPrefix(request, "PUT") && strings.Contains(request, "/manifests/1") {
			t.Error("the tag was written although the image is incomplete")
		}
	}

	server.SetFront(nil)
	firstSent := p.last.Done
	p = &progress{t: t}
	second := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{Progress: p.report})[0]
	p.checkDone()
	server.CheckWhole(t, store, image)
	if second.BytesSkipped < 2<<20 {
		t.Errorf("second push: %+v: the two stored large blobs were sent again", second)
	}
	if second.BytesSent+second.BytesSkipped != total || p.last.Done != second.BytesSent {
		t.Errorf("second push: %+v with progress %+v, want %d bytes in all", second, p.last, total)
	}
	if firstSent <= second.BytesSkipped {
		t.Errorf("first push: %d bytes sent, want more than the %d bytes that were stored", firstSent, second.BytesSkipped)
	}
}

// drop closes the connection without a response.
func drop(t *testing.T, w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	conn.Close()
}

// The registry stores the blob, but its response is lost.
func TestPushDoesNotRepeatStoredBlobs(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "hello:1", 200_000, "amd64")
	var faults atomic.Int32
	server.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || r.ContentLength != 200_000 || faults.Add(1) > 1 {
			return false
		}
		server.App.ServeHTTP(httptest.NewRecorder(), r)
		drop(t, w)
		return true
	})
	result := mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{})[0]
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	if faults.Load() != 1 || result.BytesSent != graph.Size(nodes) {
		t.Errorf("%d uploads of the large blob, %+v; want 1, and %d bytes", faults.Load(), result, graph.Size(nodes))
	}
	server.CheckWhole(t, store, image)
}

func TestPushErrors(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "hello:1", 300_000, "amd64")
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	altered := copied(store, nodes)
	large := nodes[2]
	if large.Size != 300_000 {
		t.Fatalf("the test expects another order of blobs: %+v", nodes)
	}
	altered.Put(large.Digest, blob.FromBytes(imagestest.Noise(99, 300_000)))
	withoutManifest := copied(store, nodes, image.Descriptor.Digest)
	withoutBlob := copied(store, nodes, large.Digest)
	const closed = "127.0.0.1:1"

	for name, c := range map[string]struct {
		src       graph.Content
		reference string
		client    func(*remote.Options)
		ctx       context.Context
		want      []string
		quick     bool // permanent errors are not retried
	}{
		"an altered blob is not sent completely": {src: altered, want: []string{"blob " + large.Digest.String() +
			": does not match its digest: it was altered or damaged"}, quick: true},
		"a missing blob": {src: withoutBlob, want: []string{"blob " + large.Digest.String() +
			": not found"}, quick: true},
		"a missing index": {src: withoutManifest,
			want: []string{"index " + image.Descriptor.Digest.String() + ": not found"}, quick: true},
		"an invalid name": {reference: "No:1", want: []string{`image reference "No:1"`, "must be lowercase"}, quick: true},
		"no credential": {client: func(o *remote.Options) { o.Credential, o.LoginHint = nil, "ask your administrator" },
			want: []string{"pushing image hello:1 to " + server.Host() + ": ", " sha256:",
				"requires a credential: ask your administrator"}, quick: true},
		"an unreachable registry": {client: func(o *remote.Options) { o.Host = closed; o.Retries = 1 },
			want: []string{"connection refused"}},
		"no retries": {client: func(o *remote.Options) { o.Host = closed; o.Retries = -1 },
			want: []string{"connection refused"}, quick: true},
		"a context that has ended": {ctx: cancelled(t), want: []string{"context canceled"}, quick: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			reg := server.NewClient(t, func(o *remote.Options) {
				o.Log = slog.New(slog.NewTextHandler(&log, nil))
				if c.client != nil {
					c.client(o)
				}
			})
			src, ctx, image := c.src, c.ctx, image
			if src == nil {
				src = store
			}
			if ctx == nil {
				ctx = t.Context()
			}
			if c.reference != "" {
				image.Reference = c.reference
			}
			_, err := Push(ctx, graph.Items(src, image), reg, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(c.want, "image "+image.Name()) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\nlacks %q", err, want)
				}
			}
			if c.quick && log.Len() > 0 {
				t.Errorf("tried again:\n%s", log.String())
			}
			if !c.quick && log.Len() == 0 {
				t.Error("no retry")
			}
			for _, request := range server.Requests() {
				if strings.HasPrefix(request, "PUT") && strings.Contains(request, "/manifests/") {
					t.Errorf("a manifest was written: %s", request)
				}
			}
		})
	}
}

func TestCancelledPushStopsAtOnce(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "hello:1", 4<<20, "amd64", "arm64")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Push(ctx, graph.Items(store, image), server.NewClient(t, nil), Options{Progress: func(p Progress) {
		if p.Done > 2<<20 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error: %v", err)
	}
	p := &progress{t: t}
	mustPush(t, graph.Items(store, image), server.NewClient(t, nil), Options{Progress: p.report})
	p.checkDone()
	server.CheckWhole(t, store, image)
}
