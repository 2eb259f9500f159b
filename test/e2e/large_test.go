package e2e

import (
	"archive/tar"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// largeLayers are the sizes of the layers of the image of TestLargeImage, 8 GiB together.
var largeLayers = []int64{6 << 30, 1 << 30, 1 << 30}

// TestLargeImage pushes and pulls an image of 8 GiB, while registry, proxies and a cache have the chart's limits. The
// cache's volume, an emptyDir, does not hold the largest layer.
func TestLargeImage(t *testing.T) {
	// The registry, the container runtime, and the cache store the image; the files that are pushed are sparse.
	const needed = 20 << 30
	var free unix.Statfs_t
	require.NoError(t, unix.Statfs(os.TempDir(), &free))
	if have := int64(free.Bavail) * free.Bsize; have < needed { //nolint:gosec // below 8 EiB
		t.Skipf("SKIPPED, NOTHING CHECKED: needs %d GiB of disk, has %d", needed>>30, have>>30)
	}
	// On the disk: what is written to a memory file system counts as the registry's memory.
	w := ownCluster(t, "e2e-large", layout{args: []string{"--volumes-size", "0"}})
	var small string
	large := w.address + "/e2e/large:1"
	must(t, "install with a cache of 2 GiB", func(t *testing.T) {
		w.apply(t, proxyMode, "--set=cache.replicas=1", "--set=cache.size=2Gi")
		w.caches(t, 1)
		small = w.pushHello(t)
	})
	pulls := func(t *testing.T) (stop func()) { return w.pullLoop(t, "e2e/hello:1") }
	must(t, "push", func(t *testing.T) {
		begin := time.Now()
		w.push(t, writeLargeLayout(t, "example.com/e2e/large:1"))
		t.Logf("figure: pushed after %.1f s", time.Since(begin).Seconds())
	})
	during(t, "two pulls beside others", pulls, func(t *testing.T) {
		for range 2 {
			begin := time.Now()
			if out, err := w.pull(t, w.nodes[1], large); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("figure: pulled after %.1f s", time.Since(begin).Seconds())
			w.shell(t, w.nodes[1], "crictl --timeout 2m --runtime-endpoint "+containerdSocket+` rmi "$1"`, large)
		}
	})
	w.pullEverywhere(t, small)
	for _, component := range []string{"registry", "proxy", "cache"} {
		for _, p := range w.pods(t, component) {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				if s.RestartCount > 0 {
					t.Errorf("%s restarted %d times: %s", p.Name, s.RestartCount, mustJSON(s.LastTerminationState))
				}
			}
		}
	}
}

// writeLargeLayout writes an OCI layout with one image. Its layers are a file of random bytes, and zeros after it.
func writeLargeLayout(t *testing.T, reference string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755))
	write := func(mediaType string, content any) v1.Descriptor {
		data := require.Value(json.Marshal(content))(t)
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "blobs", "sha256", d.Digest.Encoded()), data, 0o600))
		return d
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	config := v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "amd64"}, RootFS: v1.RootFS{Type: "layers"}}
	for i, size := range largeLayers {
		d := require.Value(writeLargeLayer(dir, fmt.Sprintf("large-%d", i), size))(t)
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: d, Size: size})
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, d)
	}
	m.Config = write(v1.MediaTypeImageConfig, config)
	manifest := write(v1.MediaTypeImageManifest, m)
	manifest.Annotations = map[string]string{v1.AnnotationRefName: reference}
	index := mustJSON(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{manifest}})
	for name, content := range map[string]string{"index.json": index, "oci-layout": `{"imageLayoutVersion":"1.0.0"}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func writeLargeLayer(dir, name string, size int64) (d digest.Digest, err error) {
	file, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	content := make([]byte, 1<<20)
	rand.Read(content)
	archive := tar.NewWriter(file)
	err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = archive.Write(content)
	}
	if err = errors.Join(err, archive.Close(), file.Truncate(size)); err != nil {
		return "", err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if d, err = digest.FromReader(file); err != nil {
		return "", err
	}
	return d, os.Rename(file.Name(), filepath.Join(dir, "blobs", "sha256", d.Encoded()))
}
