package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/output"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// fiveImages returns five images, of which the third has a blob that it does not share.
func fiveImages(t *testing.T, store *graph.Store) (list []graph.Image, bad ocispec.Descriptor) {
	t.Helper()
	for i, name := range []string{"a:1", "b:1", "c:1", "d:1", "e:1"} {
		list = append(list, imagestest.Index(t, store, name, 300_000+i, "amd64"))
	}
	nodes := imagestest.Nodes(t, store, list[2].Descriptor)
	return list, nodes[slices.IndexFunc(nodes, func(d ocispec.Descriptor) bool { return d.Size == 300_002 })]
}

// damage makes the registry lack a blob.
func damage(r imagestest.Registry, d digest.Digest) {
	r.SetFront(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/blobs/"+d.String()) {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	})
}

func wantErrorAbout(t *testing.T, err error, image graph.Image, d digest.Digest) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "library/"+image.Reference) && !strings.Contains(err.Error(),
		"image "+image.Reference) || !strings.Contains(err.Error(), d.String()) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error must be about %s only: %v", image.Reference, err)
	}
}

// One of five images is incomplete in the registry: a pull completes the others, and after a repair all.
func TestPullOfABadImage(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	list, bad := fiveImages(t, store)
	refs := from.fill(t, store, list...)
	others := slices.Concat(refs[:2], refs[3:])
	damage(from.Registry, bad.Digest)
	path := filepath.Join(t.TempDir(), "a.tar")
	write := func(path string, refs ...string) ([]Result, error) {
		t.Helper()
		archive := require.Value(output.CreateArchive(path))(t)
		results, err := Pull(t.Context(), from.resolve(t, nil, refs...), archive, Options{})
		return results, errors.Join(err, archive.Close())
	}
	results, err := write(path, refs...)
	wantErrorAbout(t, err, list[2], bad.Digest)
	if len(results) != 4 {
		t.Errorf("%d results", len(results))
	}
	intact := filepath.Join(t.TempDir(), "intact.tar")
	require.Value(write(intact, others...))(t)
	if !bytes.Equal(read(t, path), read(t, intact)) {
		t.Error("the archive differs from one of the complete images")
	}
	dir := t.TempDir()
	pull := func(opts Options, change func(*source.ResolveOptions)) ([]Result, error) {
		layout := require.Value(output.OpenLayout(dir))(t)
		defer layout.Close()
		return Pull(t.Context(), from.resolve(t, change, refs...), layout, opts)
	}
	later := imagestest.Nodes(t, store, list[3].Descriptor)
	large := later[slices.IndexFunc(later, func(d ocispec.Descriptor) bool { return d.Size == 300_003 })].Digest
	from.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, large.String()) {
			<-r.Context().Done() // in transfer until it is canceled
			return true
		}
		if strings.HasSuffix(r.URL.Path, bad.Digest.String()) {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	})
	results, err = pull(Options{FailFast: true}, func(o *source.ResolveOptions) { o.Store = openStore(t, t.TempDir()) })
	wantErrorAbout(t, err, list[2], bad.Digest)
	if slices.ContainsFunc(results, func(r Result) bool { return strings.HasSuffix(r.Reference, "/d:1") }) {
		t.Errorf("--fail-fast: %+v", results)
	}
	damage(from.Registry, bad.Digest)
	results, err = pull(Options{}, nil)
	wantErrorAbout(t, err, list[2], bad.Digest)
	if got := len(imagestest.Open(t, source.Open, dir).Images()); len(results) != 4 || got != 4 {
		t.Errorf("%d results, %d images in the layout", len(results), got)
	}
	from.SetFront(nil)
	if _, err := pull(Options{}, nil); err != nil {
		t.Error(err)
	}
	if _, err := write(path, refs...); err != nil {
		t.Error(err)
	}
	for _, source := range []*source.Source{imagestest.Open(t, source.Open, dir), imagestest.Open(t, source.Open, path)} {
		if got := len(source.Images()); got != 5 || source.Incomplete() != nil {
			t.Errorf("%s has %d images, error %v", source.Kind(), got, source.Incomplete())
		}
	}
}

// A pull of which nothing is complete leaves the previous archive.
func TestArchiveWithoutACompleteImage(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	list, bad := fiveImages(t, store)
	refs := from.fill(t, store, list...)
	damage(from.Registry, bad.Digest)
	path := imagestest.Temp(t, "a.tar", []byte("was here"))
	archive := require.Value(output.CreateArchive(path))(t)
	if _, err := output.CreateArchive(path); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("two write it at once: %v", err)
	}
	if results, err := Pull(t.Context(), from.resolve(t, nil, refs[2]), archive, Options{}); err == nil || results != nil {
		t.Errorf("results %v, error %v", results, err)
	}
	if _, err := Pull(t.Context(), nil, archive, Options{}); err == nil || !strings.Contains(err.Error(),
		"no image is complete") {
		t.Errorf("error without images: %v", err)
	}
	if err := archive.Close(); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 || string(read(t, path)) != "was here" {
		t.Errorf("next to the archive: %v, %v", files, err)
	}
}

// One of five images is incomplete in the source: a push completes the others, and after a repair all.
func TestPushOfABadImage(t *testing.T) {
	store := &graph.Store{}
	list, bad := fiveImages(t, store)
	var listed []ocispec.Descriptor
	for _, image := range list {
		listed = append(listed, imagestest.Annotated(image, map[string]string{oci.AnnotationContainerdName: image.Reference}))
	}
	files := imagestest.Layout(t, store, listed...)
	dir := imagestest.WriteLayout(t, files)
	path := filepath.Join(dir, oci.BlobPath(bad.Digest))
	to := imagestest.NewRegistry(t)
	for how, damage := range map[string]func() error{
		"missing":   func() error { return os.Remove(path) },
		"truncated": func() error { return os.WriteFile(path, imagestest.Noise(1, 100), 0o600) },
		"altered":   func() error { return os.WriteFile(path, imagestest.Noise(1, int(bad.Size)), 0o600) },
	} {
		require.NoError(t, damage())
		source := imagestest.Open(t, source.Open, dir)
		results, err := Push(t.Context(), mustItems(t, source, ""), to.NewClient(t, nil), Options{Prefix: name.Prefix(how)})
		wantErrorAbout(t, errors.Join(err, source.Incomplete()), list[2], bad.Digest)
		if len(results) != 4 {
			t.Errorf("%s: %d images were pushed", how, len(results))
		}
		for _, image := range slices.Concat(list[:2], list[3:]) {
			image.Reference = how + "/library/" + image.Reference
			to.Get(t, strings.Replace(image.Reference, ":", "/manifests/", 1))
		}
	}
	require.NoError(t, os.WriteFile(path, imagestest.Fetch(t, store, bad), 0o600))
	if results := mustPush(t, mustItems(t, imagestest.Open(t, source.Open, dir), ""), to.NewClient(t, nil), Options{}); len(results) != 5 {
		t.Errorf("%d images", len(results))
	}
}

// If the registry is gone, each further image would be tried in vain.
func TestPushStopsWithoutARegistry(t *testing.T) {
	store := &graph.Store{}
	list, _ := fiveImages(t, store)
	to := imagestest.NewRegistry(t)
	gone := to.NewClient(t, func(o *remote.Options) { o.Host, o.Retries = "127.0.0.1:1", -1 })
	_, err := Push(t.Context(), graph.Items(store, list...), gone, Options{})
	if err == nil || strings.Count(err.Error(), "pushing image") != 1 {
		t.Errorf("error: %v", err)
	}
}

// Registries may accept an index whose manifests they do not all have.
func TestSparseIndex(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "multi:1", 5000, "amd64", "arm64", "riscv64")
	refs := from.fill(t, store, image)
	missing := imagestest.Decode[ocispec.Index](t, store, image.Descriptor).Manifests[1].Digest
	from.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		whole := strings.HasSuffix(r.URL.Path, "/multi/manifests/1") && r.Method == http.MethodHead
		if whole || strings.HasSuffix(r.URL.Path, missing.String()) {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	})
	if items, err := source.Resolve(t.Context(), refs, from.options); err == nil {
		t.Errorf("without Sparse: %+v", items)
	}
	items := from.resolve(t, func(o *source.ResolveOptions) { o.Sparse = true }, refs...)
	if omitted := items[0].Omitted; len(omitted) != 1 || omitted[0].Architecture != "arm64" {
		t.Errorf("omitted are %+v", omitted)
	}
	var index ocispec.Index
	dir := t.TempDir()
	pullToLayout(t, dir, items, Options{})
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(dir, ocispec.ImageIndexFile)), &index))
	if len(index.Manifests) != 1 || index.Manifests[0].Digest != image.Descriptor.Digest {
		t.Errorf("the layout lists %+v", index.Manifests)
	}
	for _, source := range pullBoth(t, items) {
		// It is pushed without the platform, because most registries reject sparse indexes.
		if list := source.Images(); len(list) != 1 || len(list[0].Omitted) != 1 {
			t.Errorf("the %s has %+v", source.Kind(), list)
		}
	}
}

// A push that was interrupted between a signature and its entry in the list of referrers completes it.
func TestRepeatedPushListsReferrers(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "signed:1", 1000, "amd64")
	root := imagestest.Decode[ocispec.Index](t, store, image.Descriptor).Manifests[0]
	root.Platform = nil
	signature := artifact(t, store, "", ocispec.MediaTypeImageManifest, "application/vnd.example.note", "text/plain",
		&image.Descriptor, []byte("signature"))
	ofManifest := artifact(t, store, "signed:note", ocispec.MediaTypeImageManifest, "application/vnd.example.note",
		"text/plain", &root, []byte("tagged"))
	signature.Reference = "signed@" + signature.Descriptor.Digest.String()
	to := imagestest.NewRegistry(t) // distribution has no referrers API
	to.SetFront(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/sha256-") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	items := graph.Items(store, image, signature, ofManifest)
	if _, err := Push(t.Context(), items, to.NewClient(t, nil), Options{}); err == nil {
		t.Fatal("no error")
	}
	to.SetFront(nil)
	client := to.NewClient(t, nil)
	mustPush(t, items, client, Options{})
	repository := require.Value(client.Repository("library/signed"))(t)
	for subject, want := range map[digest.Digest]digest.Digest{
		image.Descriptor.Digest: signature.Descriptor.Digest, root.Digest: ofManifest.Descriptor.Digest} {
		var listed []digest.Digest
		err := repository.Referrers(t.Context(), subject, func(page []ocispec.Descriptor) error {
			for _, d := range page {
				listed = append(listed, d.Digest)
			}
			return nil
		})
		if err != nil || !slices.Equal(listed, []digest.Digest{want}) {
			t.Errorf("the referrers of %s are %v, want %s (%v)", subject, listed, want, err)
		}
	}
	to.Requests()
	mustPush(t, items, client, Options{})
	if n := to.Count("PUT"); n != 0 {
		t.Errorf("the third push writes %d times", n)
	}
}

// Copies and archives need no more of the local store than manifests and configurations.
func TestTransfersWithoutLocalSpace(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	list, _ := fiveImages(t, store)
	refs := from.fill(t, store, list...)
	dir := t.TempDir()
	cache := require.Value(blobstore.Open(dir, blobstore.Options{Cache: true, MaxSize: 100_000}))(t)
	defer cache.Close()
	for name, change := range map[string]func(*source.ResolveOptions){
		"without a store":    func(o *source.ResolveOptions) { o.Store = nil },
		"with a small store": func(o *source.ResolveOptions) { o.Store = cache },
	} {
		items := from.resolve(t, change, refs...)
		to := imagestest.NewRegistry(t)
		from.Requests()
		for _, r := range mustPush(t, items, to.NewClient(t, nil), Options{}) {
			if r.BytesReceived < 300_000 || r.BytesSent < 300_000 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if n := from.Count("GET /v2/library/a/blobs/"); n > 3 {
			t.Errorf("%s: %d reads of the blobs of an image", name, n)
		}
		for _, image := range list {
			to.CheckWhole(t, store, image)
		}
		pullBoth(t, items)
		var sum int64
		for _, path := range glob(t, filepath.Join(dir, "blobs", "sha256", "*")) {
			info := require.Value(os.Stat(path))(t)
			sum += info.Size()
		}
		if sum > 100_000 {
			t.Errorf("%s: the store has %d bytes", name, sum)
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	return require.Value(filepath.Glob(pattern))(t)
}

// An upload that resumes does not read again what has arrived.
func TestStreamedUploadResumes(t *testing.T) {
	from := newOrigin(t)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "large:1", 4<<20, "amd64")
	refs := from.fill(t, store, image)
	items := from.resolve(t, nil, refs...)
	desc := imagestest.Nodes(t, store, image.Descriptor)[2]
	b := require.Value(items[0].Content.Blob(t.Context(), desc, nil))(t)
	opened := require.Value(b.Open())(t)
	defer opened.Close()
	r := opened.(io.ReadSeeker)
	want := imagestest.Fetch(t, store, desc)
	buffer := make([]byte, 1000)
	for _, at := range []int64{0, 1000, 3 << 20, 500, desc.Size - 1000} {
		require.Value(r.Seek(at, 0))(t)
		if n, err := r.Read(buffer); err != nil || !bytes.Equal(buffer[:n], want[at:at+int64(n)]) {
			t.Errorf("at %d: %d bytes, %v", at, n, err)
		}
	}
}

// What export does with the project's own registry, of which two of four images are damaged on the disk: a layer is
// truncated, and the manifest of a platform is gone.
func TestBackupOfADamagedRegistry(t *testing.T) {
	server := registrytest.Start(t, tlsfilestest.NewCA(t, "ca"))
	registry := server.Pusher(t)
	store := &graph.Store{}
	list, bad := fiveImages(t, store)
	multi := imagestest.Index(t, store, "multi:1", 400_000, "amd64", "arm64")
	list = append(list[1:4], multi)
	mustPush(t, graph.Items(store, list...), registry, Options{})
	gone := imagestest.Decode[ocispec.Index](t, store, multi.Descriptor).Manifests[1].Digest
	blobs := filepath.Join(server.Root, "docker", "registry", "v2", "blobs", "sha256")
	require.NoError(t, os.Truncate(filepath.Join(blobs, bad.Digest.Encoded()[:2], bad.Digest.Encoded(), "data"), 1))
	revision := filepath.Join(server.Root, "docker", "registry", "v2", "repositories", "library", "multi", "_manifests",
		"revisions", "sha256", gone.Encoded())
	require.NoError(t, os.RemoveAll(revision))
	path := filepath.Join(t.TempDir(), "backup.tar")
	backup := func() (*source.Source, error) {
		t.Helper()
		var refs []string
		for _, image := range list {
			refs = append(refs, server.Address+"/library/"+image.Reference)
		}
		items, failed := source.Resolve(t.Context(), refs, source.ResolveOptions{
			Registry: func(context.Context, string) (*remote.Registry, error) { return registry, nil },
			Store:    openStore(t, t.TempDir()), Sparse: true,
		})
		archive, err := output.CreateArchive(path)
		require.NoError(t, err)
		_, err = Pull(t.Context(), items, archive, Options{})
		return imagestest.Open(t, source.Open, path), errors.Join(failed, err)
	}
	source, err := backup()
	wantErrorAbout(t, err, list[1], bad.Digest)
	if images := source.Images(); len(images) != 3 || len(images[2].Omitted) != 1 {
		t.Errorf("the backup has %+v", images)
	}
	to := startRegistry(t)
	mustPush(t, mustItems(t, source, ""), to, Options{})

	mustPush(t, graph.Items(store, list...), server.Pusher(t), Options{}) // the repair
	if source, err = backup(); err != nil {
		t.Error(err)
	}
	for _, image := range mustPush(t, mustItems(t, source, ""), to, Options{}) {
		if image.Omitted != nil {
			t.Errorf("%+v", image)
		}
	}
	for _, image := range list {
		repository, tag, err := name.Repository(image.Reference)
		require.NoError(t, err)
		in := require.Value(to.Repository(repository))(t)
		if have, err := in.Resolve(t.Context(), tag); err != nil || have.Digest != image.Descriptor.Digest {
			t.Errorf("%s is %s, want %s (%v)", image.Reference, have.Digest, image.Descriptor.Digest, err)
		}
	}
}
