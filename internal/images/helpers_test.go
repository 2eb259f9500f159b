package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

const (
	testUser     = "push"
	testPassword = "a long secret"
)

// testRegistry is distribution's registry behind TLS. Only writing needs the credential. front, unless
// nil, handles requests first.
type testRegistry struct {
	*httptest.Server
	app      http.Handler
	mu       sync.Mutex
	requests []string // method and path
	front    func(w http.ResponseWriter, r *http.Request) (handled bool)
}

func newTestRegistry(t *testing.T) *testRegistry {
	t.Helper()
	// Not in memory: that driver takes a lock for as long as it copies all there is.
	config := &configuration.Configuration{Storage: configuration.Storage{"filesystem": {"rootdirectory": t.TempDir()}}}
	config.HTTP.RelativeURLs = true
	logrus.SetOutput(io.Discard) // distribution logs each request
	app := handlers.NewApp(t.Context(), config)
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	reg := &testRegistry{app: app}
	reg.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if r.Method != http.MethodGet && r.Method != http.MethodHead && (user != testUser || password != testPassword) {
			w.Header().Set("WWW-Authenticate", `Basic realm="zarf-registry"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
			return
		}
		reg.mu.Lock()
		reg.requests = append(reg.requests, r.Method+" "+r.URL.Path)
		front := reg.front
		reg.mu.Unlock()
		if front != nil && front(w, r) {
			return
		}
		app.ServeHTTP(w, r)
	}))
	reg.Config.ErrorLog = log.New(io.Discard, "", 0)
	reg.StartTLS()
	t.Cleanup(reg.Close)
	return reg
}

func (r *testRegistry) host() string { return strings.TrimPrefix(r.URL, "https://") }

func (r *testRegistry) setFront(front func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.front = front
}

// count returns how many requests began with the prefix, and resets the record.
func (r *testRegistry) count(prefix string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, request := range r.requests {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	r.requests = nil
	return n
}

// client returns a client of the registry.
func (r *testRegistry) client(t *testing.T, change func(*remote.Options)) *remote.Registry {
	t.Helper()
	opts := remote.Options{
		Host:       r.host(),
		TLS:        r.Client().Transport.(*http.Transport).TLSClientConfig.Clone(),
		Credential: auth.StaticCredential(r.host(), auth.Credential{Username: testUser, Password: testPassword}),
	}
	if change != nil {
		change(&opts)
	}
	reg, err := remote.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reg.Close)
	return reg
}

func mustPush(t *testing.T, items []Item, reg *remote.Registry, opts Options) []Result {
	t.Helper()
	results, err := Push(t.Context(), items, reg, opts)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func mustPull(t *testing.T, items []Item, out Output, opts Options) []Result {
	t.Helper()
	results, err := Pull(t.Context(), items, out, opts)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// pullToLayout pulls images to the layout in a directory.
func pullToLayout(t *testing.T, dir string, items []Item, opts Options) []Result {
	t.Helper()
	layout, err := OpenLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	results := mustPull(t, items, layout, opts)
	if err := layout.Close(); err != nil {
		t.Fatal(err)
	}
	return results
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// pullToArchive pulls images to an archive. change, unless nil, is called before.
func pullToArchive(t *testing.T, path string, items []Item, change func(*Archive)) []Result {
	t.Helper()
	archive, err := CreateArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(archive)
	}
	return mustPull(t, items, archive, Options{})
}

// get reads a manifest or blob back, as a container runtime would.
func (r *testRegistry) get(t *testing.T, path string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v2/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, mediaType := range []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex,
		oci.MediaTypeDockerManifest, oci.MediaTypeDockerManifestList} {
		req.Header.Add("Accept", mediaType)
	}
	resp, err := r.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s", path, resp.Status, body)
	}
	return body
}

// checkWhole verifies that the registry has all blobs of an image under its tag.
func (r *testRegistry) checkWhole(t *testing.T, src content.Fetcher, image Image) {
	t.Helper()
	repository, tag, err := name.Repository(image.Reference)
	if err != nil {
		t.Fatal(err)
	}
	if got := digest.FromBytes(r.get(t, repository+"/manifests/"+tag)); got != image.Descriptor.Digest {
		t.Errorf("%s has digest %s in the registry, want %s", image.Reference, got, image.Descriptor.Digest)
	}
	for _, node := range nodesOf(t, src, image.Descriptor) {
		kind := "/blobs/"
		if oci.IsManifestOrIndex(node.MediaType) {
			kind = "/manifests/"
		}
		if got := digest.FromBytes(r.get(t, repository+kind+node.Digest.String())); got != node.Digest {
			t.Errorf("%s %s has digest %s in the registry", oci.Kind(node.MediaType), node.Digest, got)
		}
	}
}

// noise returns incompressible bytes that depend only on the seed.
func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	source.Read(b)
	return b
}

// testImage stores an index with an image per platform. Each image has its own layer of the given
// size, and all share another layer.
func testImage(t testing.TB, store *Store, reference string, size int, architectures ...string) Image {
	t.Helper()
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	shared := store.addAs(digest.SHA256, ocispec.MediaTypeImageLayer, noise(0, size/4))
	for i, arch := range architectures {
		layer := store.addAs(digest.SHA256, ocispec.MediaTypeImageLayer, noise(uint64(i+1+size), size))
		platform := ocispec.Platform{OS: "linux", Architecture: arch}
		config := store.mustAddJSON(t, ocispec.MediaTypeImageConfig, ocispec.Image{
			Platform: platform,
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{shared.Digest, layer.Digest}},
		})
		manifest := store.mustAddJSON(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageManifest,
			Config:    config,
			Layers:    []ocispec.Descriptor{shared, layer},
		})
		manifest.Platform = &platform
		index.Manifests = append(index.Manifests, manifest)
	}
	root := store.mustAddJSON(t, ocispec.MediaTypeImageIndex, index)
	return Image{Reference: reference, Descriptor: root}
}

// file is an entry of a test archive.
type file struct {
	name string
	data []byte
	link string
	kind byte // tar type; 0 means a regular file, or a symbolic link if link is set
}

func makeTar(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: 0o644, Linkname: f.link, Typeflag: f.kind}
		if f.kind == 0 {
			header.Typeflag = tar.TypeReg
			if f.link != "" {
				header.Typeflag = tar.TypeSymlink
			}
		}
		if err := tw.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func writeTemp(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// layoutFiles returns the files of an OCI layout with the images and their annotations.
func layoutFiles(t testing.TB, store *Store, listed ...ocispec.Descriptor) []file {
	t.Helper()
	files := []file{
		{name: ocispec.ImageLayoutFile, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: ocispec.ImageIndexFile, data: asJSON(t, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
			Manifests: listed})},
	}
	seen := map[digest.Digest]bool{}
	for _, desc := range listed {
		for _, node := range nodesOf(t, store, desc) {
			if !seen[node.Digest] {
				seen[node.Digest] = true
				files = append(files, file{name: oci.BlobPath(node.Digest), data: fetchAll(t, store, node)})
			}
		}
	}
	return files
}

// nodesOf returns an image and everything that it refers to, dependencies first.
func nodesOf(t testing.TB, src content.Fetcher, root ocispec.Descriptor) []ocispec.Descriptor {
	t.Helper()
	nodes, err := graph(t.Context(), src, root)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// decode reads JSON content.
func decode[T any](t testing.TB, src content.Fetcher, desc ocispec.Descriptor) (v T) {
	t.Helper()
	if err := fetchJSON(t.Context(), src, desc, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (s *Store) mustAddJSON(t testing.TB, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	return s.addAs(digest.SHA256, mediaType, asJSON(t, v))
}

// addAs adds content under a digest of any algorithm.
func (s *Store) addAs(algorithm digest.Algorithm, mediaType string, b []byte) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: algorithm.FromBytes(b), Size: int64(len(b))}
	s.add(desc.Digest, blob.FromBytes(b))
	return desc
}

func annotated(image Image, annotations map[string]string) ocispec.Descriptor {
	desc := image.Descriptor
	desc.Annotations = annotations
	return desc
}

// writeLayout writes the files to a directory.
func writeLayout(t *testing.T, files []file) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func fetchAll(t testing.TB, src content.Fetcher, desc ocispec.Descriptor) []byte {
	t.Helper()
	b, err := content.FetchAll(t.Context(), src, desc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dockerArchive returns the files that docker save writes before version 25: for each layer a
// directory with its tar and legacy metadata, the configuration named by its digest, manifest.json and
// repositories.
func dockerArchive(t testing.TB, tags []string, layers ...[]byte) []file {
	t.Helper()
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	var files []file
	saved := dockerImage{RepoTags: tags}
	for i, layer := range layers {
		dir := fmt.Sprintf("%064x", i+1)
		files = append(files,
			file{name: dir + "/", kind: tar.TypeDir},
			file{name: dir + "/VERSION", data: []byte("1.0")},
			file{name: dir + "/json", data: []byte("{}")},
			file{name: dir + "/layer.tar", data: layer},
		)
		saved.Layers = append(saved.Layers, dir+"/layer.tar")
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(layer))
	}
	rawConfig := asJSON(t, config)
	saved.Config = digest.FromBytes(rawConfig).Encoded() + ".json"
	return append(files,
		file{name: saved.Config, data: rawConfig},
		file{name: "manifest.json", data: asJSON(t, []dockerImage{saved})},
		file{name: "repositories", data: []byte("{}")},
	)
}

// mustItems returns the images of a source as [Source.Items].
func mustItems(t *testing.T, src *Source, reference string) []Item {
	t.Helper()
	items, err := src.Items(reference)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func mustOpen(t *testing.T, path string) *Source {
	t.Helper()
	src, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	})
	return src
}

// cancelled returns a canceled context.
func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func gunzip(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
