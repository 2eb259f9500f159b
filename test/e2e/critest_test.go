package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
)

const (
	// critestImages is the prefix of the images that critest pulls, most of them by tag.
	critestImages = "gcr.io/k8s-staging-cri-tools/"
	// critestDigest is the digest by which critest pulls one of them.
	critestDigest = "sha256:9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"
)

// critest is the CRI's test suite for container runtimes.
type critest struct {
	w       *world
	program string
}

// newCritest pushes the images that critest pulls. Their names are constants of it, so nodes need mirrors of gcr.io,
// registry.k8s.io and k8s.gcr.io. One is pulled by digest, which no other image can have: in a copy of the program, it
// is replaced by the digest of the image that is pushed.
func newCritest(t *testing.T, w *world) critest {
	t.Helper()
	dir, digest := writeCritestImages(t)
	w.push(t, dir)
	original, err := os.ReadFile(strings.TrimSpace(run(t, w.testcluster, "tool", "critest")))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(original, []byte(critestDigest)); n != 1 {
		t.Fatalf("critest contains the digest of its image %d times, want once", n)
	}
	c := critest{w, filepath.Join(t.TempDir(), "critest")}
	program := bytes.Replace(original, []byte(critestDigest), []byte(digest), 1)
	if err := os.WriteFile(c.program, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

// passes runs the image tests against a container runtime of a node, but no test that runs pods: the kubelet ends pods
// that it does not know.
func (c critest) passes(t *testing.T, node, endpoint string) {
	t.Helper()
	out, err := c.w.onNode(t, node, c.program, "-runtime-endpoint="+endpoint, "-ginkgo.no-color",
		`-ginkgo.focus=Image (Manager|Consistency)`)
	ran := regexp.MustCompile(`Ran \d+ of .*\n.*`).FindString(out)
	t.Logf("critest on %s: %s", node, ran)
	// 10 of Image Manager, and 3 of Image Consistency.
	if err != nil || !strings.Contains(ran, "13 Passed | 0 Failed") {
		t.Errorf("critest on %s: %v\n%s", node, err, out)
	}
}

// writeCritestImages writes an OCI layout and returns its directory, and the digest of one of the images.
func writeCritestImages(t *testing.T) (dir, digest string) {
	t.Helper()
	dir = t.TempDir()
	path, err := ocilayout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	layer := static.NewLayer(soak.Tar("file", nil), types.OCIUncompressedLayer)
	for _, c := range []struct {
		user       string
		references []string
	}{
		{"", []string{critestImages + "test-image-latest:latest"}},
		{"", []string{critestImages + "test-image-tag:test"}},
		{"", []string{critestImages + "test-image-tag:all"}},
		{"", []string{critestImages + "test-image-1:latest"}},
		{"", []string{critestImages + "test-image-2:latest"}},
		{"", []string{critestImages + "test-image-3:latest"}},
		{"", []string{critestImages + "test-image-tags:1", critestImages + "test-image-tags:2",
			critestImages + "test-image-tags:3"}},
		{"1002", []string{critestImages + "test-image-user-uid:latest"}},
		{"www-data", []string{critestImages + "test-image-user-username:latest"}},
		{"1003:users", []string{critestImages + "test-image-user-uid-group:latest"}},
		{"www-data:100", []string{critestImages + "test-image-user-username-group:latest"}},
		{"", []string{"registry.k8s.io/pause:3.9"}},
		{"", []string{critestImages + "test-image-digest:latest"}}, // its digest is returned
	} {
		image, err := mutate.AppendLayers(empty.Image, layer)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", "amd64"
		config.Config = v1.Config{User: c.user, Labels: map[string]string{"name": c.references[0]}}
		if image, err = mutate.ConfigFile(image, config); err != nil {
			t.Fatal(err)
		}
		image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
		for _, reference := range c.references {
			if err := path.AppendImage(image, ocilayout.WithAnnotations(map[string]string{
				ocispec.AnnotationRefName: reference})); err != nil {
				t.Fatal(err)
			}
		}
		hash, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digest = hash.String()
	}
	return dir, digest
}
