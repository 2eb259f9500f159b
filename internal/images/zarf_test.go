package images

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	orasoci "oras.land/oras-go/v2/content/oci"
)

// zarfPackage returns the files of a package as zarf package create writes them, in the order of its archives, with the
// files of an OCI layout as images.
func zarfPackage(t testing.TB, layout ...file) []file {
	t.Helper()
	files := []file{
		{name: "components/app.tar", data: makeTar(t, file{name: "app/charts/app-1.tgz"})},
		{name: "sboms.tar", data: makeTar(t, file{name: "sbom-viewer-app.html"})},
	}
	for _, f := range layout {
		files = append(files, file{name: "images/" + f.name, data: f.data})
	}
	var lines []string
	for _, f := range files {
		lines = append(lines, digest.FromBytes(f.data).Encoded()+" "+f.name)
	}
	slices.Sort(lines)
	checksums := []byte(strings.Join(lines, "\n") + "\n")
	files = append(files, file{name: "checksums.txt", data: checksums}, file{name: "zarf.yaml", data: fmt.Appendf(nil,
		"kind: ZarfPackageConfig\nmetadata:\n  name: app\n  aggregateChecksum: %s\nbuild:\n  architecture: amd64\n",
		digest.FromBytes(checksums).Encoded())})
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files
}

// replaced returns the files with one changed.
func replaced(t *testing.T, files []file, name string, change func(data string) string) []file {
	t.Helper()
	files = slices.Clone(files)
	i := slices.IndexFunc(files, func(f file) bool { return f.name == name })
	if i < 0 {
		t.Fatalf("no file %s", name)
	}
	before := string(files[i].data)
	if files[i].data = []byte(change(before)); string(files[i].data) == before {
		t.Fatalf("%s is not changed", name)
	}
	return files
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// zarfLayout writes a layout as Zarf does: with ORAS, and each name in ref.name and base.name.
func zarfLayout(t *testing.T, from *Store, named ...Image) golden {
	t.Helper()
	made := orasLayout(t, from, named...)
	at, err := orasoci.New(made.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range named {
		desc := annotated(image, map[string]string{ocispec.AnnotationRefName: image.Reference,
			ocispec.AnnotationBaseImageName: image.Reference})
		if err := at.Tag(t.Context(), desc, image.Reference); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

// filesIn returns the files in a directory.
func filesIn(t *testing.T, dir string) []file {
	t.Helper()
	var files []file
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, file{name: name, data: data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestOpenReadsZarfPackages(t *testing.T) {
	store := &Store{}
	index := testImage(t, store, "", 3000, "amd64", "arm64")
	single := singleImage(t, store, index, "docker.io/library/nginx:1")
	index.Reference = "quay.io/a/b@" + index.Descriptor.Digest.String()
	for name, layout := range map[string]golden{
		"an image, and an index by its digest": zarfLayout(t, store, single, index),
		"of an old Zarf, with crane's layout": craneLayout(t, map[string]mutate.Appendable{
			"docker.io/library/one:1": craneImage(t, 2), "ghcr.io/a/two:1": craneImage(t, 1)}),
	} {
		files := zarfPackage(t, filesIn(t, layout.dir)...)
		documents := replaced(t, files, "zarf.yaml", func(s string) string { return s + "---\napiVersion: zarf.dev/v1beta1\n" })
		beta := replaced(t, files, "zarf.yaml", func(s string) string {
			_, sum, _ := strings.Cut(s, "aggregateChecksum: ")
			return "build:\n  aggregateChecksum: " + sum[:64] + "\n"
		})
		packed := makeTar(t, files...)
		for how, path := range map[string]string{
			"compressed with zstd":    writeTemp(t, "package.tar.zst", zstandard(t, packed)),
			"not compressed":          writeTemp(t, "package.tar", packed),
			"unpacked":                writeLayout(t, files),
			"with two definitions":    writeLayout(t, documents),
			"with a v1beta1 checksum": writeLayout(t, beta),
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				src := mustOpen(t, path)
				if src.Kind() != "Zarf package" {
					t.Errorf("recognized as an %s", src.Kind())
				}
				checkSource(t, src, layout.images)
			})
		}
	}
}

func TestComponentsOfZarfPackagesNeedNoDiskSpace(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "", 3000, "amd64")
	const component = 8 << 20
	files := replaced(t, zarfPackage(t, layoutFiles(t, store, annotated(image, containerdName("a:1")))...),
		"components/app.tar", func(string) string { return string(noise(3, component)) })
	src := mustOpen(t, writeTemp(t, "package.tar.zst", zstandard(t, makeTar(t, files...))))
	unpacked, err := src.files.(subdirectory).files.(*archive).content.Stat()
	if err != nil {
		t.Fatal(err)
	}
	used := unpacked.Sys().(*syscall.Stat_t).Blocks * 512
	if unpacked.Size() < component || used == 0 || used > component/2 {
		t.Errorf("the unpacked package has %d bytes and uses %d of the disk", unpacked.Size(), used)
	}
}

func TestOpenRejectsZarfPackages(t *testing.T) {
	store := &Store{}
	image := testImage(t, store, "", 3000, "amd64")
	layout := layoutFiles(t, store, annotated(image, containerdName("a:1")))
	files := zarfPackage(t, layout...)
	nodes := nodesOf(t, store, image.Descriptor)
	without := func(name string) []file {
		return slices.DeleteFunc(slices.Clone(files), func(f file) bool { return f.name == name })
	}
	change := func(name, from, to string) []file {
		return replaced(t, files, name, func(s string) string { return strings.Replace(s, from, to, 1) })
	}
	for name, c := range map[string]struct {
		files []file
		want  string
	}{
		"without images": {zarfPackage(t), "Zarf package: contains no image"},
		"that is not built": {[]file{{name: "zarf.yaml", data: []byte("kind: ZarfPackageConfig\nmetadata:\n  name: app\n")}},
			"Zarf package: zarf.yaml has no aggregateChecksum, so it is the source of a package: build it with zarf package create"},
		"whose definition is not YAML": {change("zarf.yaml", "kind: ", "kind: ]"),
			"Zarf package: zarf.yaml: is not valid YAML: error converting YAML to JSON: yaml: did not find expected node content"},
		"whose definition is too large": {replaced(t, files, "zarf.yaml", func(s string) string {
			return s + strings.Repeat("#", 4<<20)
		}), fmt.Sprintf("Zarf package: zarf.yaml: has %d bytes: want at most 4194304", len(files[len(files)-1].data)+4<<20)},
		"without checksums": {without("checksums.txt"), "Zarf package: checksums.txt is missing from the package"},
		"with altered checksums": {change("checksums.txt", "images/index.json", "images/other.json"),
			"Zarf package: checksums.txt does not match its checksum in zarf.yaml: the package was altered or damaged"},
		"with an altered index": {change("images/index.json", `"a:1"`, `"a:2"`),
			"Zarf package: images/index.json does not match its checksum in checksums.txt: the package was altered or damaged"},
		"with an altered manifest": {replaced(t, files, "images/blobs/sha256/"+image.Descriptor.Digest.Encoded(),
			func(s string) string { return strings.Replace(s, "amd64", "arm64", 1) }),
			"Zarf package: image a:1: index " + image.Descriptor.Digest.String() +
				": does not match its digest: it was altered or damaged"},
		"without a layer": {without("images/blobs/sha256/" + nodes[1].Digest.Encoded()),
			"Zarf package: image a:1: blob " + nodes[1].Digest.String() + ": is missing from the source"},
		"without the layout's version": {without("images/oci-layout"), "Zarf package: images/oci-layout: file does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			packed := makeTar(t, c.files...)
			checkOpenError(t, writeTemp(t, "package.tar.zst", zstandard(t, packed)), c.want)
			checkOpenError(t, writeTemp(t, "package.tar", packed), c.want)
		})
	}

	packed := zstandard(t, makeTar(t, files...))
	checkOpenError(t, writeTemp(t, "truncated.tar.zst", packed[:len(packed)/2]),
		"is truncated: its compressed data ends early")
	checkOpenError(t, writeTemp(t, "package.tar.zst.part000", []byte(`{"Sha256Sum":"0f","Bytes":2000,"Count":2}`)),
		"is not an image archive: it is the first part of a split Zarf package: join the parts after it with cat")
}

func TestZarfTags(t *testing.T) {
	at := "@sha256:" + strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"nginx":                       "docker.io/library/nginx:latest-zarf-3793515731",
		"nginx:1.23.3":                "docker.io/library/nginx:1.23.3-zarf-3793515731",
		"zarf-dev/zarf-agent:v0.22.1": "docker.io/zarf-dev/zarf-agent:v0.22.1-zarf-2183797434",
		"registry1.dso.mil/ironbank/opensource/zarf-dev/zarf/zarf-agent:v0.25.0": "registry1.dso.mil/ironbank/opensource/" +
			"zarf-dev/zarf/zarf-agent:v0.25.0-zarf-1211467612",
		"nginx" + at:   "",
		"nginx:1" + at: "",
	} {
		items, err := WithZarfTags([]Item{{Image: Image{Reference: ref}}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, item := range items {
			got = append(got, item.Reference)
		}
		expected := []string{ref}
		if want != "" {
			expected = append(expected, want)
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s: %s", ref, diff)
		}
	}
	long := "nginx:" + strings.Repeat("1", 120)
	_, err := WithZarfTags([]Item{{Image: Image{Reference: long}}})
	if err == nil || !strings.HasSuffix(err.Error(), "is too long for --zarf-tags: want at most 128 characters") {
		t.Errorf("a long tag: %v", err)
	}
}

func TestPushOfAZarfPackage(t *testing.T) {
	reg := newTestRegistry(t)
	store := &Store{}
	index := testImage(t, store, "", 3000, "amd64", "arm64")
	single := singleImage(t, store, index, "docker.io/library/nginx:1")
	index.Reference = "quay.io/a/b@" + index.Descriptor.Digest.String()
	files := zarfPackage(t, filesIn(t, zarfLayout(t, store, single, index).dir)...)
	src := mustOpen(t, writeTemp(t, "package.tar.zst", zstandard(t, makeTar(t, files...))))
	items, err := WithZarfTags(mustItems(t, src, ""))
	if err != nil {
		t.Fatal(err)
	}
	client := reg.client(t, nil)
	results := mustPush(t, items, client, Options{})
	want := map[string]digest.Digest{
		reg.host() + "/library/nginx:1":                         single.Descriptor.Digest,
		reg.host() + "/library/nginx:1-zarf-3793515731":         single.Descriptor.Digest,
		reg.host() + "/a/b@" + index.Descriptor.Digest.String(): index.Descriptor.Digest,
	}
	got := map[string]digest.Digest{}
	for _, result := range results {
		got[result.Reference] = result.Digest
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	uploads := 3 // of nginx: its config and two layers, once for both tags
	if n := reg.count("POST /v2/library/nginx/blobs/uploads/"); n != uploads {
		t.Errorf("%d uploads for two tags of nginx, want %d", n, uploads)
	}
	for _, item := range items {
		reg.checkWhole(t, src, item.Image)
	}
}
