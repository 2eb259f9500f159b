package source

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
	orasoci "oras.land/oras-go/v2/content/oci"
)

// zarfPackage returns the files of a package as zarf package create writes them, in the order of its archives, with the
// files of an OCI layout as images.
func zarfPackage(t testing.TB, layout ...imagestest.File) []imagestest.File {
	t.Helper()
	files := []imagestest.File{
		{Name: "components/app.tar", Data: imagestest.Tar(t, imagestest.File{Name: "app/charts/app-1.tgz"})},
		{Name: "sboms.tar", Data: imagestest.Tar(t, imagestest.File{Name: "sbom-viewer-app.html"})},
	}
	for _, f := range layout {
		files = append(files, imagestest.File{Name: "images/" + f.Name, Data: f.Data})
	}
	var lines []string
	for _, f := range files {
		lines = append(lines, digest.FromBytes(f.Data).Encoded()+" "+f.Name)
	}
	slices.Sort(lines)
	checksums := []byte(strings.Join(lines, "\n") + "\n")
	files = append(files, imagestest.File{Name: "checksums.txt", Data: checksums}, imagestest.File{Name: "zarf.yaml", Data: fmt.Appendf(nil,
		"kind: ZarfPackageConfig\nmetadata:\n  name: app\n  aggregateChecksum: %s\nbuild:\n  architecture: amd64\n",
		digest.FromBytes(checksums).Encoded())})
	slices.SortFunc(files, func(a, b imagestest.File) int { return strings.Compare(a.Name, b.Name) })
	return files
}

// replaced returns the files with one changed.
func replaced(t *testing.T, files []imagestest.File, name string, change func(data string) string) []imagestest.File {
	t.Helper()
	files = slices.Clone(files)
	i := slices.IndexFunc(files, func(f imagestest.File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no file %s", name)
	}
	before := string(files[i].Data)
	if files[i].Data = []byte(change(before)); string(files[i].Data) == before {
		t.Fatalf("%s is not changed", name)
	}
	return files
}

// zarfLayout writes a layout as Zarf does: with ORAS, and each name in ref.name and base.name.
func zarfLayout(t *testing.T, from *graph.Store, named ...graph.Image) golden {
	t.Helper()
	made := orasLayout(t, from, named...)
	at := require.Value(orasoci.New(made.dir))(t)
	for _, image := range named {
		desc := imagestest.Annotated(image, map[string]string{ocispec.AnnotationRefName: image.Reference,
			ocispec.AnnotationBaseImageName: image.Reference})
		require.NoError(t, at.Tag(t.Context(), desc, image.Reference))
	}
	return made
}

// filesIn returns the files in a directory.
func filesIn(t *testing.T, dir string) []imagestest.File {
	t.Helper()
	var files []imagestest.File
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, imagestest.File{Name: name, Data: data})
		return err
	})
	require.NoError(t, err)
	return files
}

func TestOpenReadsZarfPackages(t *testing.T) {
	store := &graph.Store{}
	index := imagestest.Index(t, store, "", 3000, "amd64", "arm64")
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
		packed := imagestest.Tar(t, files...)
		for how, path := range map[string]string{
			"compressed with zstd":    imagestest.Temp(t, "package.tar.zst", imagestest.Zstd(t, packed)),
			"not compressed":          imagestest.Temp(t, "package.tar", packed),
			"unpacked":                imagestest.WriteLayout(t, files),
			"with two definitions":    imagestest.WriteLayout(t, documents),
			"with a v1beta1 checksum": imagestest.WriteLayout(t, beta),
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				src := imagestest.Open(t, Open, path)
				if src.Kind() != "Zarf package" {
					t.Errorf("recognized as an %s", src.Kind())
				}
				checkSource(t, src, layout.images)
			})
		}
	}
}

func TestOpenRejectsZarfPackages(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "", 3000, "amd64")
	layout := imagestest.Layout(t, store, imagestest.Annotated(image, containerdName("a:1")))
	files := zarfPackage(t, layout...)
	nodes := imagestest.Nodes(t, store, image.Descriptor)
	without := func(name string) []imagestest.File {
		return slices.DeleteFunc(slices.Clone(files), func(f imagestest.File) bool { return f.Name == name })
	}
	change := func(name, from, to string) []imagestest.File {
		return replaced(t, files, name, func(s string) string { return strings.Replace(s, from, to, 1) })
	}
	for name, c := range map[string]struct {
		files []imagestest.File
		want  string
	}{
		"without images": {zarfPackage(t), "Zarf package: contains no image"},
		"that is not built": {[]imagestest.File{{Name: "zarf.yaml", Data: []byte("kind: ZarfPackageConfig\nmetadata:\n  Name: app\n")}},
			"Zarf package: zarf.yaml has no aggregateChecksum, so it is the source of a package: build it with zarf package create"},
		"whose definition is not YAML": {change("zarf.yaml", "kind: ", "kind: ]"),
			"Zarf package: zarf.yaml: is not valid YAML: error converting YAML to JSON: yaml: did not find expected node content"},
		"whose definition is too large": {replaced(t, files, "zarf.yaml", func(s string) string {
			return s + strings.Repeat("#", 4<<20)
		}), fmt.Sprintf("Zarf package: zarf.yaml: has %d bytes: want at most 4194304", len(files[len(files)-1].Data)+4<<20)},
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
			packed := imagestest.Tar(t, c.files...)
			checkOpenError(t, imagestest.Temp(t, "package.tar.zst", imagestest.Zstd(t, packed)), c.want)
			checkOpenError(t, imagestest.Temp(t, "package.tar", packed), c.want)
		})
	}

	packed := imagestest.Zstd(t, imagestest.Tar(t, files...))
	checkOpenError(t, imagestest.Temp(t, "truncated.tar.zst", packed[:len(packed)/2]),
		"is truncated: its compressed data ends early")
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
		items := require.Value(WithZarfTags([]graph.Item{{Image: graph.Image{Reference: ref}}}))(t)
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
	_, err := WithZarfTags([]graph.Item{{Image: graph.Image{Reference: long}}})
	if err == nil || !strings.HasSuffix(err.Error(), "is too long for --zarf-tags: want at most 128 characters") {
		t.Errorf("a long tag: %v", err)
	}
}

func TestPushOfAZarfPackage(t *testing.T) {
	reg := imagestest.NewRegistry(t)
	store := &graph.Store{}
	index := imagestest.Index(t, store, "", 3000, "amd64", "arm64")
	single := singleImage(t, store, index, "docker.io/library/nginx:1")
	index.Reference = "quay.io/a/b@" + index.Descriptor.Digest.String()
	files := zarfPackage(t, filesIn(t, zarfLayout(t, store, single, index).dir)...)
	src := imagestest.Open(t, Open, imagestest.Temp(t, "package.tar.zst", imagestest.Zstd(t, imagestest.Tar(t, files...))))
	items := require.Value(WithZarfTags(mustItems(t, src, "")))(t)
	client := reg.NewClient(t, nil)
	results := require.Value(images.Push(t.Context(), items, client, images.Options{}))(t)
	want := map[string]digest.Digest{
		reg.Host() + "/library/nginx:1":                         single.Descriptor.Digest,
		reg.Host() + "/library/nginx:1-zarf-3793515731":         single.Descriptor.Digest,
		reg.Host() + "/a/b@" + index.Descriptor.Digest.String(): index.Descriptor.Digest,
	}
	got := map[string]digest.Digest{}
	for _, result := range results {
		got[result.Reference] = result.Digest
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	uploads := 3 // of nginx: its config and two layers, once for both tags
	if n := reg.Count("POST /v2/library/nginx/blobs/uploads/"); n != uploads {
		t.Errorf("%d uploads for two tags of nginx, want %d", n, uploads)
	}
	for _, item := range items {
		reg.CheckWhole(t, src, item.Image)
	}
}
