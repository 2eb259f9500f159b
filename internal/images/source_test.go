package images

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
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

func containerdName(name string) map[string]string {
	return map[string]string{oci.AnnotationContainerdName: name}
}

func TestOpenReadsEachKindOfSource(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "", 5000, "amd64", "arm64")
	layout := layoutFiles(t, store, annotated(image, containerdName("docker.io/library/hello:1")))
	docker := dockerArchive(t, []string{"hello:1"}, makeTar(t, file{name: "a", data: noise(1, 3000)}),
		makeTar(t, file{name: "b"}))
	both := append(slices.Clone(layout), file{name: "manifest.json", data: []byte(`[{"Config":"not/looked/at"}]`)})
	dotted := slices.Clone(layout)
	for i := range dotted {
		dotted[i].name = "./" + dotted[i].name
	}

	for name, c := range map[string]struct {
		path      string
		kind      string
		reference string
		platforms int
	}{
		"an OCI layout directory": {writeLayout(t, layout), "OCI layout", "docker.io/library/hello:1",
			2},
		"an OCI archive": {writeTemp(t, "image", makeTar(t, layout...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"an OCI archive with any file name": {writeTemp(t, "image.zip", makeTar(t, layout...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"an OCI archive compressed with gzip": {writeTemp(t, "image.tar", gzipped(t, makeTar(t, layout...))),
			"OCI archive", "docker.io/library/hello:1", 2},
		"an OCI archive compressed with zstd": {writeTemp(t, "image.tar", zstandard(t, makeTar(t, layout...))),
			"OCI archive", "docker.io/library/hello:1", 2},
		"an OCI archive of tar -C dir .": {writeTemp(t, "image.tar",
			makeTar(t, append([]file{{name: "./", kind: tar.TypeDir}},
				dotted...)...)), "OCI archive", "docker.io/library/hello:1", 2},
		"an archive with both formats, as docker save writes it": {writeTemp(t, "image.tar", makeTar(t, both...)), "OCI archive",
			"docker.io/library/hello:1", 2},
		"a docker archive": {writeTemp(t, "image.tar", makeTar(t, docker...)), "docker archive",
			"hello:1", 1},
		"a docker archive compressed with gzip": {writeTemp(t, "image.tar.gz", gzipped(t, makeTar(t, docker...))),
			"docker archive", "hello:1", 1},
		"an OCI archive without the tar's end marker": {writeTemp(t, "image.tar",
			bytes.TrimSuffix(makeTar(t, layout...), make([]byte, 2*tarBlock))), "OCI archive", "docker.io/library/hello:1", 2},
		"an unpacked docker archive": {writeLayout(t,
			slices.DeleteFunc(slices.Clone(docker),
				func(f file) bool { return f.kind == tar.TypeDir })), "docker layout", "hello:1", 1},
		"an OCI archive with trailing data": {writeTemp(t, "image.tar", append(makeTar(t, layout...), "more"...)),
			"OCI archive", "docker.io/library/hello:1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			src := mustOpen(t, c.path)
			if src.Kind() != c.kind {
				t.Errorf("recognized as an %s, want %s", src.Kind(), c.kind)
			}
			list := src.Images()
			if len(list) != 1 || list[0].Reference != c.reference || len(list[0].Platforms) != c.platforms {
				t.Fatalf("images: %+v", list)
			}
			nodes := nodesOf(t, src, list[0].Descriptor)
			if len(nodes) < 3 || totalSize(nodes) != list[0].Size {
				t.Errorf("%d blobs of %d bytes, but the image has %d", len(nodes), totalSize(nodes), list[0].Size)
			}
			for _, node := range nodes {
				fetchAll(t, src, node)
				fetchAll(t, src, node) // in any order, any number of times
			}
		})
	}
}

func TestOpenRemovesTemporaryFiles(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	store := &Store{}
	image := testImage(t, store, "", 100, "amd64")
	good := writeTemp(t, "image.tgz", gzipped(t, makeTar(t, layoutFiles(t, store, image.Descriptor)...)))
	bad := writeTemp(t, "bad.tgz", gzipped(t, []byte("nothing")))
	src, err := Open(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
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
			store := &Store{}
			image := testImage(t, store, "", 100, "amd64")
			src := mustOpen(t, writeTemp(t, "image.tar", makeTar(t, layoutFiles(t, store, annotated(image, c.annotations))...)))
			if got := src.Images()[0].Reference; got != c.want {
				t.Errorf("name is %q, want %q", got, c.want)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	store := &Store{}
	one, two := testImage(t, store, "", 100, "amd64"), testImage(t, store, "", 200, "amd64")
	open := func(listed ...ocispec.Descriptor) *Source {
		return mustOpen(t, writeTemp(t, "images.tar", makeTar(t, layoutFiles(t, store, listed...)...)))
	}
	references := func(list []Image) (found []string) {
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
			src:  open(annotated(one, containerdName("docker.io/a/one:1")), annotated(two, containerdName("docker.io/a/two:1"))),
			want: []string{"docker.io/a/one:1", "docker.io/a/two:1"},
		},
		"one image with two names has both": {
			src: open(annotated(one, containerdName("docker.io/a/one:1")),
				annotated(one, containerdName("docker.io/a/one:latest"))),
			want: []string{"docker.io/a/one:1", "docker.io/a/one:latest"},
		},
		"one image listed twice is one": {
			src:  open(annotated(one, containerdName("docker.io/a/one:1")), annotated(one, containerdName("docker.io/a/one:1"))),
			want: []string{"docker.io/a/one:1"},
		},
		"a reference names the one image": {src: open(one.Descriptor), reference: "mine:1", want: []string{"mine:1"}},
		"a reference renames one with two names": {src: open(annotated(one, containerdName("docker.io/a/one:1")),
			annotated(one, containerdName("a:2"))), reference: "mine:1", want: []string{"mine:1"}},
		"a reference for several images is rejected": {
			src: open(annotated(one, containerdName("docker.io/a/one:1")), two.Descriptor), reference: "mine:1",
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
			if err != nil {
				t.Fatal(err)
			}
			var got []Image
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
	big, small := makeTar(t, file{name: "a", data: noise(1, 3000)}), makeTar(t, file{name: "b"})

	t.Run("becomes an OCI image with unchanged layers and configuration", func(t *testing.T) {
		files := dockerArchive(t, []string{"hello:1", "example.com/hello:2"}, big, small)
		src := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, files...)))
		list := src.Images()
		if len(list) != 2 || list[0].Reference != "hello:1" || list[1].Reference != "example.com/hello:2" ||
			list[0].Descriptor.Digest != list[1].Descriptor.Digest {
			t.Fatalf("images: %+v", list)
		}
		manifest := decode[ocispec.Manifest](t, src, list[0].Descriptor)
		config := files[len(files)-3].data
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
		again := mustOpen(t, writeTemp(t, "b.tar", makeTar(t, files...)))
		if a, b := list[0].Descriptor, again.Images()[0].Descriptor; a.Digest != b.Digest {
			t.Errorf("opened twice, it is %s and %s", a.Digest, b.Digest)
		}
	})

	t.Run("may link shared layers", func(t *testing.T) {
		files := dockerArchive(t, []string{"hello:1"}, big, big)
		i := slices.IndexFunc(files, func(f file) bool {
			return strings.HasPrefix(f.name, "0") &&
				strings.HasSuffix(f.name, "2/layer.tar")
		})
		files[i] = file{name: files[i].name, link: "../" + strings.Repeat("0", 63) + "1/layer.tar"}
		src := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, files...)))
		manifest := decode[ocispec.Manifest](t, src, src.Images()[0].Descriptor)
		if len(manifest.Layers) != 2 || !bytes.Equal(fetchAll(t, src, manifest.Layers[1]), big) {
			t.Errorf("layers: %+v", manifest.Layers)
		}
	})

	t.Run("may have compressed layers, as crane writes them", func(t *testing.T) {
		files := dockerArchive(t, []string{"hello:1"}, big)
		packed := gzipped(t, big)
		i := slices.IndexFunc(files, func(f file) bool { return strings.HasSuffix(f.name, "/layer.tar") })
		files[i].data = packed
		src := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, files...)))
		manifest := decode[ocispec.Manifest](t, src, src.Images()[0].Descriptor)
		if diff := cmp.Diff([]ocispec.Descriptor{content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayerGzip, packed)},
			manifest.Layers); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("an image saved by its ID has no name", func(t *testing.T) {
		src := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, dockerArchive(t, nil, big)...)))
		if _, err := src.Items(""); err == nil || !strings.Contains(err.Error(), "--reference") {
			t.Errorf("error: %v", err)
		}
	})
}

// docker's containerd image store saves the complete index of an image of which it has pulled one
// platform.
func TestIncompleteIndex(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "", 1000, "amd64", "arm64", "riscv64")
	index := decode[ocispec.Index](t, store, image.Descriptor)
	without := func(gone ...int) []file {
		return slices.DeleteFunc(layoutFiles(t, store, annotated(image, containerdName("a:1"))), func(f file) bool {
			return slices.ContainsFunc(gone, func(i int) bool { return f.name == oci.BlobPath(index.Manifests[i].Digest) })
		})
	}
	linux := func(arch string) ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: arch} }

	t.Run("one manifest becomes the image", func(t *testing.T) {
		got := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, without(1, 2)...))).Images()[0]
		if got.Descriptor.Digest != index.Manifests[0].Digest {
			t.Errorf("image is %s, want the manifest for amd64", got.Descriptor.Digest)
		}
		if diff := cmp.Diff([][]ocispec.Platform{{linux("amd64")}, {linux("arm64"), linux("riscv64")}},
			[][]ocispec.Platform{got.Platforms, got.Omitted}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("several manifests become a new index", func(t *testing.T) {
		src := mustOpen(t, writeTemp(t, "a.tar", makeTar(t, without(1)...)))
		got := src.Images()[0]
		part := decode[ocispec.Index](t, src, got.Descriptor)
		if diff := cmp.Diff([]ocispec.Descriptor{index.Manifests[0], index.Manifests[2]}, part.Manifests); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([][]ocispec.Platform{{linux("amd64"), linux("riscv64")}, {linux("arm64")}},
			[][]ocispec.Platform{got.Platforms, got.Omitted}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("no manifest is an error", func(t *testing.T) {
		checkOpenError(t, writeTemp(t, "a.tar", makeTar(t, without(0, 1, 2)...)),
			"OCI archive: image a:1: manifest "+index.Manifests[0].Digest.String()+": is missing from the source")
	})
	t.Run("a truncated archive is an error", func(t *testing.T) {
		cut := bytes.TrimSuffix(makeTar(t, without(1, 2)...), make([]byte, 2*tarBlock))
		checkOpenError(t, writeTemp(t, "a.tar", cut),
			"OCI archive: image a:1: manifest "+index.Manifests[1].Digest.String()+
				": is missing from the source (the archive has no end marker, so it seems to be truncated)")
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
	store := &Store{}
	image := testImage(t, store, "", 2000, "amd64")
	layout := layoutFiles(t, store, annotated(image, containerdName("a:1")))
	whole := makeTar(t, layout...)
	nodes := nodesOf(t, store, image.Descriptor)
	layer, manifest := nodes[1], nodes[3]
	if oci.IsManifest(layer.MediaType) || !oci.IsManifest(manifest.MediaType) {
		t.Fatalf("the test expects another order of blobs: %+v", nodes)
	}
	// with returns the layout with one file changed.
	with := func(name string, change func(file) []file) []file {
		var changed []file
		found := false
		for _, f := range layout {
			if f.name != name {
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
	without := func(name string) []file { return with(name, func(file) []file { return nil }) }
	replaced := func(name string, data []byte) []file {
		return with(name, func(f file) []file { f.data = data; return []file{f} })
	}
	plus := func(more ...file) []byte { return makeTar(t, append(slices.Clone(layout), more...)...) }
	docker := dockerArchive(t, []string{"hello:1"}, makeTar(t, file{name: "a"}))
	dockerWithout := func(suffix string) []byte {
		return makeTar(t, slices.DeleteFunc(slices.Clone(docker), func(f file) bool {
			return strings.HasSuffix(f.name,
				suffix)
		})...)
	}
	dockerLayer := strings.Repeat("0", 63) + "1/layer.tar"
	dockerConfig := docker[len(docker)-3]

	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing": {nil, "is not an image archive: it is empty"},
		"text":    {[]byte("apiVersion: v1\nkind: Pod\n"), "is not an image archive: it is text"},
		"long text": {[]byte(strings.Repeat("apiVersion: v1\n", 1000)),
			"is not an image archive: it is text"},
		"JSON": {[]byte(`{"schemaVersion":2}`), "is not an image archive: it is JSON text"},
		"a program": {append([]byte("\x7fELF"), make([]byte, 5000)...),
			"is not an image archive: it is a program"},
		"a zip archive": {append([]byte("PK\x03\x04"), noise(1, 5000)...),
			"is not an image archive: it is a zip archive"},
		"a truncated archive compressed with zstd": {zstandard(t, whole)[:2000],
			"is truncated: its compressed data ends early"},
		"text compressed with zstd": {zstandard(t, []byte(strings.Repeat("text ", 500))),
			"is not an image archive: it is zstd-compressed data without a tar in it"},
		"noise": {noise(7, 5000), "is not an image archive: it is data of an unknown kind"},
		"a tar without entries": {make([]byte, 2*tarBlock),
			"is not an image archive: it is a tar without entries"},
		"compressed text": {gzipped(t, []byte(strings.Repeat("text ", 500))),
			"is not an image archive: it is gzip-compressed data without a tar in it"},
		"a tar of other files": {makeTar(t, file{name: "etc/passwd"}, file{name: "bin/sh"}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive), but " +
				"etc/passwd, bin/sh"},
		"a layout packed with its folder": {makeTar(t, file{name: "my/oci-layout"}, file{name: "my/index.json"}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive), but " +
				"my/oci-layout, my/index.json"},
		"an archive truncated within a blob": {whole[:len(whole)-2*tarBlock-100], "is truncated: it ends within entry " +
			layout[len(layout)-1].name},
		"an archive truncated within a header": {whole[:2*tarBlock+100], "is truncated: it ends after entry oci-layout"},
		"an archive truncated between two blobs": {bytes.TrimSuffix(makeTar(t, layout[:3]...), make([]byte, 2*tarBlock)),
			"OCI archive: image a:1: index " + image.Descriptor.Digest.String() +
				": is missing from the source (the archive has no end marker, so it seems to be truncated)"},
		"a truncated compressed archive": {gzipped(t, whole)[:2000], "is truncated: its compressed data ends early"},
		"an archive with a damaged header": {corrupt(whole, 2*tarBlock+20),
			"is damaged after entry oci-layout: archive/tar: invalid tar header"},

		"a layout without index": {makeTar(t, without("index.json")...),
			"is an OCI archive without its index.json"},
		"a layout without oci-layout": {makeTar(t, without("oci-layout")...),
			"has an index.json, but no oci-layout, which an OCI layout requires"},
		"a layout of another version": {makeTar(t, replaced("oci-layout", []byte(`{"imageLayoutVersion":"2.0.0"}`))...),
			`OCI archive: oci-layout: unsupported version "2.0.0": want 1.0.0`},
		"an index that is not JSON": {makeTar(t, replaced("index.json", []byte("manifests: []"))...),
			"OCI archive: index.json: is not valid JSON: invalid character 'm' looking for beginning of value"},
		"an index without images": {makeTar(t, replaced("index.json", []byte("{}"))...),
			"OCI archive: contains no image"},
		"an index that is too large": {makeTar(t, replaced("index.json", make([]byte, oci.MaxManifestSize+1))...),
			"OCI archive: index.json: has 4194305 bytes: want at most 4194304"},
		"an index of another type": {makeTar(t, replaced("index.json",
			[]byte(`{"manifests":[{"mediaType":"text/plain","digest":"sha256:abc","size":1}]}`))...),
			`OCI archive: image sha256:abc: media type "text/plain" is neither a manifest nor an index`},
		"an index with an invalid digest": {makeTar(t, replaced("index.json",
			[]byte(`{"manifests":[{"mediaType":"`+ocispec.MediaTypeImageManifest+`","digest":"sha256:../../x","size":1}]}`))...),
			"OCI archive: image sha256:../../x: manifest sha256:../../x: invalid checksum digest length"},
		"a missing layer": {makeTar(t, without(oci.BlobPath(layer.Digest))...),
			"OCI archive: image a:1: blob " + layer.Digest.String() + ": is missing from the source"},
		"a missing manifest": {makeTar(t, without(oci.BlobPath(manifest.Digest))...),
			"OCI archive: image a:1: manifest " + manifest.Digest.String() + ": is missing from the source"},
		"an altered manifest": {makeTar(t, replaced(oci.BlobPath(manifest.Digest),
			corrupt(fetchAll(t, store, manifest), int(manifest.Size/2)))...),
			"OCI archive: image a:1: manifest " + manifest.Digest.String() +
				": does not match its digest: it was altered or damaged"},
		"a layer of another size": {makeTar(t, replaced(oci.BlobPath(layer.Digest), []byte("short"))...),
			"OCI archive: image a:1: blob " + layer.Digest.String() + ": has 5 bytes where its descriptor says 500"},

		"a path that leads out": {plus(file{name: "../../etc/cron.d/x"}),
			`entry "../../etc/cron.d/x" leads out of the archive`},
		"a path with .. in the middle": {plus(file{name: "blobs/../../x"}),
			`entry "blobs/../../x" leads out of the archive`},
		"an absolute path": {plus(file{name: "/etc/passwd"}), `entry "/etc/passwd" is an absolute path`},
		"a symbolic link that leads out": {plus(file{name: "x", link: "../../etc/passwd"}),
			`entry "x" is a link to "../../etc/passwd", which leads out of the archive`},
		"an absolute symbolic link": {plus(file{name: "x", link: "/etc/passwd"}),
			`entry "x" is a link to "/etc/passwd", which is an absolute path`},
		"a hard link that leads out": {plus(file{name: "x", link: "../x", kind: tar.TypeLink}),
			`entry "x" is a link to "../x", which leads out of the archive`},
		"a layer that is a broken link": {makeTar(t,
			with(oci.BlobPath(layer.Digest), func(f file) []file {
				return []file{{name: f.name,
					link: "nowhere"}}
			})...), "OCI archive: image a:1: blob " + layer.Digest.String() + ": " +
			oci.BlobPath(layer.Digest) + ": is a link to blobs/sha256/nowhere, which is not a file in the archive"},
		"a layer that links to itself": {makeTar(t,
			with(oci.BlobPath(layer.Digest), func(f file) []file {
				return []file{{name: f.name,
					link: layer.Digest.Encoded()}}
			})...), "OCI archive: image a:1: blob " + layer.Digest.String() + ": " +
			oci.BlobPath(layer.Digest) + ": is a link to " + oci.BlobPath(layer.Digest) +
			", which is not a file in the archive"},
		"a later entry without images": {plus(file{name: "./index.json", data: []byte("{}")}),
			"OCI archive: contains no image"},

		"a docker archive without a layer": {dockerWithout("/layer.tar"), "docker archive: image hello:1: layer " +
			dockerLayer + ": is missing from the source"},
		"a docker archive without a configuration": {dockerWithout(dockerConfig.name),
			"docker archive: image hello:1: configuration " + dockerConfig.name + ": is missing from the source"},
		"a docker archive without images": {makeTar(t, file{name: "manifest.json", data: []byte("[]")}),
			"docker archive: contains no image"},
		"a docker archive before docker 1.10": {makeTar(t, file{name: "repositories"}),
			"is a docker archive from before docker 1.10: save the image again with a newer docker"},
		"a docker archive with a wrong number of layers": {
			makeTar(t, append(slices.Clone(docker[:len(docker)-2]),
				file{name: "manifest.json", data: asJSON(t,
					[]dockerImage{{Config: dockerConfig.name, RepoTags: []string{"hello:1"}}})})...),
			"docker archive: image hello:1: configuration " + dockerConfig.name + ": lists 1 layers, but manifest.json lists 0",
		},
		"a docker archive with a path that leads out": {
			makeTar(t, file{name: "manifest.json", data: asJSON(t, []dockerImage{{Config: "../../etc/passwd"}})}),
			"docker archive: image number 1: configuration ../../etc/passwd: is missing from the source",
		},
	} {
		t.Run(name, func(t *testing.T) { checkOpenError(t, writeTemp(t, "image.tar", c.data), c.want) })
	}

	t.Run("a path that does not exist", func(t *testing.T) {
		checkOpenError(t, filepath.Join(t.TempDir(), "image.tar"), "no such file or directory")
	})
	t.Run("an empty directory", func(t *testing.T) { checkOpenError(t, t.TempDir(), "is empty") })
	t.Run("a directory of other files", func(t *testing.T) {
		checkOpenError(t, writeLayout(t, []file{{name: "Chart.yaml"}, {name: "values.yaml"}}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive), but "+
				"Chart.yaml, values.yaml")
	})
	t.Run("a device", func(t *testing.T) { checkOpenError(t, os.DevNull, "is neither a file nor a directory") })
	t.Run("a directory with a layer that links outside", func(t *testing.T) {
		outside := writeTemp(t, "layer", fetchAll(t, store, layer))
		dir := writeLayout(t, without(oci.BlobPath(layer.Digest)))
		if err := os.Symlink(outside, filepath.Join(dir, filepath.FromSlash(oci.BlobPath(layer.Digest)))); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), dir)
		if err == nil || !strings.Contains(err.Error(), "path escapes from parent") ||
			!strings.Contains(err.Error(), layer.Digest.String()) {
			t.Errorf("error: %v", err)
		}
	})
	t.Run("a manifest larger than registries accept", func(t *testing.T) {
		huge := &Store{}
		raw := append(fetchAll(t, store, manifest), bytes.Repeat([]byte(" "), oci.MaxManifestSize)...)
		d := digest.FromBytes(raw)
		huge.add(d, blob.FromBytes(raw))
		_, err := graph(t.Context(), huge, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d,
			Size: int64(len(raw))})
		if err == nil || !strings.Contains(err.Error(), "want at most 4194304") {
			t.Errorf("error: %v", err)
		}
	})
}

func corrupt(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 0xff
	return b
}
