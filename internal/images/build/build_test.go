package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// payload has the files that tools/payload writes, with dummy programs.
func payload(t *testing.T) fstest.MapFS {
	t.Helper()
	licenses := require.Value(injector.BuildLayer("licenses", imagestest.Noise(9, 2_000)))(t)
	files := fstest.MapFS{LicensesFile: {Data: licenses}}
	for i, name := range ProgramNames {
		for j, arch := range Architectures {
			layer := require.Value(injector.BuildLayer(name, imagestest.Noise(uint64(10*i+j+1), 20_000)))(t)
			files[name+"-"+arch+".tar.gz"] = &fstest.MapFile{Data: layer}
		}
	}
	return files
}

func TestProgramImages(t *testing.T) {
	files := payload(t)
	store, list, err := ProgramImages(files, "ghcr.io/zarf-dev/zarf-registry", "1.2.3")
	require.NoError(t, err)
	if len(list) != len(ProgramNames) {
		t.Fatalf("%d images", len(list))
	}
	for i, image := range list {
		name := ProgramNames[i]
		if want := "ghcr.io/zarf-dev/zarf-registry/" + name + ":1.2.3"; image.Reference != want {
			t.Errorf("reference %s, want %s", image.Reference, want)
		}
		index := imagestest.Decode[ocispec.Index](t, store, image.Descriptor)
		if len(index.Manifests) != len(Architectures) {
			t.Fatalf("%s: %d manifests", name, len(index.Manifests))
		}
		for j, arch := range Architectures {
			if p := index.Manifests[j].Platform; p == nil || p.OS != "linux" || p.Architecture != arch {
				t.Errorf("%s: platform %+v, want linux/%s", name, p, arch)
			}
			manifest := imagestest.Decode[ocispec.Manifest](t, store, index.Manifests[j])
			var layers, diffIDs []digest.Digest
			for _, file := range []string{name + "-" + arch + ".tar.gz", LicensesFile} {
				if name == "probe" && file == LicensesFile {
					continue
				}
				layers = append(layers, digest.FromBytes(files[file].Data))
				diffIDs = append(diffIDs, digest.FromBytes(gunzip(t, files[file].Data)))
			}
			var got []digest.Digest
			for _, l := range manifest.Layers {
				if got = append(got, l.Digest); l.MediaType != ocispec.MediaTypeImageLayerGzip {
					t.Errorf("%s %s: layer %+v", name, arch, l)
				}
			}
			if diff := cmp.Diff(layers, got); diff != "" {
				t.Errorf("%s %s: layers: %s", name, arch, diff)
			}
			config := imagestest.Decode[ocispec.Image](t, store, manifest.Config)
			labels := map[string]string{
				"org.opencontainers.image.title":    name,
				"org.opencontainers.image.version":  "1.2.3",
				"org.opencontainers.image.source":   "https://github.com/zarf-dev/zarf-registry",
				"org.opencontainers.image.licenses": "Apache-2.0",
			}
			want := ocispec.ImageConfig{User: "65532:65532", Entrypoint: []string{"/" + name}, WorkingDir: "/", Labels: labels}
			if diff := cmp.Diff(want, config.Config); diff != "" {
				t.Errorf("%s %s: %s", name, arch, diff)
			}
			if config.Architecture != arch || config.OS != "linux" || config.Created == nil || config.Created.Unix() != 0 {
				t.Errorf("%s %s: configuration %+v", name, arch, config)
			}
			if diff := cmp.Diff(diffIDs, config.RootFS.DiffIDs); diff != "" {
				t.Errorf("%s %s: %s", name, arch, diff)
			}
			if diff := cmp.Diff([]map[string]string{labels, labels},
				[]map[string]string{manifest.Annotations, index.Annotations}); diff != "" {
				t.Errorf("%s %s: %s", name, arch, diff)
			}
		}
		if want := graph.Size(imagestest.Nodes(t, store, image.Descriptor)); image.Size != want {
			t.Errorf("%s: size %d, want %d", name, image.Size, want)
		}
	}

	_, elsewhere, err := ProgramImages(payload(t), "zarf-registry", "1.2.3")
	require.NoError(t, err)
	for i := range list {
		if list[i].Descriptor.Digest != elsewhere[i].Descriptor.Digest {
			t.Errorf("%s and %s differ", list[i].Reference, elsewhere[i].Reference)
		}
	}
	_, later, err := ProgramImages(files, "zarf-registry", "1.2.4")
	if err != nil || later[0].Descriptor.Digest == list[0].Descriptor.Digest {
		t.Errorf("two versions have the same digest, %v", err)
	}
}

// TestProgramImagesInflated checks that a record of the layers' content changes no image, and is used for the
// layer only that it describes.
func TestProgramImagesInflated(t *testing.T) {
	files := payload(t)
	digests := func() (digests []digest.Digest) {
		t.Helper()
		_, list, err := ProgramImages(files, "zarf-registry", "1")
		require.NoError(t, err)
		for _, image := range list {
			digests = append(digests, image.Descriptor.Digest)
		}
		return digests
	}
	want := digests()
	contents := map[string]injector.Inflated{}
	record := func() {
		t.Helper()
		data := require.Value(json.Marshal(contents))(t)
		files[injector.InflatedFile] = &fstest.MapFile{Data: data}
	}
	for _, name := range ProgramNames {
		for _, arch := range Architectures {
			content := require.Value(injector.Inflate(name, files[name+"-"+arch+".tar.gz"].Data))(t)
			contents[name+"-"+arch] = content
		}
	}
	record()
	if got := digests(); !slices.Equal(got, want) {
		t.Errorf("with the record %v, want %v", got, want)
	}
	other := contents["registry-amd64"]
	other.ArchiveSHA256 = contents["registry-arm64"].ArchiveSHA256
	contents["registry-amd64"] = other
	record()
	if got := digests(); got[0] == want[0] || !slices.Equal(got[1:], want[1:]) {
		t.Errorf("the record is not used: %v", got)
	}
	other.LayerSHA256 = contents["registry-arm64"].LayerSHA256
	contents["registry-amd64"] = other
	record()
	if got := digests(); !slices.Equal(got, want) {
		t.Errorf("the record of another layer is used: %v, want %v", got, want)
	}
	files[injector.InflatedFile] = &fstest.MapFile{Data: []byte("{")}
	if _, _, err := ProgramImages(files, "zarf-registry", "1"); err == nil {
		t.Error("an invalid record is accepted")
	}
}

func TestProgramImagesErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(fstest.MapFS)
		is     error
		want   string
	}{
		"missing layer": {
			func(f fstest.MapFS) { delete(f, "probe-arm64.tar.gz") }, fs.ErrNotExist,
			"image of probe for arm64: its layer was not built into this program: layer: open probe-arm64.tar.gz: file does " +
				"not exist",
		},
		"missing license texts": {
			func(f fstest.MapFS) { delete(f, LicensesFile) }, fs.ErrNotExist,
			"layer: open licenses.tar.gz: file does not exist",
		},
		"uncompressed layer": {
			func(f fstest.MapFS) { f["registry-amd64.tar.gz"].Data = make([]byte, 1024) }, nil,
			"image of registry for amd64: layer registry-amd64.tar.gz: gzip: invalid header",
		},
		"truncated layer": {
			func(f fstest.MapFS) { f["registry-amd64.tar.gz"].Data = f["registry-amd64.tar.gz"].Data[:5000] },
			io.ErrUnexpectedEOF,
			"image of registry for amd64: layer registry-amd64.tar.gz: unexpected EOF",
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := payload(t)
			c.change(files)
			_, _, err := ProgramImages(files, "zarf-registry", "1")
			if err == nil || err.Error() != c.want || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v\nwant  %s", err, c.want)
			}
		})
	}
	if _, err := Image(&graph.Store{}, NewSpec("a", "b", "1")); err == nil {
		t.Error("built an image without a layer")
	}
}

func TestSelfImage(t *testing.T) {
	for name, size := range map[string]int{"of any length": 70_001, "of whole blocks": 2 * tarBlock, "that is empty": 0} {
		t.Run("a program "+name, func(t *testing.T) {
			program := imagestest.Noise(1, size)
			store, image, err := SelfImage(payload(t), imagestest.Temp(t, "exe", program), runtime.GOARCH, "zarf-registry", "init-hook",
				"1")
			require.NoError(t, err)
			nodes := imagestest.Nodes(t, store, image.Descriptor)
			i := slices.IndexFunc(nodes, func(d ocispec.Descriptor) bool { return oci.Kind(d.MediaType) == "blob" })
			layer := nodes[i]
			tr := tar.NewReader(bytes.NewReader(imagestest.Fetch(t, store, layer)))
			header := require.Value(tr.Next())(t)
			content, err := io.ReadAll(tr)
			if err != nil || !bytes.Equal(content, program) {
				t.Errorf("the layer contains another program, %v", err)
			}
			if header.Name != "init-hook" || header.Mode != 0o555 || header.Uid != 0 || header.ModTime.Unix() != 0 {
				t.Errorf("header %+v", header)
			}
			if _, err := tr.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("after the program: %v", err)
			}
		})
	}
	t.Run("its ID differs from that of the release image", func(t *testing.T) {
		exe := imagestest.Temp(t, "exe", []byte("program"))
		id := func(store *graph.Store, image graph.Image) digest.Digest {
			nodes := imagestest.Nodes(t, store, image.Descriptor)
			i := slices.IndexFunc(nodes, func(d ocispec.Descriptor) bool { return d.MediaType == ocispec.MediaTypeImageConfig })
			return nodes[i].Digest
		}
		layer := require.Value(FileLayer("init-hook", exe))(t)
		release := &graph.Store{}
		image, err := Image(release, NewSpec("zarf-registry", "init-hook", "1"),
			Variant{Architecture: "amd64", Layers: []Layer{layer}})
		require.NoError(t, err)
		store, self, err := SelfImage(payload(t), exe, "amd64", "zarf-registry", "init-hook", "1")
		require.NoError(t, err)
		if id(release, image) == id(store, self) {
			t.Error("a kubelet would mistake one image for the other")
		}
	})
	if _, _, err := SelfImage(payload(t), t.TempDir()+"/exe", "amd64", "zarf-registry", "init-hook", "1"); !errors.Is(
		err, fs.ErrNotExist) {
		t.Errorf("error: %v", err)
	}
}

func TestWriteArchive(t *testing.T) {
	write := func(src graph.Content, list ...graph.Image) []byte {
		t.Helper()
		path := filepath.Join(t.TempDir(), "images.tar")
		require.NoError(t, images.WriteArchive(t.Context(), path, src, list...))
		return require.Value(os.ReadFile(path))(t)
	}
	store, list, err := ProgramImages(payload(t), "ghcr.io/zarf-dev/zarf-registry", "1.2.3")
	require.NoError(t, err)

	t.Run("is reproducible", func(t *testing.T) {
		again, listAgain, err := ProgramImages(payload(t), "ghcr.io/zarf-dev/zarf-registry", "1.2.3")
		require.NoError(t, err)
		if !bytes.Equal(write(store, list...), write(again, listAgain...)) {
			t.Error("two archives of the same programs differ")
		}
	})

	// If digests change, a registry receives all images of a release again.
	t.Run("keeps the digests of released images", func(t *testing.T) {
		fixed := &graph.Store{}
		layer := require.Value(FileLayer("registry", imagestest.Temp(t, "registry", []byte("program"))))(t)
		image, err := Image(fixed, NewSpec("ghcr.io/zarf-dev/zarf-registry", "registry", "1.2.3"), Variant{"amd64", []Layer{layer}},
			Variant{"arm64", []Layer{layer}})
		require.NoError(t, err)
		sum := sha256.Sum256(write(fixed, image))
		got := [2]string{image.Descriptor.Digest.String(), hex.EncodeToString(sum[:])}
		want := [2]string{
			"sha256:45cacbd4f5bf1abcecaf4ab73b1caaffd284f5310d093e441df06d15343b5dc9",
			"24bcab6829c98c2347538eda1dc171c28e483c29e0e9a88cdb38bb47eea2cd20",
		}
		if got != want {
			t.Errorf("image and archive are\n%s\nwant\n%s", strings.Join(got[:], "\n"), strings.Join(want[:], "\n"))
		}
	})

	t.Run("can be read by Open", func(t *testing.T) {
		src := imagestest.Open(t, source.Open, imagestest.Temp(t, "images.tar", write(store, list...)))
		byName := slices.SortedFunc(slices.Values(list), func(a, b graph.Image) int {
			return strings.Compare(a.Reference, b.Reference)
		})
		if diff := cmp.Diff(byName, src.Images()); diff != "" {
			t.Error(diff)
		}
		for _, image := range src.Images() {
			for _, node := range imagestest.Nodes(t, src, image.Descriptor) {
				imagestest.Fetch(t, src, node)
			}
		}
	})

	t.Run("names images for containerd, ORAS and crane", func(t *testing.T) {
		var index ocispec.Index
		for tr := tar.NewReader(bytes.NewReader(write(store, list[0]))); ; {
			header := require.Value(tr.Next())(t)
			if header.Name == ocispec.ImageIndexFile {
				require.NoError(t, json.NewDecoder(tr).Decode(&index))
				break
			}
		}
		want := map[string]string{
			"io.containerd.image.name":           "ghcr.io/zarf-dev/zarf-registry/registry:1.2.3",
			"org.opencontainers.image.ref.name":  "ghcr.io/zarf-dev/zarf-registry/registry:1.2.3",
			"org.opencontainers.image.base.name": "ghcr.io/zarf-dev/zarf-registry/registry:1.2.3",
		}
		if diff := cmp.Diff(want, index.Manifests[0].Annotations); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("copies another archive", func(t *testing.T) {
		one := write(store, list...)
		src := imagestest.Open(t, source.Open, imagestest.Temp(t, "images.tar", one))
		if !bytes.Equal(one, write(src, src.Images()...)) {
			t.Error("the archives differ")
		}
	})

	t.Run("fails if a blob does not match its digest", func(t *testing.T) {
		bad := &graph.Store{}
		nodes := imagestest.Nodes(t, store, list[0].Descriptor)
		for _, node := range nodes {
			b, _ := store.Find(node.Digest)
			bad.Put(node.Digest, b)
		}
		bad.Put(nodes[0].Digest, blob.FromBytes(make([]byte, nodes[0].Size)))
		err = images.WriteArchive(t.Context(), filepath.Join(t.TempDir(), "images.tar"), bad, list[0])
		if err == nil || !strings.Contains(err.Error(), nodes[0].Digest.Encoded()) ||
			!strings.Contains(err.Error(), "does not match its digest") {
			t.Errorf("error: %v", err)
		}
	})
}

func gunzip(t *testing.T, b []byte) []byte {
	t.Helper()
	return require.Value(io.ReadAll(require.Value(gzip.NewReader(bytes.NewReader(b)))(t)))(t)
}
