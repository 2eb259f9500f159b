package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// origin is a registry to pull from, with the options for pulling.
type origin struct {
	imagestest.Registry
	options source.ResolveOptions
	store   *blobstore.Store
}

func newOrigin(t *testing.T) *origin {
	t.Helper()
	server := imagestest.NewRegistry(t)
	reg := server.NewClient(t, nil)
	store := openStore(t, t.TempDir())
	return &origin{server, source.ResolveOptions{
		Registry: func(_ context.Context, host string) (*remote.Registry, error) {
			if host != server.Host() {
				return nil, fmt.Errorf("no such host in this test: %s", host)
			}
			return reg, nil
		},
		Store: store,
	}, store}
}

func openStore(t *testing.T, dir string) *blobstore.Store {
	t.Helper()
	store := require.Value(blobstore.Open(dir, blobstore.Options{}))(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// fill pushes images to the registry and returns their names there.
func (o *origin) fill(t *testing.T, from graph.Content, list ...graph.Image) []string {
	t.Helper()
	mustPush(t, graph.Items(from, list...), o.NewClient(t, nil), Options{})
	var refs []string
	for _, image := range list {
		repository, tag, err := name.Repository(image.Reference)
		require.NoError(t, err)
		refs = append(refs, name.Join(o.Host()+"/"+repository, tag))
	}
	o.Requests()
	return refs
}

func (o *origin) resolve(t *testing.T, change func(*source.ResolveOptions), refs ...string) []graph.Item {
	t.Helper()
	opts := o.options
	if change != nil {
		change(&opts)
	}
	return require.Value(source.Resolve(t.Context(), refs, opts))(t)
}

// pullBoth pulls to a layout and to an archive and opens both.
func pullBoth(t *testing.T, items []graph.Item) map[string]*source.Source {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	p := &progress{t: t}
	results := pullToLayout(t, dir, items, Options{Progress: p.report})
	p.checkDone()
	if len(results) != len(items) {
		t.Errorf("%d results of %d images", len(results), len(items))
	}
	path := filepath.Join(t.TempDir(), "images.tar")
	pullToArchive(t, path, items, nil)
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("next to the archive: %v, %v", files, err)
	}
	return map[string]*source.Source{"layout": imagestest.Open(t, source.Open, dir), "archive": imagestest.Open(t, source.Open, path)}
}

// artifact creates a manifest of any kind with layers of these sizes.
func artifact(t testing.TB, store *graph.Store, reference, mediaType, configType, layerType string,
	subject *ocispec.Descriptor, layers ...[]byte) graph.Image {
	t.Helper()
	add := func(mediaType string, b []byte) ocispec.Descriptor {
		return imagestest.Add(store, digest.SHA256, mediaType, b)
	}
	manifest := ocispec.Manifest{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   mediaType,
		Config:      add(configType, []byte(`{"name":"x","of":"`+reference+`"}`)),
		Layers:      []ocispec.Descriptor{},
		Subject:     subject,
		Annotations: map[string]string{"org.example": "unchanged"},
	}
	for _, layer := range layers {
		manifest.Layers = append(manifest.Layers, add(layerType, layer))
	}
	// Formatted unlike our own manifests, because it must be copied byte for byte.
	raw := require.Value(json.MarshalIndent(manifest, "", "   "))(t)
	return graph.Image{Reference: reference, Descriptor: add(mediaType, raw)}
}

// TestRoundTrips copies artifacts of every kind from one registry to another through a layout and an
// archive, and compares all bytes.
func TestRoundTrips(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	index := imagestest.Index(t, store, "docker.io/library/multi:1", 60_000, "amd64", "arm64", "riscv64")
	chart := artifact(t, store, "quay.io/charts/app:1.2.3", ocispec.MediaTypeImageManifest,
		"application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", nil, imagestest.Noise(7,
			5000), imagestest.Noise(8, 300))
	docker := artifact(t, store, "docker.io/team/v2:1", oci.MediaTypeDockerManifest, oci.MediaTypeDockerConfig,
		"application/vnd.docker.image.rootfs.diff.tar.gzip", nil, imagestest.Noise(9, 1000))
	odd := artifact(t, store, "docker.io/team/odd:1", ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig,
		ocispec.MediaTypeImageLayer, nil, nil, imagestest.Noise(10, 1), imagestest.Noise(11, 70_000))
	signature := artifact(t, store, "", ocispec.MediaTypeImageManifest,
		"application/vnd.dev.cosign.artifact.sig.v1+json", "application/vnd.dev.cosign.simplesigning.v1+json",
		&index.Descriptor, []byte(`{"critical":{}}`))
	signature.Reference = "docker.io/library/multi@" + signature.Descriptor.Digest.String()
	old := artifact(t, store, "docker.io/team/v2:sha256-"+docker.Descriptor.Digest.Encoded()+".sig",
		ocispec.MediaTypeImageManifest,
		ocispec.MediaTypeImageConfig, "application/vnd.dev.cosign.simplesigning.v1+json", nil,
		[]byte(`{"critical":{"old":1}}`))
	layer := imagestest.Tar(t, imagestest.File{Name: "a", Data: imagestest.Noise(1, 50_000)})
	saved := imagestest.Open(t, source.Open, imagestest.Temp(t, "saved.tar", imagestest.Tar(t, imagestest.Docker(t, []string{"docker.io/team/saved:1"}, layer,
		imagestest.Gzip(t, layer))...)))

	refs := from.fill(t, store, index, chart, docker, odd, signature, old)
	refs = append(refs, from.fill(t, saved, saved.Images()...)...)
	items := from.resolve(t, nil, refs...)
	if len(items) != 7 {
		t.Fatalf("%d items", len(items))
	}
	for kind, source := range pullBoth(t, items) {
		t.Run(kind, func(t *testing.T) {
			to := imagestest.NewRegistry(t)
			imagePush := mustItems(t, source, "")
			if len(imagePush) != len(items) {
				t.Errorf("%d images of %d", len(imagePush), len(items))
			}
			mustPush(t, imagePush, to.NewClient(t, nil), Options{})
			sameInBoth(t, from.Registry, to, from.options.Store, items)
			referrers := string(to.Get(t, "library/multi/manifests/sha256-"+index.Descriptor.Digest.Encoded()))
			if !strings.Contains(referrers, signature.Descriptor.Digest.String()) {
				t.Errorf("the registry does not list the signature: %s", referrers)
			}
		})
	}
	t.Run("directly between registries", func(t *testing.T) {
		to := imagestest.NewRegistry(t)
		other := from.resolve(t, func(o *source.ResolveOptions) { o.Store = openStore(t, t.TempDir()) }, refs...)
		p := &progress{t: t}
		results := mustPush(t, other, to.NewClient(t, nil), Options{Progress: p.report})
		p.checkDone()
		sameInBoth(t, from.Registry, to, from.options.Store, items)
		for _, r := range results {
			if r.BytesReceived == 0 || r.BytesSent == 0 {
				t.Errorf("%+v", r)
			}
		}
		from.Requests()
		mustPush(t, other, to.NewClient(t, nil), Options{})
		if n := from.Count("GET"); n != 0 {
			t.Errorf("%d reads for images that already exist", n)
		}
	})
}

// sameInBoth compares the images of two registries.
func sameInBoth(t *testing.T, from, to imagestest.Registry, store *blobstore.Store, items []graph.Item) {
	t.Helper()
	for _, item := range items {
		repository, tag, err := name.Repository(item.Reference)
		require.NoError(t, err)
		paths := []string{repository + "/manifests/" + tag}
		for _, node := range imagestest.Nodes(t, item.Content, item.Descriptor) {
			kind := "/blobs/"
			if oci.IsManifestOrIndex(node.MediaType) {
				kind = "/manifests/"
			}
			paths = append(paths, repository+kind+node.Digest.String())
		}
		for _, path := range paths {
			if !bytes.Equal(from.Get(t, path), to.Get(t, path)) {
				t.Errorf("%s differs", path)
			}
		}
	}
}

// TestImagesThatShareLayers pulls and pushes 200 images: shared layers must be transferred once.
func TestImagesThatShareLayers(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	n := 200
	if testing.Short() {
		n = 50
		t.Logf("SHORTENED: %d images; 200 without -short", n)
	}
	var list []graph.Image
	base, family := imagestest.Noise(1, 200_000), [][]byte{imagestest.Noise(2, 100_000), imagestest.Noise(3, 100_000), imagestest.Noise(4, 100_000)}
	for i := range n {
		list = append(list, artifact(t, store, fmt.Sprintf("docker.io/many/app-%d:1", i), ocispec.MediaTypeImageManifest,
			ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayer, nil, base, family[i%3],
			imagestest.Noise(uint64(100+i), 500)))
	}
	refs := from.fill(t, store, list...)
	items := from.resolve(t, nil, refs...)
	dir := t.TempDir()
	from.Requests()
	results := pullToLayout(t, dir, items, Options{})
	shared, own := int64(200_000+3*100_000), int64(n*500)
	received := int64(0)
	for _, r := range results {
		received += r.BytesReceived
	}
	if received > shared+own+int64(n)*100 { // and configurations
		t.Errorf("%d bytes received", received)
	}
	if reads := from.Count("GET"); reads > 4+2*n {
		t.Errorf("%d reads", reads)
	}

	to := imagestest.NewRegistry(t)
	results = mustPush(t, mustItems(t, imagestest.Open(t, source.Open, dir), ""), to.NewClient(t, nil), Options{})
	sent, mounted := int64(0), 0
	for _, r := range results {
		sent += r.BytesSent
		mounted += r.BlobsMounted
	}
	if sent > shared+own+int64(n)*1500 { // and configurations and manifests
		t.Errorf("%d bytes sent", sent)
	}
	if mounted != 2*n-4 {
		t.Errorf("%d blobs mounted, want each shared layer once for each repository but one", mounted)
	}
	sameInBoth(t, from.Registry, to, from.store, items[:10])
}

func TestResolve(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	multi := imagestest.Index(t, store, "multi:1", 5000, "amd64", "arm64", "riscv64")
	chart := artifact(t, store, "chart:1", ocispec.MediaTypeImageManifest, "application/vnd.cncf.helm.config.v1+json",
		"application/x", nil, imagestest.Noise(7, 500))
	refs := from.fill(t, store, multi, chart)
	byDigest := from.Host() + "/library/multi@" + multi.Descriptor.Digest.String()
	index := imagestest.Decode[ocispec.Index](t, store, multi.Descriptor)
	arm := index.Manifests[1]

	platforms := func(text string) func(*source.ResolveOptions) {
		return func(o *source.ResolveOptions) { o.Platforms = require.Value(graph.ParsePlatforms(text))(t) }
	}
	t.Run("one platform of a tag is that manifest", func(t *testing.T) {
		items := from.resolve(t, platforms("linux/arm64"), refs[0])
		if items[0].Descriptor.Digest != arm.Digest || len(items[0].Platforms) != 1 ||
			items[0].Platforms[0].Architecture != "arm64" {
			t.Errorf("%+v", items[0].Image)
		}
	})
	t.Run("several platforms are an index of those", func(t *testing.T) {
		items := from.resolve(t, platforms("linux/arm64,linux/amd64"), refs[0])
		part := imagestest.Decode[ocispec.Index](t, items[0].Content, items[0].Descriptor)
		if len(part.Manifests) != 2 || part.Manifests[0].Digest != index.Manifests[0].Digest ||
			part.Manifests[1].Digest != arm.Digest {
			t.Errorf("%+v", part)
		}
		for _, source := range pullBoth(t, items) {
			if got := source.Images()[0].Descriptor.Digest; got != items[0].Descriptor.Digest {
				t.Errorf("pulled %s", got)
			}
		}
	})
	t.Run("all platforms are the unchanged index", func(t *testing.T) {
		for _, text := range []string{"all", "linux/arm64,linux/amd64,linux/riscv64"} {
			if items := from.resolve(t, platforms(text), refs[0]); items[0].Descriptor.Digest != multi.Descriptor.Digest {
				t.Errorf("%s: %+v", text, items[0].Image)
			}
		}
	})
	t.Run("a digest keeps the whole index", func(t *testing.T) {
		items := from.resolve(t, platforms("linux/arm64"), byDigest)
		if items[0].Descriptor.Digest != multi.Descriptor.Digest || len(items[0].Platforms) != 3 {
			t.Errorf("%+v", items[0].Image)
		}
	})
	t.Run("a chart has no platform", func(t *testing.T) {
		if items := from.resolve(t, platforms("linux/s390x"),
			refs[1]); items[0].Descriptor.Digest != chart.Descriptor.Digest {
			t.Errorf("%+v", items[0].Image)
		}
	})
	t.Run("a duplicate name is one item", func(t *testing.T) {
		if items := from.resolve(t, nil, refs[0], refs[1], refs[0]); len(items) != 2 {
			t.Errorf("%d items", len(items))
		}
	})
	t.Run("all errors are reported together", func(t *testing.T) {
		opts := from.options
		platforms("linux/s390x")(&opts)
		_, err := source.Resolve(t.Context(), []string{refs[0], from.Host() + "/nothing:1", "No:1", "elsewhere.example.com/x",
			refs[1]}, opts)
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{
			"image " + refs[0] + ": no manifest for linux/s390x, only for linux/amd64,linux/arm64,linux/riscv64: choose with " +
				"--platform",
			"image " + from.Host() + "/nothing:1: ", "not found",
			`image reference "No:1"`,
			"image elsewhere.example.com/x: no such host in this test: elsewhere.example.com",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error\n%v\nlacks %q", err, want)
			}
		}
		if !errors.Is(err, errdef.ErrNotFound) {
			t.Error("the error is not errdef.ErrNotFound")
		}
	})
}

// TestReferrers copies the referrers of an image, from the registry's list and cosign's tags, and
// their referrers.
func TestReferrers(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "signed:1", 5000, "amd64", "arm64")
	note := func(reference string, subject *ocispec.Descriptor, text string) graph.Image {
		made := artifact(t, store, reference, ocispec.MediaTypeImageManifest, "application/vnd.example.note", "text/plain",
			subject, []byte(text))
		if reference == "" {
			made.Reference = "signed@" + made.Descriptor.Digest.String()
		}
		return made
	}
	signature := note("", &image.Descriptor, "signature")
	sbom := note("", &image.Descriptor, "sbom")
	ofSBOM := note("", &sbom.Descriptor, "signature of the sbom")
	tagged := note("signed:sha256-"+image.Descriptor.Digest.Encoded()+".sig", nil, "an older signature")
	from.fill(t, store, image, signature, sbom, ofSBOM, tagged)

	items := from.resolve(t, func(o *source.ResolveOptions) { o.Referrers = true }, from.Host()+"/library/signed:1")
	var got []string
	for _, item := range items {
		got = append(got, item.Descriptor.Digest.String())
	}
	want := []string{image.Descriptor.Digest.String()}
	for _, other := range []graph.Image{signature, sbom, tagged, ofSBOM} {
		want = append(want, other.Descriptor.Digest.String())
	}
	if len(got) != len(want) || got[0] != want[0] {
		t.Fatalf("got %v, want %v", got, want)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	to := imagestest.NewRegistry(t)
	for _, source := range pullBoth(t, items) {
		mustPush(t, mustItems(t, source, ""), to.NewClient(t, nil), Options{})
	}
	sameInBoth(t, from.Registry, to, from.store, items)
}

// A registry may list deleted referrers.
func TestDeletedReferrer(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "signed:1", 500, "amd64")
	refs := from.fill(t, store, image)
	gone := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte("{}"))
	from.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/manifests/sha256-"+image.Descriptor.Digest.Encoded()) {
			return false
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		w.Write(imagestest.JSON(t, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
			Manifests: []ocispec.Descriptor{gone}}))
		return true
	})
	var log bytes.Buffer
	items := from.resolve(t, func(o *source.ResolveOptions) {
		o.Referrers = true
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, refs...)
	if len(items) != 1 || !strings.Contains(log.String(), gone.Digest.String()) {
		t.Errorf("%d items; log: %s", len(items), log.String())
	}
}

func TestPullTwice(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	one, two := imagestest.Index(t, store, "a:1", 50_000, "amd64"), imagestest.Index(t, store, "b:1", 60_000, "amd64")
	refs := from.fill(t, store, one, two)
	dir := t.TempDir()
	pull := func(store *blobstore.Store, ref string) Result {
		t.Helper()
		items := from.resolve(t, func(o *source.ResolveOptions) { o.Store = store }, ref)
		return pullToLayout(t, dir, items, Options{})[0]
	}
	cache := t.TempDir()
	if r := pull(openStore(t, cache), refs[0]); r.BlobsSent == 0 || r.BytesReceived < 50_000 {
		t.Errorf("%+v", r)
	}
	from.Requests()
	if r := pull(openStore(t, cache), refs[0]); r.BytesReceived != 0 || r.BytesSkipped < 50_000 {
		t.Errorf("again: %+v", r)
	}
	if n := from.Count("GET"); n != 0 {
		t.Errorf("%d reads the second time", n)
	}
	if r := pull(openStore(t, t.TempDir()), refs[0]); r.BytesReceived > 5000 {
		t.Errorf("without the cache, but with the layout: %+v", r)
	}
	pull(openStore(t, cache), refs[1])
	src := imagestest.Open(t, source.Open, dir)
	if got := src.Images(); len(got) != 2 || got[0].Reference != refs[0] || got[1].Reference != refs[1] {
		t.Errorf("the layout has %+v", got)
	}

	// Damaged blobs in cache and layout are pulled again.
	nodes := imagestest.Nodes(t, store, one.Descriptor)
	large := nodes[slices.IndexFunc(nodes, func(d ocispec.Descriptor) bool { return d.Size == 50_000 })]
	path := filepath.Join(cache, oci.BlobPath(large.Digest))
	require.NoError(t, os.Chmod(path, 0o600))
	if err := os.WriteFile(path, imagestest.Noise(77, 50_000), 0o600); err != nil { // also that of the layout, which is a hard link
		t.Fatal(err)
	}
	pull(openStore(t, cache), refs[0])
	for _, dir := range []string{dir, cache} {
		raw, err := os.ReadFile(filepath.Join(dir, oci.BlobPath(large.Digest)))
		if err != nil || digest.FromBytes(raw) != large.Digest {
			t.Errorf("%s was not repaired: %v", dir, err)
		}
	}
}

// TestArchiveWithoutACompleteImage is about archives.
func TestFailedPullLeavesNoUsableLayout(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	refs := from.fill(t, store, imagestest.Index(t, store, "a:1", 50_000, "amd64"))
	items := from.resolve(t, nil, refs...)
	from.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			w.Header().Set("Content-Length", "50000")
			w.WriteHeader(http.StatusOK)
			w.Write(imagestest.Noise(66, 50_000))
			return true
		}
		return false
	})
	dir := filepath.Join(t.TempDir(), "layout")
	layout, err := output.OpenLayout(dir)
	require.NoError(t, err)
	defer layout.Close()
	_, err = Pull(t.Context(), items, layout, Options{})
	if err == nil || !strings.Contains(err.Error(), "pulling image "+refs[0]+": ") ||
		!strings.Contains(err.Error(), " sha256:") {
		t.Errorf("error: %v", err)
	}
	if _, err := source.Open(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "contains no image") {
		t.Errorf("the layout: %v", err)
	}
}

func TestPushPlan(t *testing.T) {
	server := imagestest.NewRegistry(t)
	store := &graph.Store{}
	one, two := imagestest.Index(t, store, "ghcr.io/a/b:1", 100, "amd64"), imagestest.Index(t, store, "quay.io/a/b:1", 200, "amd64")
	_, err := Push(t.Context(), graph.Items(store, one, two), server.NewClient(t, nil), Options{})
	if err == nil || !strings.Contains(err.Error(),
		"ghcr.io/a/b:1 and quay.io/a/b:1 differ, but both would become a/b:1: push them with different prefixes") {
		t.Errorf("error: %v", err)
	}
	if n := server.Count(""); n != 0 {
		t.Errorf("%d requests before the error", n)
	}
	results := mustPush(t, graph.Items(store, two), server.NewClient(t, nil), Options{Prefix: "team/mirror"})
	if results[0].Reference != server.Host()+"/team/mirror/a/b:1" {
		t.Errorf("%+v", results)
	}
	server.Get(t, "team/mirror/a/b/manifests/1")
}

// TestBlobOf2GiB copies a blob of that size from one registry to another through a layout.
func TestBlobOf2GiB(t *testing.T) {
	if testing.Short() {
		t.Skip("needs half a minute, for a blob of 2 GiB: run it without -short")
	}
	const size = 2 << 30
	path := filepath.Join(t.TempDir(), "blob")
	f := require.Value(os.Create(path))(t)
	hash := digest.SHA256.Digester()
	chunk := imagestest.Noise(5, 4<<20)
	for i := range size / len(chunk) {
		copy(chunk, fmt.Sprintf("%020d", i))
		require.Value(io.MultiWriter(f, hash.Hash()).Write(chunk))(t)
	}
	require.NoError(t, f.Close())
	store := &graph.Store{}
	large := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: hash.Digest(), Size: size}
	store.Put(large.Digest, blob.Blob{Size: size, Open: func() (io.ReadCloser, error) { return os.Open(path) }})
	config := imagestest.AddJSON(t, store, ocispec.MediaTypeImageConfig, ocispec.Image{})
	manifest := imagestest.AddJSON(t, store, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{large},
	})
	from := newOrigin(t)
	refs := from.fill(t, store, graph.Image{Reference: "large:1", Descriptor: manifest})
	require.NoError(t, os.Remove(path))
	dir := filepath.Join(t.TempDir(), "layout")
	items := from.resolve(t, func(o *source.ResolveOptions) { o.Store = nil }, refs...)
	pullToLayout(t, dir, items, Options{})
	again := mustItems(t, imagestest.Open(t, source.Open, dir), "")
	to := newOrigin(t)
	results := mustPush(t, again, to.NewClient(t, nil), Options{})
	t.Logf("%+v", results[0])
	response := require.Value(to.Client().Get(to.URL + "/v2/library/large/blobs/" + large.Digest.String()))(t)
	defer response.Body.Close()
	arrived := digest.SHA256.Digester()
	if n, err := io.Copy(arrived.Hash(), response.Body); err != nil || n != size || arrived.Digest() != large.Digest {
		t.Errorf("%d bytes arrived, with digest %s, %v", n, arrived.Digest(), err)
	}
}

// A copy within a registry mounts the blobs from the source repository.
func TestCopyWithinARegistryMounts(t *testing.T) {
	o := newOrigin(t)
	store := &graph.Store{}
	refs := o.fill(t, store, imagestest.Index(t, store, "a/b:1", 100_000, "amd64"))
	results := mustPush(t, o.resolve(t, nil, refs...), o.NewClient(t, nil), Options{Prefix: "mirror"})
	if r := results[0]; r.BlobsMounted != 3 || r.BytesReceived > 0 {
		t.Errorf("%+v, want two layers and the configuration mounted", r)
	}
}

// After the same image is pulled into a layout of skopeo or regctl, they still find it by their tag,
// and it counts as one image.
func TestPullLeavesTheTagsOfOtherTools(t *testing.T) {
	o := newOrigin(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "a/b:1", 1000, "amd64")
	refs := o.fill(t, store, image)
	tagged := imagestest.Annotated(image, map[string]string{ocispec.AnnotationRefName: "v1"})
	dir := imagestest.WriteLayout(t, imagestest.Layout(t, store, tagged))
	pullToLayout(t, dir, o.resolve(t, nil, refs...), Options{})
	raw := read(t, filepath.Join(dir, ocispec.ImageIndexFile))
	var index ocispec.Index
	require.NoError(t, json.Unmarshal(raw, &index))
	if len(index.Manifests) != 2 || index.Manifests[0].Annotations[ocispec.AnnotationRefName] != "v1" {
		t.Errorf("the layout lists %s", raw)
	}
	if list := imagestest.Open(t, source.Open, dir).Images(); len(list) != 1 || list[0].Reference != refs[0] {
		t.Errorf("the layout has %+v", list)
	}
}

func TestForEachBlobReportsAnEarlyEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	err := forEachBlob(ctx, semaphore.NewWeighted(1), make([]ocispec.Descriptor, 3), func() {},
		func(context.Context, ocispec.Descriptor) error {
			done++
			cancel()
			return nil
		})
	if !errors.Is(err, context.Canceled) || done == 3 {
		t.Errorf("%v after %d of 3 blobs", err, done)
	}
}
