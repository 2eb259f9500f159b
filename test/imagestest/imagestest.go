// Package imagestest makes images, layouts and archives for tests, and a client of another project's registry.
package imagestest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Registry is distribution's registry behind TLS. Only writing needs the credential.
type Registry struct{ *distributiontest.Registry }

// NewRegistry starts an empty registry.
func NewRegistry(t *testing.T) Registry {
	t.Helper()
	return Registry{distributiontest.New(t, true, distributiontest.NewApp(t))}
}

// NewClient returns a client of the registry.
func (r Registry) NewClient(t *testing.T, change func(*remote.Options)) *remote.Registry {
	t.Helper()
	opts := remote.Options{
		Host: r.Host(),
		TLS:  r.Client().Transport.(*http.Transport).TLSClientConfig.Clone(),
		Credential: auth.StaticCredential(r.Host(),
			auth.Credential{Username: distributiontest.Username, Password: distributiontest.Password}),
	}
	if change != nil {
		change(&opts)
	}
	reg := require.Value(remote.New(opts))(t)
	t.Cleanup(reg.Close)
	return reg
}

// Get reads a manifest or blob back, as a container runtime would.
func (r Registry) Get(t *testing.T, path string) []byte {
	t.Helper()
	req := require.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v2/"+path, nil))(t)
	for _, mediaType := range []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex,
		oci.MediaTypeDockerManifest, oci.MediaTypeDockerManifestList} {
		req.Header.Add("Accept", mediaType)
	}
	resp, err := r.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body := require.Value(io.ReadAll(resp.Body))(t)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s", path, resp.Status, body)
	}
	return body
}

// CheckWhole verifies that the registry has all blobs of an image under its tag.
func (r Registry) CheckWhole(t *testing.T, src content.Fetcher, image graph.Image) {
	t.Helper()
	repository, tag, err := name.Repository(image.Reference)
	require.NoError(t, err)
	if got := digest.FromBytes(r.Get(t, repository+"/manifests/"+tag)); got != image.Descriptor.Digest {
		t.Errorf("%s has digest %s in the registry, want %s", image.Reference, got, image.Descriptor.Digest)
	}
	for _, node := range Nodes(t, src, image.Descriptor) {
		kind := "/blobs/"
		if oci.IsManifestOrIndex(node.MediaType) {
			kind = "/manifests/"
		}
		if got := digest.FromBytes(r.Get(t, repository+kind+node.Digest.String())); got != node.Digest {
			t.Errorf("%s %s has digest %s in the registry", oci.Kind(node.MediaType), node.Digest, got)
		}
	}
}

// Open opens what a test closes at its end, such as a source of images.
func Open[C io.Closer](t *testing.T, open func(context.Context, string) (C, error), path string) C {
	t.Helper()
	c := require.Value(open(t.Context(), path))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Noise returns incompressible bytes that depend only on the seed.
func Noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = source.Read(b)
	return b
}

// Index stores an index with an image per platform. Each image has its own layer of the given
// size, and all share another layer.
func Index(t testing.TB, store *graph.Store, reference string, size int, architectures ...string) graph.Image {
	t.Helper()
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	shared := Add(store, digest.SHA256, ocispec.MediaTypeImageLayer, Noise(0, size/4))
	for i, arch := range architectures {
		layer := Add(store, digest.SHA256, ocispec.MediaTypeImageLayer, Noise(uint64(i+1+size), size))
		platform := ocispec.Platform{OS: "linux", Architecture: arch}
		config := AddJSON(t, store, ocispec.MediaTypeImageConfig, ocispec.Image{
			Platform: platform,
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{shared.Digest, layer.Digest}},
		})
		manifest := AddJSON(t, store, ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageManifest,
			Config:    config,
			Layers:    []ocispec.Descriptor{shared, layer},
		})
		manifest.Platform = &platform
		index.Manifests = append(index.Manifests, manifest)
	}
	root := AddJSON(t, store, ocispec.MediaTypeImageIndex, index)
	return graph.Image{Reference: reference, Descriptor: root}
}

// File is an entry of an archive.
type File struct {
	Name string
	Data []byte
	Link string
	Kind byte // tar type; 0 means a regular file, or a symbolic link if Link is set
}

// Tar returns an archive.
func Tar(t testing.TB, files ...File) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		header := &tar.Header{Name: f.Name, Size: int64(len(f.Data)), Mode: 0o644, Linkname: f.Link, Typeflag: f.Kind}
		if f.Kind == 0 {
			header.Typeflag = tar.TypeReg
			if f.Link != "" {
				header.Typeflag = tar.TypeSymlink
			}
		}
		require.NoError(t, tw.WriteHeader(header))
		if _, err := tw.Write(f.Data); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, tw.Close())
	return buf.Bytes()
}

// Gzip compresses data.
func Gzip(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, z.Close())
	return buf.Bytes()
}

// Zstd compresses data.
func Zstd(t testing.TB, b []byte) []byte {
	t.Helper()
	z := require.Value(zstd.NewWriter(nil))(t)
	defer func() { _ = z.Close() }()
	return z.EncodeAll(b, nil)
}

// JSON encodes a value.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	return require.Value(json.Marshal(v))(t)
}

// Temp writes a file, and returns its path.
func Temp(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// Layout returns the files of an OCI layout with the images and their annotations.
func Layout(t testing.TB, store *graph.Store, listed ...ocispec.Descriptor) []File {
	t.Helper()
	files := []File{
		{Name: ocispec.ImageLayoutFile, Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Name: ocispec.ImageIndexFile, Data: JSON(t, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
			Manifests: listed})},
	}
	seen := map[digest.Digest]bool{}
	for _, desc := range listed {
		for _, node := range Nodes(t, store, desc) {
			if !seen[node.Digest] {
				seen[node.Digest] = true
				files = append(files, File{Name: oci.BlobPath(node.Digest), Data: Fetch(t, store, node)})
			}
		}
	}
	return files
}

// Nodes returns an image and everything that it refers to, dependencies first.
func Nodes(t testing.TB, src content.Fetcher, root ocispec.Descriptor) []ocispec.Descriptor {
	t.Helper()
	return require.Value(graph.Nodes(t.Context(), src, root))(t)
}

// Decode reads JSON content.
func Decode[T any](t testing.TB, src content.Fetcher, desc ocispec.Descriptor) (v T) {
	t.Helper()
	require.NoError(t, graph.FetchJSON(t.Context(), src, desc, &v))
	return v
}

// AddJSON adds v as JSON to a store.
func AddJSON(t testing.TB, to *graph.Store, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	return Add(to, digest.SHA256, mediaType, JSON(t, v))
}

// Add adds content to a store under a digest of any algorithm.
func Add(to *graph.Store, algorithm digest.Algorithm, mediaType string, b []byte) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: algorithm.FromBytes(b), Size: int64(len(b))}
	to.Put(desc.Digest, blob.FromBytes(b))
	return desc
}

// Annotated returns the descriptor of an image with annotations.
func Annotated(image graph.Image, annotations map[string]string) ocispec.Descriptor {
	desc := image.Descriptor
	desc.Annotations = annotations
	return desc
}

// WriteLayout writes the files to a directory.
func WriteLayout(t *testing.T, files []File) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, f.Data, 0o600))
	}
	return dir
}

// Fetch reads content.
func Fetch(t testing.TB, src content.Fetcher, desc ocispec.Descriptor) []byte {
	t.Helper()
	return require.Value(content.FetchAll(t.Context(), src, desc))(t)
}

// DockerImage is an element of a docker archive's manifest.json.
type DockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Docker returns the files that docker save writes before version 25: for each layer a
// directory with its tar and legacy metadata, the configuration named by its digest, manifest.json and
// repositories.
func Docker(t testing.TB, tags []string, layers ...[]byte) []File {
	t.Helper()
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	var files []File
	saved := DockerImage{RepoTags: tags}
	for i, layer := range layers {
		dir := fmt.Sprintf("%064x", i+1)
		files = append(files,
			File{Name: dir + "/", Kind: tar.TypeDir},
			File{Name: dir + "/VERSION", Data: []byte("1.0")},
			File{Name: dir + "/json", Data: []byte("{}")},
			File{Name: dir + "/layer.tar", Data: layer},
		)
		saved.Layers = append(saved.Layers, dir+"/layer.tar")
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(layer))
	}
	rawConfig := JSON(t, config)
	saved.Config = digest.FromBytes(rawConfig).Encoded() + ".json"
	return append(files,
		File{Name: saved.Config, Data: rawConfig},
		File{Name: "manifest.json", Data: JSON(t, []DockerImage{saved})},
		File{Name: "repositories", Data: []byte("{}")},
	)
}
