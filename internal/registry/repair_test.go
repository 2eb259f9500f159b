package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// pushedIndex is an index of two images in a layout, which clients push as a:v1.
type pushedIndex struct {
	v1.ImageIndex
	dir string
}

func newPushedIndex(t *testing.T) pushedIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range []string{"amd64", "arm64"} {
		image := require.Value(random.Image(20_000, 2))(t)
		image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
		config, err := image.ConfigFile()
		require.NoError(t, err)
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", architecture
		image = require.Value(mutate.ConfigFile(image, config))(t)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	p := pushedIndex{index, filepath.Join(t.TempDir(), "layout")}
	at := require.Value(layout.Write(p.dir, empty.Index))(t)
	if err := at.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": "v1", "io.containerd.image.name": "docker.io/library/a:v1",
	})); err != nil {
		t.Fatal(err)
	}
	return p
}

// paths returns files in the storage, by what they are.
func (p pushedIndex) paths(t *testing.T) map[string]string {
	t.Helper()
	indexDigest := require.Value(p.Digest())(t)
	manifest := require.Value(p.IndexManifest())(t)
	image := require.Value(p.Image(manifest.Manifests[1].Digest))(t)
	content := require.Value(image.Manifest())(t)
	data := func(d v1.Hash) string {
		return filepath.Join("docker/registry/v2/blobs/sha256", d.Hex[:2], d.Hex, "data")
	}
	const repository = "docker/registry/v2/repositories/library/a/"
	return map[string]string{
		"layer":         data(content.Layers[1].Digest),
		"configuration": data(content.Config.Digest),
		"manifest":      data(manifest.Manifests[1].Digest),
		"index":         data(indexDigest),
		"layer's link":  repository + "_layers/sha256/" + content.Layers[0].Digest.Hex + "/link",
		"index's link":  repository + "_manifests/revisions/sha256/" + indexDigest.Hex + "/link",
		"tag's link":    repository + "_manifests/tags/v1/current/link",
		"child's link":  repository + "_manifests/revisions/sha256/" + manifest.Manifests[1].Digest.Hex + "/link",
	}
}

func basic() remote.Option {
	return remote.WithAuth(&authn.Basic{Username: registrytest.Username, Password: registrytest.Password})
}

func (p pushedIndex) reference(t *testing.T, reg *registrytest.Registry) name.Reference {
	t.Helper()
	return require.Value(name.ParseReference(reg.Loopback+"/library/a:v1", name.Insecure))(t)
}

// check pulls everything and verifies it.
func (p pushedIndex) check(t *testing.T, reg *registrytest.Registry) error {
	t.Helper()
	pulled, err := remote.Index(p.reference(t, reg), basic())
	if err != nil {
		return err
	}
	got, err := pulled.Digest()
	if err != nil {
		return err
	}
	if want, err := p.Digest(); err != nil || got != want {
		return fmt.Errorf("the tag has %s, want %s, %w", got, want, err)
	}
	return validate.Index(pulled)
}

// clients push an image, as init-hook, crane and skopeo do.
var clients = map[string]func(*testing.T, pushedIndex, *registrytest.Registry) error{
	"images push": func(t *testing.T, p pushedIndex, reg *registrytest.Registry) error {
		source, err := source.Open(t.Context(), p.dir)
		if err != nil {
			return err
		}
		defer source.Close()
		items, err := source.Items("")
		if err != nil {
			return err
		}
		_, err = images.Push(t.Context(), items, reg.Pusher(t), images.Options{})
		return err
	},
	"crane": func(t *testing.T, p pushedIndex, reg *registrytest.Registry) error {
		return remote.Push(p.reference(t, reg), p.ImageIndex, basic(), remote.WithContext(t.Context()))
	},
	"skopeo": func(t *testing.T, p pushedIndex, reg *registrytest.Registry) error {
		return run(t.Context(), "skopeo", "copy", "--quiet", "--insecure-policy", "--all", "--dest-tls-verify=false",
			"--dest-creds", registrytest.Username+":"+registrytest.Password, "oci:"+p.dir+":v1",
			"docker://"+p.reference(t, reg).String())
	},
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

// Every client repairs an image by pushing it again, whatever of it is missing or damaged.
func TestPushRepairs(t *testing.T) {
	t.Parallel()
	half := func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	}
	flip := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		content[len(content)/2] ^= 1
		return os.WriteFile(path, content, 0o600)
	}
	damages := map[string]func(string) error{
		"missing": os.Remove, "empty": func(path string) error { return os.Truncate(path, 0) }, "cut off": half,
		"changed": flip, "without directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	}
	// What nobody notices without reading it: see TestScrub.
	unnoticed := map[string]bool{"layer changed": true, "configuration changed": true}
	// Distribution reads a link to content by its name only.
	harmless := map[string]bool{"index's link changed": true, "child's link changed": true, "layer's link changed": true,
		"tag's link changed": true}
	ca := tlsfilestest.NewCA(t, "ca")
	reg := registrytest.Start(t, ca)
	for client, push := range clients {
		t.Run(client, func(t *testing.T) {
			if client == "skopeo" {
				if _, err := exec.LookPath("skopeo"); err != nil {
					t.Skip(err)
				}
			}
			for damage, do := range damages {
				if client == "skopeo" && damage != "missing" && damage != "cut off" {
					continue // it is slow to start
				}
				p := newPushedIndex(t)
				for what, path := range p.paths(t) {
					this := what + " " + damage
					if unnoticed[this] || harmless[this] {
						continue
					}
					t.Run(this, func(t *testing.T) {
						require.NoError(t, push(t, p, reg))
						require.NoError(t, p.check(t, reg))
						require.NoError(t, do(filepath.Join(reg.Root, path)))
						if err := p.check(t, reg); err == nil {
							t.Fatal("the damage does no harm")
						}
						require.NoError(t, push(t, p, reg))
						if err := p.check(t, reg); err != nil {
							t.Errorf("after a push: %v", err)
						}
					})
				}
			}
		})
	}
}

// Content without a record, as distribution itself or an older backup has it, is repaired as well: the first push that
// finds another size than the manifest says reads the content.
func TestPushRepairsContentWithoutRecord(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t, tlsfilestest.NewCA(t, "ca"))
	for client, push := range clients {
		t.Run(client, func(t *testing.T) {
			if client == "skopeo" {
				if _, err := exec.LookPath("skopeo"); err != nil {
					t.Skip(err)
				}
			}
			p := newPushedIndex(t)
			require.NoError(t, push(t, p, reg))
			layer := filepath.Join(reg.Root, p.paths(t)["layer"])
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(layer), "size.json")))
			require.NoError(t, os.Truncate(layer, 100))
			err := push(t, p, reg)
			if err != nil && client != "skopeo" { // which does not ask for the manifest first
				t.Fatal(err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "unknown") {
					t.Fatal(err)
				}
				err = push(t, p, reg)
			}
			require.NoError(t, err)
			if err := p.check(t, reg); err != nil {
				t.Error(err)
			}
			if content, err := os.ReadFile(filepath.Join(filepath.Dir(layer), "size.json")); err != nil ||
				!bytes.Contains(content, []byte(`{"size":`)) {
				t.Errorf("record %s, %v", content, err)
			}
		})
	}
}
