package source

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func containerdName(name string) map[string]string {
	return map[string]string{oci.AnnotationContainerdName: name}
}

func TestOpenReadsEachKindOfSource(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 5000, "amd64", "arm64")
	layout := imagestest.Layout(t, store, imagestest.Annotated(image, containerdName("docker.io/library/hello:1")))
	docker := imagestest.Docker(t, []string{"hello:1"}, imagestest.Tar(t, imagestest.File{Name: "a", Data: imagestest.Noise(1, 3000)}),
		imagestest.Tar(t, imagestest.File{Name: "b"}))
	both := append(slices.Clone(layout), imagestest.File{Name: "manifest.json", Data: []byte(`[{"Config":"not/looked/at"}]`)})
	dotted := slices.Clone(layout)
	for i := range dotted {
		dotted[i].Name = "./" + dotted[i].Name
	}

	for name, c := range map[string]struct {
		path      string
		kind      string
		reference string
		platforms int
	}{
		"an OCI layout directory": {imagestest.WriteLayout(t, layout), "OCI layout", "docker.io/library/hello:1", 2},
		"an OCI archive": {imagestest.Temp(t, "image", imagestest.Tar(t, layout...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"an OCI archive with any file name": {imagestest.Temp(t, "image.zip", imagestest.Tar(t, layout...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"an OCI archive compressed with gzip": {imagestest.Temp(t, "image.tar", imagestest.Gzip(t, imagestest.Tar(t, layout...))),
			"OCI archive", "docker.io/library/hello:1", 2},
		"an OCI archive compressed with zstd": {imagestest.Temp(t, "image.tar", imagestest.Zstd(t, imagestest.Tar(t, layout...))),
			"OCI archive", "docker.io/library/hello:1", 2},
		"an OCI archive of tar -C dir .": {imagestest.Temp(t, "image.tar",
			imagestest.Tar(t, append([]imagestest.File{{Name: "./", Kind: tar.TypeDir}},
				dotted...)...)), "OCI archive", "docker.io/library/hello:1", 2},
		"an archive with both formats, as docker save writes it": {imagestest.Temp(t, "image.tar", imagestest.Tar(t, both...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"a docker archive": {imagestest.Temp(t, "image.tar", imagestest.Tar(t, docker...)), "docker archive", "hello:1", 1},
		"a docker archive compressed with gzip": {imagestest.Temp(t, "image.tar.gz", imagestest.Gzip(t, imagestest.Tar(t, docker...))),
			"docker archive", "hello:1", 1},
		"an unpacked docker archive": {imagestest.WriteLayout(t,
			slices.DeleteFunc(slices.Clone(docker),
				func(f imagestest.File) bool { return f.Kind == tar.TypeDir })), "docker layout", "hello:1", 1},
		"an OCI archive with trailing data": {imagestest.Temp(t, "image.tar", append(imagestest.Tar(t, layout...), "more"...)),
			"OCI archive", "docker.io/library/hello:1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			src := imagestest.Open(t, Open, c.path)
			if src.Kind() != c.kind {
				t.Errorf("recognized as an %s, want %s", src.Kind(), c.kind)
			}
			list := src.Images()
			if len(list) != 1 || list[0].Reference != c.reference || len(list[0].Platforms) != c.platforms {
				t.Fatalf("images: %+v", list)
			}
			nodes := imagestest.Nodes(t, src, list[0].Descriptor)
			if len(nodes) < 3 || graph.Size(nodes) != list[0].Size {
				t.Errorf("%d blobs of %d bytes, but the image has %d", len(nodes), graph.Size(nodes), list[0].Size)
			}
			for _, node := range nodes {
				imagestest.Fetch(t, src, node)
				imagestest.Fetch(t, src, node) // in any order, any number of times
			}
		})
	}
}

func TestOpenRemovesTemporaryFiles(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 100, "amd64")
	good := imagestest.Temp(t, "image.tgz", imagestest.Gzip(t, imagestest.Tar(t, imagestest.Layout(t, store, image.Descriptor)...)))
	bad := imagestest.Temp(t, "bad.tgz", imagestest.Gzip(t, []byte("nothing")))
	src := require.Value(Open(t.Context(), good))(t)
	require.NoError(t, src.Close())
	if _, err := Open(t.Context(), bad); err == nil {
		t.Error("opened a file that is not an archive")
	}
	if _, err := Open(cancelled(t), good); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestImageNames(t *testing.T) {
	const full, base = "ghcr.io/a/b:1", "docker.io/library/alpine:3"
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"containerd's and docker's name": {map[string]string{oci.AnnotationContainerdName: full,
			ocispec.AnnotationRefName: "1"}, full},
		"ORAS's full name": {map[string]string{ocispec.AnnotationRefName: full}, full},
		"ORAS's and crane's": {map[string]string{ocispec.AnnotationRefName: full,
			ocispec.AnnotationBaseImageName: full}, full},
		"a short but complete name": {map[string]string{ocispec.AnnotationRefName: "nginx:1"}, "nginx:1"},
		"crane's name alone":        {map[string]string{ocispec.AnnotationBaseImageName: full}, full},
		"skopeo's tag is no name":   {map[string]string{ocispec.AnnotationRefName: "latest"}, ""},
		"the base image is not the name": {map[string]string{ocispec.AnnotationRefName: "1",
			ocispec.AnnotationBaseImageName: base}, ""},
		"containerd's name with a base image": {map[string]string{oci.AnnotationContainerdName: full,
			ocispec.AnnotationBaseImageName: base}, full},
		"nothing": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := &graph.Store{}
			image := imagestest.Index(t, store, "", 100, "amd64")
			src := imagestest.Open(t, Open, imagestest.Temp(t, "image.tar", imagestest.Tar(t, imagestest.Layout(t, store, imagestest.Annotated(image, c.annotations))...)))
			if got := src.Images()[0].Reference; got != c.want {
				t.Errorf("name is %q, want %q", got, c.want)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	store := &graph.Store{}
	one, two := imagestest.Index(t, store, "", 100, "amd64"), imagestest.Index(t, store, "", 200, "amd64")
	open := func(listed ...ocispec.Descriptor) *Source {
		return imagestest.Open(t, Open, imagestest.Temp(t, "images.tar", imagestest.Tar(t, imagestest.Layout(t, store, listed...)...)))
	}
	references := func(list []graph.Image) (found []string) {
		for _, image := range list {
			found = append(found, image.Reference)
		}
		return found
	}
	for name, c := range map[string]struct {
		src       *Source
		reference string
		want      []string
		err       string
	}{
		"all images by their names": {
			src:  open(imagestest.Annotated(one, containerdName("docker.io/a/one:1")), imagestest.Annotated(two, containerdName("docker.io/a/two:1"))),
			want: []string{"docker.io/a/one:1", "docker.io/a/two:1"},
		},
		"one image with two names has both": {
			src: open(imagestest.Annotated(one, containerdName("docker.io/a/one:1")),
				imagestest.Annotated(one, containerdName("docker.io/a/one:latest"))),
			want: []string{"docker.io/a/one:1", "docker.io/a/one:latest"},
		},
		"one image listed twice is one": {
			src:  open(imagestest.Annotated(one, containerdName("docker.io/a/one:1")), imagestest.Annotated(one, containerdName("docker.io/a/one:1"))),
			want: []string{"docker.io/a/one:1"},
		},
		"a reference names the one image": {src: open(one.Descriptor), reference: "mine:1", want: []string{"mine:1"}},
		"a reference renames one with two names": {src: open(imagestest.Annotated(one, containerdName("docker.io/a/one:1")),
			imagestest.Annotated(one, containerdName("a:2"))), reference: "mine:1", want: []string{"mine:1"}},
		"a reference for several images is rejected": {
			src: open(imagestest.Annotated(one, containerdName("docker.io/a/one:1")), two.Descriptor), reference: "mine:1",
			err: "--reference names one image, but there are several: docker.io/a/one:1, " + two.Descriptor.Digest.String(),
		},
		"no name is rejected": {src: open(one.Descriptor), err: "image " + one.Descriptor.Digest.String() +
			" has no name: give it one with --reference NAME:TAG"},
		"an invalid name is rejected": {src: open(one.Descriptor), reference: "a b",
			err: `image reference "a b": invalid reference format`},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := c.src.Items(c.reference)
			if c.err != "" {
				want := "image source " + c.src.path + ": " + c.err
				if err == nil || err.Error() != want {
					t.Errorf("error %v\nwant  %s", err, want)
				}
				return
			}
			require.NoError(t, err)
			var got []graph.Image
			for _, item := range list {
				got = append(got, item.Image)
			}
			if diff := cmp.Diff(c.want, references(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDockerArchive(t *testing.T) {
	big, small := imagestest.Tar(t, imagestest.File{Name: "a", Data: imagestest.Noise(1, 3000)}), imagestest.Tar(t, imagestest.File{Name: "b"})

	t.Run("becomes an OCI image with unchanged layers and configuration", func(t *testing.T) {
		files := imagestest.Docker(t, []string{"hello:1", "example.com/hello:2"}, big, small)
		src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, files...)))
		list := src.Images()
		if len(list) != 2 || list[0].Reference != "hello:1" || list[1].Reference != "example.com/hello:2" ||
			list[0].Descriptor.Digest != list[1].Descriptor.Digest {
			t.Fatalf("images: %+v", list)
		}
		manifest := imagestest.Decode[ocispec.Manifest](t, src, list[0].Descriptor)
		config := files[len(files)-3].Data
		want := ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageManifest,
			Config:    content.NewDescriptorFromBytes(ocispec.MediaTypeImageConfig, config),
			Layers: []ocispec.Descriptor{
				content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, big),
				content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, small),
			},
		}
		if diff := cmp.Diff(want, manifest); diff != "" {
			t.Error(diff)
		}
		again := imagestest.Open(t, Open, imagestest.Temp(t, "b.tar", imagestest.Tar(t, files...)))
		if a, b := list[0].Descriptor, again.Images()[0].Descriptor; a.Digest != b.Digest {
			t.Errorf("opened twice, it is %s and %s", a.Digest, b.Digest)
		}
	})

	t.Run("may link shared layers", func(t *testing.T) {
		files := imagestest.Docker(t, []string{"hello:1"}, big, big)
		i := slices.IndexFunc(files, func(f imagestest.File) bool {
			return strings.HasPrefix(f.Name, "0") && strings.HasSuffix(f.Name, "2/layer.tar")
		})
		files[i] = imagestest.File{Name: files[i].Name, Link: "../" + strings.Repeat("0", 63) + "1/layer.tar"}
		src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, files...)))
		manifest := imagestest.Decode[ocispec.Manifest](t, src, src.Images()[0].Descriptor)
		if len(manifest.Layers) != 2 || !bytes.Equal(imagestest.Fetch(t, src, manifest.Layers[1]), big) {
			t.Errorf("layers: %+v", manifest.Layers)
		}
	})

	t.Run("may have compressed layers, as crane writes them", func(t *testing.T) {
		files := imagestest.Docker(t, []string{"hello:1"}, big)
		packed := imagestest.Gzip(t, big)
		i := slices.IndexFunc(files, func(f imagestest.File) bool { return strings.HasSuffix(f.Name, "/layer.tar") })
		files[i].Data = packed
		src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, files...)))
		manifest := imagestest.Decode[ocispec.Manifest](t, src, src.Images()[0].Descriptor)
		if diff := cmp.Diff([]ocispec.Descriptor{content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayerGzip, packed)},
			manifest.Layers); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("an image saved by its ID has no name", func(t *testing.T) {
		src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, imagestest.Docker(t, nil, big)...)))
		if _, err := src.Items(""); err == nil || !strings.Contains(err.Error(), "--reference") {
			t.Errorf("error: %v", err)
		}
	})
}

// docker's containerd image store saves the complete index of an image of which it has pulled one
// platform.
func TestIncompleteIndex(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 1000, "amd64", "arm64", "riscv64")
	index := imagestest.Decode[ocispec.Index](t, store, image.Descriptor)
	without := func(gone ...int) []imagestest.File {
		return slices.DeleteFunc(imagestest.Layout(t, store, imagestest.Annotated(image, containerdName("a:1"))), func(f imagestest.File) bool {
			return slices.ContainsFunc(gone, func(i int) bool { return f.Name == oci.BlobPath(index.Manifests[i].Digest) })
		})
	}
	linux := func(arch string) ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: arch} }

	t.Run("one manifest becomes the image", func(t *testing.T) {
		got := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, without(1, 2)...))).Images()[0]
		if got.Descriptor.Digest != index.Manifests[0].Digest {
			t.Errorf("image is %s, want the manifest for amd64", got.Descriptor.Digest)
		}
		if diff := cmp.Diff([][]ocispec.Platform{{linux("amd64")}, {linux("arm64"), linux("riscv64")}},
			[][]ocispec.Platform{got.Platforms, got.Omitted}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("several manifests become a new index", func(t *testing.T) {
		src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, without(1)...)))
		got := src.Images()[0]
		part := imagestest.Decode[ocispec.Index](t, src, got.Descriptor)
		if diff := cmp.Diff([]ocispec.Descriptor{index.Manifests[0], index.Manifests[2]}, part.Manifests); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([][]ocispec.Platform{{linux("amd64"), linux("riscv64")}, {linux("arm64")}},
			[][]ocispec.Platform{got.Platforms, got.Omitted}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("no manifest is an error", func(t *testing.T) {
		checkOpenError(t, imagestest.Temp(t, "a.tar", imagestest.Tar(t, without(0, 1, 2)...)),
			"OCI archive: image a:1: manifest "+index.Manifests[0].Digest.String()+": is missing from the source")
	})
}

func checkOpenError(t *testing.T, path, want string) {
	t.Helper()
	src, err := Open(t.Context(), path)
	if err == nil {
		src.Close()
		t.Fatalf("opened it without an error; want %q", want)
	}
	if want = "image source " + path + ": " + want; err.Error() != want {
		t.Errorf("error %q\nwant  %q", err, want)
	}
}

func TestOpenRejectsInvalidSources(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 2000, "amd64")
	layout := imagestest.Layout(t, store, imagestest.Annotated(image, containerdName("a:1")))
	whole := imagestest.Tar(t, layout...)
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	layer, manifest := nodes[1], nodes[3]
	if oci.IsManifest(layer.MediaType) || !oci.IsManifest(manifest.MediaType) {
		t.Fatalf("the test expects another order of blobs: %+v", nodes)
	}
	// with returns the layout with one file changed.
	with := func(name string, change func(imagestest.File) []imagestest.File) []imagestest.File {
		var changed []imagestest.File
		found := false
		for _, f := range layout {
			if f.Name != name {
				changed = append(changed, f)
				continue
			}
			found = true
			changed = append(changed, change(f)...)
		}
		if !found {
			t.Fatalf("no file %s", name)
		}
		return changed
	}
	without := func(name string) []imagestest.File {
		return with(name, func(imagestest.File) []imagestest.File { return nil })
	}
	replaced := func(name string, data []byte) []imagestest.File {
		return with(name, func(f imagestest.File) []imagestest.File { f.Data = data; return []imagestest.File{f} })
	}
	plus := func(more ...imagestest.File) []byte {
		return imagestest.Tar(t, append(slices.Clone(layout), more...)...)
	}
	docker := imagestest.Docker(t, []string{"hello:1"}, imagestest.Tar(t, imagestest.File{Name: "a"}))
	dockerWithout := func(suffix string) []byte {
		return imagestest.Tar(t, slices.DeleteFunc(slices.Clone(docker), func(f imagestest.File) bool {
			return strings.HasSuffix(f.Name, suffix)
		})...)
	}
	dockerLayer := strings.Repeat("0", 63) + "1/layer.tar"
	dockerConfig := docker[len(docker)-3]

	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing": {nil, "is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"text":    {[]byte("apiVersion: v1\nkind: Pod\n"), "is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"long text": {[]byte(strings.Repeat("apiVersion: v1\n", 1000)),
			"is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"JSON": {[]byte(`{"schemaVersion":2}`), "is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"a program": {append([]byte("\x7fELF"), make([]byte, 5000)...),
			"is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"a truncated archive compressed with zstd": {imagestest.Zstd(t, whole)[:2000],
			"is truncated: its compressed data ends early"},
		"text compressed with zstd": {imagestest.Zstd(t, []byte(strings.Repeat("text ", 500))),
			"is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"noise": {imagestest.Noise(7, 5000), "is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"a tar without entries": {make([]byte, 2*tarBlock),
			"is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"compressed text": {imagestest.Gzip(t, []byte(strings.Repeat("text ", 500))),
			"is not an image archive: want a tar, which may be compressed with gzip or zstd"},
		"a tar of other files": {imagestest.Tar(t, imagestest.File{Name: "etc/passwd"}, imagestest.File{Name: "bin/sh"}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive)"},
		"a layout packed with its folder": {imagestest.Tar(t, imagestest.File{Name: "my/oci-layout"}, imagestest.File{Name: "my/index.json"}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive)"},
		"an archive truncated within a blob": {whole[:len(whole)-2*tarBlock-100], "is truncated: it ends within entry " +
			layout[len(layout)-1].Name},
		"an archive truncated within a header": {whole[:2*tarBlock+100], "is truncated: it ends after entry oci-layout"},
		"an archive truncated between two blobs": {bytes.TrimSuffix(imagestest.Tar(t, layout[:3]...), make([]byte, 2*tarBlock)),
			"is truncated: it ends after entry " + layout[2].Name + ", without an end marker"},
		"a truncated compressed archive": {imagestest.Gzip(t, whole)[:2000], "is truncated: its compressed data ends early"},
		"an archive with a damaged header": {corrupt(whole, 2*tarBlock+20),
			"is damaged after entry oci-layout: archive/tar: invalid tar header"},

		"a layout of another version": {imagestest.Tar(t, replaced("oci-layout", []byte(`{"imageLayoutVersion":"2.0.0"}`))...),
			`OCI archive: oci-layout: unsupported version "2.0.0": want 1.0.0`},
		"an index that is not JSON": {imagestest.Tar(t, replaced("index.json", []byte("manifests: []"))...),
			"OCI archive: index.json: is not valid JSON: invalid character 'm' looking for beginning of value"},
		"an index without images": {imagestest.Tar(t, replaced("index.json", []byte("{}"))...),
			"OCI archive: contains no image"},
		"an index that is too large": {imagestest.Tar(t, replaced("index.json", make([]byte, oci.MaxManifestSize+1))...),
			"OCI archive: index.json: has 4194305 bytes: want at most 4194304"},
		"an index of another type": {imagestest.Tar(t, replaced("index.json",
			[]byte(`{"manifests":[{"mediaType":"text/plain","digest":"sha256:abc","size":1}]}`))...),
			`OCI archive: image sha256:abc: media type "text/plain" is neither a manifest nor an index`},
		"an index with an invalid digest": {imagestest.Tar(t, replaced("index.json",
			[]byte(`{"manifests":[{"mediaType":"`+ocispec.MediaTypeImageManifest+`","digest":"sha256:../../x","size":1}]}`))...),
			"OCI archive: image sha256:../../x: manifest sha256:../../x: invalid checksum digest length"},
		"a missing layer": {imagestest.Tar(t, without(oci.BlobPath(layer.Digest))...),
			"OCI archive: image a:1: blob " + layer.Digest.String() + ": is missing from the source"},
		"a missing manifest": {imagestest.Tar(t, without(oci.BlobPath(manifest.Digest))...),
			"OCI archive: image a:1: manifest " + manifest.Digest.String() + ": is missing from the source"},
		"an altered manifest": {imagestest.Tar(t, replaced(oci.BlobPath(manifest.Digest),
			corrupt(imagestest.Fetch(t, store, manifest), int(manifest.Size/2)))...),
			"OCI archive: image a:1: manifest " + manifest.Digest.String() +
				": does not match its digest: it was altered or damaged"},
		"a layer of another size": {imagestest.Tar(t, replaced(oci.BlobPath(layer.Digest), []byte("short"))...),
			"OCI archive: image a:1: blob " + layer.Digest.String() + ": has 5 bytes where its descriptor says 500"},

		"a layer that is a broken link": {imagestest.Tar(t,
			with(oci.BlobPath(layer.Digest), func(f imagestest.File) []imagestest.File {
				return []imagestest.File{{Name: f.Name, Link: "nowhere"}}
			})...), "OCI archive: image a:1: blob " + layer.Digest.String() + ": " +
			oci.BlobPath(layer.Digest) + ": is a link to blobs/sha256/nowhere, which is not a file in the archive"},
		"a layer that links to itself": {imagestest.Tar(t,
			with(oci.BlobPath(layer.Digest), func(f imagestest.File) []imagestest.File {
				return []imagestest.File{{Name: f.Name, Link: layer.Digest.Encoded()}}
			})...), "OCI archive: image a:1: blob " + layer.Digest.String() + ": " +
			oci.BlobPath(layer.Digest) + ": is a link to " + oci.BlobPath(layer.Digest) +
			", which is not a file in the archive"},
		"a later entry without images": {plus(imagestest.File{Name: "./index.json", Data: []byte("{}")}),
			"OCI archive: contains no image"},

		"a docker archive without a layer": {dockerWithout("/layer.tar"), "docker archive: image hello:1: layer " +
			dockerLayer + ": is missing from the source"},
		"a docker archive without a configuration": {dockerWithout(dockerConfig.Name),
			"docker archive: image hello:1: configuration " + dockerConfig.Name + ": is missing from the source"},
		"a docker archive without images": {imagestest.Tar(t, imagestest.File{Name: "manifest.json", Data: []byte("[]")}),
			"docker archive: contains no image"},
		"a docker archive with a wrong number of layers": {
			imagestest.Tar(t, append(slices.Clone(docker[:len(docker)-2]),
				imagestest.File{Name: "manifest.json", Data: imagestest.JSON(t,
					[]dockerImage{{Config: dockerConfig.Name, RepoTags: []string{"hello:1"}}})})...),
			"docker archive: image hello:1: configuration " + dockerConfig.Name + ": lists 1 layers, but manifest.json lists 0",
		},
		"a docker archive with a path that leads out": {
			imagestest.Tar(t, imagestest.File{Name: "manifest.json", Data: imagestest.JSON(t, []dockerImage{{Config: "../../etc/passwd"}})}),
			"docker archive: image number 1: configuration ../../etc/passwd: is missing from the source",
		},
	} {
		t.Run(name, func(t *testing.T) { checkOpenError(t, imagestest.Temp(t, "image.tar", c.data), c.want) })
	}

	t.Run("a path that does not exist", func(t *testing.T) {
		checkOpenError(t, filepath.Join(t.TempDir(), "image.tar"), "no such file or directory")
	})
	t.Run("an empty directory", func(t *testing.T) {
		checkOpenError(t, t.TempDir(),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive)")
	})
	t.Run("a directory of other files", func(t *testing.T) {
		checkOpenError(t, imagestest.WriteLayout(t, []imagestest.File{{Name: "Chart.yaml"}, {Name: "values.yaml"}}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive)")
	})
	t.Run("a device", func(t *testing.T) { checkOpenError(t, os.DevNull, "is neither a file nor a directory") })
	t.Run("a directory with a layer that links outside", func(t *testing.T) {
		outside := imagestest.Temp(t, "layer", imagestest.Fetch(t, store, layer))
		dir := imagestest.WriteLayout(t, without(oci.BlobPath(layer.Digest)))
		require.NoError(t, os.Symlink(outside, filepath.Join(dir, filepath.FromSlash(oci.BlobPath(layer.Digest)))))
		_, err := Open(t.Context(), dir)
		if err == nil || !strings.Contains(err.Error(), "path escapes from parent") ||
			!strings.Contains(err.Error(), layer.Digest.String()) {
			t.Errorf("error: %v", err)
		}
	})
	t.Run("a manifest larger than registries accept", func(t *testing.T) {
		huge := &graph.Store{}
		raw := append(imagestest.Fetch(t, store, manifest), bytes.Repeat([]byte(" "), oci.MaxManifestSize)...)
		d := digest.FromBytes(raw)
		huge.Put(d, blob.FromBytes(raw))
		_, err := graph.Nodes(t.Context(), huge, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d,
			Size: int64(len(raw))})
		if err == nil || !strings.Contains(err.Error(), "want at most 4194304") {
			t.Errorf("error: %v", err)
		}
	})
}

// Nothing is written to or read from names that lead out of an archive.
func TestNamesOutsideOfAnArchive(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 100, "amd64")
	files := imagestest.Layout(t, store, imagestest.Annotated(image, containerdName("a:1")))
	files = append(files, imagestest.File{Name: "/etc/passwd"}, imagestest.File{Name: "../../x"},
		imagestest.File{Name: "y", Link: "/etc/passwd"}, imagestest.File{Name: "z", Link: "../../x"})
	src := imagestest.Open(t, Open, imagestest.Temp(t, "a.tar", imagestest.Tar(t, files...)))
	checkSource(t, src, map[string]digest.Digest{"a:1": image.Descriptor.Digest})
}

func corrupt(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 0xff
	return b
}
