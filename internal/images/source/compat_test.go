package source

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	ggcrname "github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	orasoci "oras.land/oras-go/v2/content/oci"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// golden is a layout written by another tool's library, with the names and digests of its images.
type golden struct {
	dir    string
	images map[string]digest.Digest
}

// craneImage and craneIndex return content created by crane's library.
func craneImage(t *testing.T, layers int64) ggcr.Image {
	t.Helper()
	return require.Value(random.Image(2000, layers))(t)
}

func craneIndex(t *testing.T, architectures ...string) ggcr.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		image := mutate.ConfigMediaType(mutate.MediaType(craneImage(t, 2), types.OCIManifestSchema1), types.OCIConfigJSON)
		config, err := image.ConfigFile()
		require.NoError(t, err)
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", architecture
		image = require.Value(mutate.ConfigFile(image, config))(t)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: ggcr.Descriptor{Platform: &ggcr.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return index
}

// signature returns an image like those of cosign, whose layer is not a tar.
func signature(t *testing.T) ggcr.Image {
	t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image, err := mutate.AppendLayers(image,
		static.NewLayer([]byte(`{"critical":{}}`), "application/vnd.dev.cosign.simplesigning.v1+json"))
	require.NoError(t, err)
	return image
}

// craneLayout writes a layout with crane's library. graph.Image names are in base.name only, as in layouts
// of deployment tools that use it.
func craneLayout(t *testing.T, content map[string]mutate.Appendable) golden {
	t.Helper()
	made := golden{t.TempDir(), map[string]digest.Digest{}}
	at, err := ggcrlayout.Write(made.dir, empty.Index)
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(content)) {
		annotations := ggcrlayout.WithAnnotations(map[string]string{ocispec.AnnotationBaseImageName: name})
		switch one := content[name].(type) {
		case ggcr.Image:
			err = at.AppendImage(one, annotations)
		case ggcr.ImageIndex:
			err = at.AppendIndex(one, annotations)
		}
		require.NoError(t, err)
		d := require.Value(content[name].Digest())(t)
		made.images[name] = digest.Digest(d.String())
	}
	return made
}

// orasLayout writes a layout with ORAS. Images have their names in ref.name.
func orasLayout(t *testing.T, from *graph.Store, named ...graph.Image) golden {
	t.Helper()
	made := golden{t.TempDir(), map[string]digest.Digest{}}
	at := require.Value(orasoci.New(made.dir))(t)
	for _, image := range named {
		require.NoError(t, oras.CopyGraph(t.Context(), forORAS{from}, at, image.Descriptor, oras.DefaultCopyGraphOptions))
		require.NoError(t, at.Tag(t.Context(), image.Descriptor, image.Reference))
		made.images[image.Reference] = image.Descriptor.Digest
	}
	return made
}

// forORAS makes a store a source for ORAS.
type forORAS struct{ *graph.Store }

func (s forORAS) Exists(_ context.Context, desc ocispec.Descriptor) (bool, error) {
	_, ok := s.Find(desc.Digest)
	return ok, nil
}

// orasArtifact returns an artifact with a subject, packed by ORAS.
func orasArtifact(t *testing.T, into *graph.Store, name string, subject *ocispec.Descriptor) graph.Image {
	t.Helper()
	chart := imagestest.Add(into, digest.SHA256, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", imagestest.Noise(77, 3000))
	at := t.TempDir()
	packed := require.Value(orasoci.New(at))(t)
	require.NoError(t, oras.CopyGraph(t.Context(), forORAS{into}, packed, chart, oras.DefaultCopyGraphOptions))
	desc, err := oras.PackManifest(t.Context(), packed, oras.PackManifestVersion1_1,
		"application/vnd.cncf.helm.config.v1+json", oras.PackManifestOptions{
			Layers: []ocispec.Descriptor{chart}, Subject: subject,
		})
	require.NoError(t, err)
	into.Put(desc.Digest, blob.FromBytes(imagestest.Fetch(t, packed, desc)))
	manifest := imagestest.Decode[ocispec.Manifest](t, packed, desc)
	into.Put(manifest.Config.Digest, blob.FromBytes(imagestest.Fetch(t, packed, manifest.Config)))
	return graph.Image{Reference: name, Descriptor: oci.Plain(desc)}
}

// goldens returns layouts of each tool with single images, indexes and several images.
func goldens(t *testing.T) map[string]golden {
	t.Helper()
	store := &graph.Store{}
	index := imagestest.Index(t, store, "ghcr.io/a/index:1", 3000, "amd64", "arm64")
	single := singleImage(t, store, index, "quay.io/b/single:2")
	chart := orasArtifact(t, store, "ghcr.io/a/chart:1.2.3", nil)
	attached := orasArtifact(t, store, "quay.io/b/single:signed", &single.Descriptor)
	again := single
	again.Reference = "quay.io/b/single:latest"
	return map[string]golden{
		"crane, one image": craneLayout(t, map[string]mutate.Appendable{"docker.io/library/one:1": craneImage(t, 3)}),
		"crane, an index":  craneLayout(t, map[string]mutate.Appendable{"ghcr.io/a/two:1": craneIndex(t, "amd64", "arm64")}),
		"crane, several": craneLayout(t, map[string]mutate.Appendable{
			"docker.io/library/one:1": craneImage(t, 1),
			"ghcr.io/a/two:1":         craneIndex(t, "amd64"),
			"ghcr.io/a/two:sha256-0000000000000000000000000000000000000000000000000000000000000000.sig": signature(t),
			"127.0.0.1:5000/three:latest": mutate.Annotations(craneImage(t, 2),
				map[string]string{"org.opencontainers.image.base.name": "docker.io/library/base:1"}).(ggcr.Image),
		}),
		"ORAS, one image":            orasLayout(t, store, single),
		"ORAS, an index":             orasLayout(t, store, index),
		"ORAS, several":              orasLayout(t, store, index, single, chart, attached),
		"ORAS, one image, two names": orasLayout(t, store, single, again),
	}
}

// singleImage returns the first image of an index.
func singleImage(t *testing.T, store *graph.Store, index graph.Image, name string) graph.Image {
	t.Helper()
	list := imagestest.Decode[ocispec.Index](t, store, index.Descriptor)
	return graph.Image{Reference: name, Descriptor: oci.Plain(list.Manifests[0])}
}

// checkSource verifies that a source has all blobs of the golden images.
func checkSource(t *testing.T, src *Source, want map[string]digest.Digest) {
	t.Helper()
	found := map[string]digest.Digest{}
	for _, image := range src.Images() {
		found[image.Reference] = image.Descriptor.Digest
		nodes := imagestest.Nodes(t, src, image.Descriptor)
		if len(nodes) < 3 {
			t.Errorf("%s has %d blobs", image.Reference, len(nodes))
		}
		for _, node := range nodes {
			imagestest.Fetch(t, src, node) // verifies it
		}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}

func untar(t *testing.T, path string) string {
	t.Helper()
	f := require.Value(os.Open(path))(t)
	defer f.Close()
	dir := t.TempDir()
	for tr := tar.NewReader(f); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		require.NoError(t, err)
		if header.Typeflag != tar.TypeReg {
			continue
		}
		raw := require.Value(io.ReadAll(tr))(t)
		target := filepath.Join(dir, filepath.FromSlash(header.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o700))
		require.NoError(t, os.WriteFile(target, raw, 0o600))
	}
}

func TestOtherToolsReadWhatIsWritten(t *testing.T) {
	for name, g := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			src := imagestest.Open(t, Open, g.dir)
			items := mustItems(t, src, "")
			dir := filepath.Join(t.TempDir(), "layout")
			pullToLayout(t, dir, items)
			archive := filepath.Join(t.TempDir(), "archive.tar")
			require.NoError(t, images.WriteArchive(t.Context(), archive, src, src.Images()...))

			t.Run("Open", func(t *testing.T) {
				checkSource(t, imagestest.Open(t, Open, dir), g.images)
				checkSource(t, imagestest.Open(t, Open, archive), g.images)
			})
			t.Run("ORAS", func(t *testing.T) {
				fromDir := require.Value(orasoci.NewFromFS(t.Context(), os.DirFS(dir)))(t)
				checkORAS(t, fromDir, g.images)
				fromTar := require.Value(orasoci.NewFromTar(t.Context(), archive))(t)
				checkORAS(t, fromTar, g.images)
				writable := require.Value(orasoci.New(dir))(t)
				checkORAS(t, writable, g.images)
			})
			t.Run("crane", func(t *testing.T) {
				checkCrane(t, dir, g.images)
				checkCrane(t, untar(t, archive), g.images)
			})
		})
	}
}

// checkORAS resolves each image by its full name and copies it.
func checkORAS(t *testing.T, from oras.ReadOnlyTarget, want map[string]digest.Digest) {
	t.Helper()
	for name, d := range want {
		to := require.Value(orasoci.New(t.TempDir()))(t)
		desc, err := oras.Copy(t.Context(), from, name, to, name, oras.DefaultCopyOptions)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if desc.Digest != d {
			t.Errorf("%s is %s, want %s", name, desc.Digest, d)
		}
	}
}

// checkCrane finds each image by base.name and verifies its blobs.
func checkCrane(t *testing.T, dir string, want map[string]digest.Digest) {
	t.Helper()
	root := require.Value(ggcrlayout.ImageIndexFromPath(dir))(t)
	list := require.Value(root.IndexManifest())(t)
	found := map[string]digest.Digest{}
	for _, desc := range list.Manifests {
		name := desc.Annotations[ocispec.AnnotationBaseImageName]
		found[name] = digest.Digest(desc.Digest.String())
		if desc.MediaType.IsIndex() {
			index, err := root.ImageIndex(desc.Digest)
			if err == nil {
				err = checkCraneIndex(index)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		image, err := root.Image(desc.Digest)
		if err == nil {
			err = checkCraneImage(image)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}

func checkCraneIndex(index ggcr.ImageIndex) error {
	if err := validate.Index(index, validate.Fast); err != nil {
		return err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, desc := range list.Manifests {
		image, err := index.Image(desc.Digest)
		if err != nil {
			return err
		}
		if err := checkCraneImage(image); err != nil {
			return err
		}
	}
	return nil
}

func checkCraneImage(image ggcr.Image) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	if len(layers) != len(manifest.Layers) {
		return errors.New("layers are missing")
	}
	for _, layer := range layers {
		d, err := layer.Digest()
		if err != nil {
			return err
		}
		rc, err := layer.Compressed()
		if err != nil {
			return err
		}
		read, err := digest.FromReader(rc)
		if err := errors.Join(err, rc.Close()); err != nil {
			return err
		}
		if read.String() != d.String() {
			return errors.New("layer " + d.String() + " is " + read.String())
		}
	}
	return nil
}

// Images that crane's library adds to a layout of ours can be read.
func TestLayoutWrittenBySeveralTools(t *testing.T) {
	store := &graph.Store{}
	index := imagestest.Index(t, store, "ghcr.io/a/index:1", 1000, "amd64", "arm64")
	single := singleImage(t, store, index, "quay.io/b/single:2")
	dir := t.TempDir()
	want := map[string]digest.Digest{}

	pullToLayout(t, dir, graph.Items(store, index))
	want[index.Reference] = index.Descriptor.Digest
	checkSource(t, imagestest.Open(t, Open, dir), want)

	at := require.Value(ggcrlayout.FromPath(dir))(t)
	added := craneImage(t, 2)
	const addedName = "docker.io/library/added:1"
	require.NoError(t, at.ReplaceImage(added, match.Annotation(ocispec.AnnotationBaseImageName, addedName),
		ggcrlayout.WithAnnotations(map[string]string{ocispec.AnnotationBaseImageName: addedName})))
	d := require.Value(added.Digest())(t)
	want[addedName] = digest.Digest(d.String())
	checkSource(t, imagestest.Open(t, Open, dir), want)

	tool := require.Value(orasoci.New(dir))(t)
	const taggedName = "quay.io/b/tagged:3"
	require.NoError(t, tool.Tag(t.Context(), oci.Plain(singleImage(t, store, index, "").Descriptor), taggedName))
	want[taggedName] = single.Descriptor.Digest
	checkSource(t, imagestest.Open(t, Open, dir), want)

	pullToLayout(t, dir, graph.Items(store, single))
	want[single.Reference] = single.Descriptor.Digest
	checkSource(t, imagestest.Open(t, Open, dir), want)
}

// Docker archives written by crane's library have compressed layers.
func TestOpenReadsDockerArchivesOfCrane(t *testing.T) {
	image := craneImage(t, 3)
	tag := require.Value(ggcrname.NewTag("ghcr.io/a/b:1"))(t)
	var buf bytes.Buffer
	require.NoError(t, tarball.Write(tag, image, &buf))
	manifest := require.Value(image.Manifest())(t)
	var want []digest.Digest
	for _, layer := range manifest.Layers {
		want = append(want, digest.Digest(layer.Digest.String()))
	}
	got := describeStreamed(t, imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", buf.Bytes())))
	if len(got) != 1 || got[0].Reference != "ghcr.io/a/b:1" {
		t.Fatalf("images: %+v", got)
	}
	if diff := cmp.Diff(want, got[0].Layers); diff != "" {
		t.Error(diff)
	}
}
