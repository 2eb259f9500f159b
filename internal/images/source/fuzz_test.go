package source

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/oci"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// FuzzOpen reads modified archives.
func FuzzOpen(f *testing.F) {
	store := &graph.Store{}
	image := imagestest.Index(f, store, "", 600, "amd64", "arm64")
	layout := imagestest.Layout(f, store, imagestest.Annotated(image, containerdName("a:1")))
	layer := imagestest.Tar(f, imagestest.File{Name: "a"})
	f.Add(imagestest.Tar(f, layout...))
	f.Add(imagestest.Gzip(f, imagestest.Tar(f, layout...)))
	f.Add(imagestest.Zstd(f, imagestest.Tar(f, layout...)))
	f.Add(imagestest.Tar(f, zarfPackage(f, layout...)...))
	f.Add(imagestest.Tar(f, imagestest.Docker(f, []string{"a:1"}, layer, imagestest.Gzip(f, layer))...))
	f.Add(imagestest.Tar(f, append(layout, imagestest.File{Name: "x", Link: "index.json"})...))
	f.Add(imagestest.Tar(f, append(layout, imagestest.File{Name: "x", Link: "index.json", Kind: tar.TypeLink},
		imagestest.File{Name: "y/", Kind: tar.TypeDir})...))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) { checkArchive(t, dir, b) })
}

// FuzzDescribed reads archives with arbitrary metadata but correct digests and checksums, to reach the
// code behind these checks. In the texts, $config and $manifest stand for the digests of the texts
// config and manifest, $layer for that of one byte, and each of them followed by # for the size.
func FuzzDescribed(f *testing.F) {
	const (
		config   = `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["$layer"]}}`
		manifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"$config","size":$config#},` +
			`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"$layer","size":$layer#}]}`
		index = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"$manifest","size":$manifest#,` +
			`"platform":{"os":"linux","architecture":"amd64"},"annotations":{"io.containerd.image.name":"docker.io/library/a:1"}}]}`
		saved = `[{"Config":"blobs/sha256/$config","RepoTags":["a:1"],"Layers":["layer.tar"]}]`
	)
	f.Add(config, manifest, index, "")
	f.Add(config, manifest, "", saved)
	f.Add(config, manifest, index, strings.Replace(saved, "layer.tar", "blobs/sha256/$layer", 1))
	f.Add(config, index, strings.Replace(index, "manifest.v1", "index.v1", 1), "")
	f.Add(config, strings.Replace(manifest, `{"s`, `{"subject":{"digest":"$manifest"},"s`, 1),
		strings.Replace(index, "image.name", "x", 1), "")
	f.Add(config, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"$absent","size":1,"platform":{"os":"linux","architecture":"arm64"}},`+
		`{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"$config","size":$config#}]}`,
		strings.Replace(index, "manifest.v1", "index.v1", 1), "")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, manifest, index, saved string) {
		files := []imagestest.File{{Name: "oci-layout", Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
			{Name: "layer.tar", Data: []byte("x")}}
		// Some of the texts name files by digests without the algorithm.
		replacements := []string{"blobs/sha256/$absent", "blobs/sha256/" + digest.FromString("absent").Encoded(), "$absent",
			digest.FromString("absent").String()}
		settle := func(text string) []byte { return []byte(strings.NewReplacer(replacements...).Replace(text)) }
		written := map[digest.Digest]bool{}
		for _, blob := range []struct{ name, text string }{{"$layer", "x"}, {"$config", config}, {"$manifest", manifest}} {
			data := settle(blob.text)
			d := digest.FromBytes(data)
			replacements = append(replacements, blob.name+"#", fmt.Sprint(len(data)), "blobs/sha256/"+blob.name,
				"blobs/sha256/"+d.Encoded(), blob.name, d.String())
			if !written[d] {
				written[d] = true
				files = append(files, imagestest.File{Name: oci.BlobPath(d), Data: data})
			}
		}
		if index != "" {
			files = append(files, imagestest.File{Name: "index.json", Data: settle(index)})
		}
		if saved != "" {
			files = append(files, imagestest.File{Name: "manifest.json", Data: settle(saved)})
		}
		checkArchive(t, dir, imagestest.Tar(t, files...))
	})
}

// checkArchive checks that an archive that Open accepts is complete, that blobs have the right sizes
// and match their digests, and that writing and opening it again gives the same images.
func checkArchive(t *testing.T, dir string, b []byte) {
	path := filepath.Join(dir, "archive")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	src, err := Open(t.Context(), path)
	if err != nil {
		return
	}
	defer src.Close()
	if len(src.Images()) == 0 {
		t.Fatal("a source without images")
	}
	readable := true
	for _, image := range src.Images() {
		for _, node := range imagestest.Nodes(t, src, image.Descriptor) {
			data, err := readBlob(t, src, node)
			switch {
			case err != nil:
				readable = false
			case int64(len(data)) != node.Size || node.Digest != node.Digest.Algorithm().FromBytes(data):
				t.Errorf("%s with %d bytes is read as %d bytes with %s", node.Digest, node.Size, len(data), digest.FromBytes(data))
			}
		}
	}
	again := filepath.Join(dir, "again")
	if err := images.WriteArchive(t.Context(), again, src, src.Images()...); err != nil {
		return // invalid names or wrong digests
	}
	if !readable {
		t.Error("an unreadable blob was written")
	}
	read, err := Open(t.Context(), again)
	require.NoError(t, err, "the written archive cannot be read")
	defer read.Close()
	if got, want := imagesByName(read), imagesByName(src); !reflect.DeepEqual(got, want) {
		t.Errorf("after writing and reading again, the images are\n%v, want\n%v", got, want)
	}
}

func readBlob(t *testing.T, src *Source, desc ocispec.Descriptor) ([]byte, error) {
	t.Helper()
	rc := require.Value(src.Fetch(t.Context(), desc))(t)
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		return nil, err
	}
	return data, nil
}

// imagesByName returns the named images of a source, by normalized name and digest.
func imagesByName(src *Source) map[string]ocispec.Descriptor {
	found := map[string]ocispec.Descriptor{}
	for _, image := range src.Images() {
		if name, err := reference.ParseDockerRef(image.Reference); err == nil {
			found[name.String()+" "+image.Descriptor.Digest.String()] = image.Descriptor
		}
	}
	return found
}
