package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/dockerdaemon"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/dockerdaemontest"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func layer(seed uint64, size int) dockerdaemontest.Layer {
	return dockerdaemontest.Layer{Data: imagestest.Noise(seed, size)}
}

// streamed describes the expected content of an image in a stream.
type streamed struct {
	Reference string
	Layers    []digest.Digest // of all its platforms
	Omitted   []string        // architectures
}

// describeStreamed reads all blobs of a source and describes its images.
func describeStreamed(t *testing.T, src *Source) []streamed {
	t.Helper()
	var found []streamed
	for _, image := range src.Images() {
		s := streamed{Reference: image.Reference}
		for _, p := range image.Omitted {
			s.Omitted = append(s.Omitted, p.Architecture)
		}
		nodes := imagestest.Nodes(t, src, image.Descriptor)
		if graph.Size(nodes) != image.Size || image.Size == 0 {
			t.Errorf("%s has %d bytes, but its size is %d", image.Name(), graph.Size(nodes), image.Size)
		}
		for _, node := range nodes {
			raw := imagestest.Fetch(t, src, node)
			var manifest ocispec.Manifest
			if !oci.IsManifest(node.MediaType) {
				continue
			}
			require.NoError(t, json.Unmarshal(raw, &manifest))
			if manifest.Config.MediaType != ocispec.MediaTypeImageConfig {
				t.Errorf("the configuration is a %s", manifest.Config.MediaType)
			}
			for _, l := range manifest.Layers {
				if !oci.IsNonDistributable(l.MediaType) && strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer") {
					s.Layers = append(s.Layers, l.Digest)
				}
			}
		}
		found = append(found, s)
	}
	return found
}

func TestOpenReadsEngineArchives(t *testing.T) {
	base, app, tool, empty := layer(1, 70_000), layer(2, 3000), layer(3, 512), layer(0, 0)
	one := dockerdaemontest.Image{Names: []string{"one:1", "ghcr.io/a/one:latest"},
		Layers: []dockerdaemontest.Layer{base, app, empty}}
	two := dockerdaemontest.Image{Names: []string{"two:2"}, Layers: []dockerdaemontest.Layer{base, tool, empty, tool}}
	nameless := dockerdaemontest.Image{Layers: []dockerdaemontest.Layer{tool, base}}
	foreign := dockerdaemontest.Image{Names: []string{"windows:1"}, Layers: []dockerdaemontest.Layer{
		{Data: imagestest.Noise(9, 900), Foreign: true}, app}}
	digests := func(layers ...dockerdaemontest.Layer) (found []digest.Digest) {
		for _, l := range layers {
			found = append(found, l.Digest())
		}
		return found
	}
	packed := func(layers ...dockerdaemontest.Layer) (found []digest.Digest) {
		for _, l := range layers {
			found = append(found, digest.FromBytes(dockerdaemontest.Gzip(l)))
		}
		return found
	}
	const hub = "docker.io/library/"
	full := []streamed{
		{Reference: hub + "one:1", Layers: digests(base, app, empty)},
		{Reference: "ghcr.io/a/one:latest", Layers: digests(base, app, empty)},
		{Reference: hub + "two:2", Layers: digests(base, tool, empty, tool)},
	}
	short := slices.Clone(full)
	for i := range short {
		short[i].Reference = strings.TrimPrefix(short[i].Reference, hub)
	}

	for name, c := range map[string]struct {
		files dockerdaemontest.Files
		kind  string
		want  []streamed
	}{
		"an engine before 25, images that share layers": {dockerdaemontest.Legacy(one, two), "docker archive", short},
		"an engine before 25, an image by its ID": {dockerdaemontest.Legacy(nameless), "docker archive",
			[]streamed{{Layers: digests(tool, base)}}},
		"an engine since 25, images that share layers": {dockerdaemontest.Modern(one, two), "OCI archive", full},
		"an engine since 25, an image by its ID": {
			dockerdaemontest.Modern(nameless), "OCI archive", []streamed{{Layers: digests(tool, base)}},
		},
		"an engine since 25, a foreign layer": {
			dockerdaemontest.Modern(foreign), "OCI archive", []streamed{{Reference: hub + "windows:1", Layers: digests(app)}},
		},
		"containerd's store, one platform of several": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one},
				Absent: []string{"arm64", "s390x"}, Attested: true}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty),
				Omitted: []string{"arm64", "s390x"}}},
		},
		"containerd's store, one platform of several, and the manifest alone of another": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one},
				Absent: []string{"s390x"}, Bare: []string{"arm64"}}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty),
				Omitted: []string{"s390x", "arm64"}}},
		},
		"containerd's store, all platforms": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Attested: true, Images: []dockerdaemontest.Image{
				one, {Architecture: "arm64", Layers: []dockerdaemontest.Layer{layer(4, 999)}},
			}}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty, layer(4, 999))}},
		},
		"containerd's store, several images, one by its ID, a foreign layer": {
			dockerdaemontest.Containerd(
				dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one}},
				dockerdaemontest.Index{Images: []dockerdaemontest.Image{two}},
				dockerdaemontest.Index{Name: "windows:1", Images: []dockerdaemontest.Image{foreign}},
			),
			"OCI archive", []streamed{
				{Reference: hub + "one:1", Layers: packed(base, app, empty)},
				{Layers: packed(base, tool, empty, tool)},
				{Reference: hub + "windows:1", Layers: packed(app)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := imagestest.Open(t, Open, imagestest.Temp(t, "docker.tar", c.files.Bytes(t)))
			if src.Kind() != c.kind {
				t.Errorf("recognized as an %s, want %s", src.Kind(), c.kind)
			}
			if diff := cmp.Diff(c.want, describeStreamed(t, src)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOpenIgnoresDataAfterTheTar(t *testing.T) {
	image := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{layer(1, 70_000),
		layer(0, 0)}}
	for kind, files := range map[string]dockerdaemontest.Files{
		"docker archive": dockerdaemontest.Legacy(image),
		"OCI archive":    dockerdaemontest.Modern(image),
	} {
		raw := files.Bytes(t)
		for how, stream := range map[string][]byte{
			"compressed":              imagestest.Gzip(t, raw),
			"padded":                  append(slices.Clone(raw), make([]byte, 10_000)...),
			"padded and compressed":   imagestest.Gzip(t, append(slices.Clone(raw), make([]byte, 10_000)...)),
			"with text after it":      append(slices.Clone(raw), "text"...),
			"with half an end marker": raw[:len(raw)-tarBlock],
		} {
			t.Run(kind+", "+how, func(t *testing.T) {
				src := imagestest.Open(t, Open, imagestest.Temp(t, "docker.tar", stream))
				if got := describeStreamed(t, src); src.Kind() != kind || len(got) != 1 || len(got[0].Layers) != 2 {
					t.Errorf("%s: %+v", src.Kind(), got)
				}
			})
		}
	}
}

// TestRealEngine loads an image into the engine in the environment, saves it and removes it.
func TestRealEngine(t *testing.T) {
	engine, err := dockerdaemon.Open(t.Context())
	if err != nil {
		t.Skipf("needs an engine: set DOCKER_HOST to one, or start docker: %v", err)
	}
	defer engine.Close()
	api := require.Value(client.New(client.WithHost(engine.Host())))(t)
	defer api.Close()
	const first, second = "zarf-registry-test/one:1", "zarf-registry-test/two:2"
	shared := dockerdaemontest.Layer{Data: imagestest.Tar(t, imagestest.File{Name: "shared", Data: imagestest.Noise(1, 100_000)})}
	one := dockerdaemontest.Image{Names: []string{first}, Layers: []dockerdaemontest.Layer{shared, {Data: imagestest.Tar(t,
		imagestest.File{Name: "one", Data: imagestest.Noise(2, 1000)})}}}
	two := dockerdaemontest.Image{Names: []string{second}, Layers: []dockerdaemontest.Layer{shared, {Data: imagestest.Tar(t,
		imagestest.File{Name: "two"})}}}
	loaded, err := api.ImageLoad(t.Context(), bytes.NewReader(dockerdaemontest.Legacy(one, two).Bytes(t)))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, loaded)
	require.NoError(t, errors.Join(err, loaded.Close()))
	t.Cleanup(func() {
		for _, image := range []string{first, second} {
			if _, err := api.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	saved := require.Value(os.Create(filepath.Join(t.TempDir(), "docker.tar")))(t)
	defer saved.Close()
	if missing, err := engine.Save(t.Context(), []string{first, second}, saved); missing != nil || err != nil {
		t.Fatal(err)
	}
	src := imagestest.Open(t, Open, saved.Name())
	found := map[string][]digest.Digest{}
	for _, image := range describeStreamed(t, src) {
		repository, tag, err := name.Repository(image.Reference)
		require.NoError(t, err)
		found[repository+":"+tag] = image.Layers
	}
	t.Logf("the engine at %s writes an %s", engine.Host(), src.Kind())
	for _, image := range []dockerdaemontest.Image{one, two} {
		var want []digest.Digest
		for _, l := range image.Layers {
			want = append(want, l.Digest())
		}
		if diff := cmp.Diff(want, found[image.Names[0]]); diff != "" {
			t.Errorf("layers of %s: %s", image.Names[0], diff)
		}
	}
	if _, err := engine.Save(t.Context(), []string{"zarf-registry-test/none:1"}, saved); err == nil ||
		!strings.Contains(err.Error(), "not found: zarf-registry-test/none:1: run docker pull") {
		t.Errorf("error for a missing image: %v", err)
	}
}
