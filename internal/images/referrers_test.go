package images

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/imagestest"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// signedImage is an index with images, blobs and referrers of both digest algorithms. It returns what to push, the
// index first.
func signedImage(t testing.TB, store *graph.Store) []graph.Image {
	t.Helper()
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	layers := []ocispec.Descriptor{
		imagestest.Add(store, digest.SHA512, ocispec.MediaTypeImageLayer, imagestest.Noise(1, 50_000)),
		imagestest.Add(store, digest.SHA256, ocispec.MediaTypeImageLayer, imagestest.Noise(2, 60_000)),
	}
	for architecture, algorithm := range map[string]digest.Algorithm{"amd64": digest.SHA512, "arm64": digest.SHA256} {
		platform := ocispec.Platform{OS: "linux", Architecture: architecture}
		config := imagestest.JSON(t, ocispec.Image{Platform: platform, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{
			layers[0].Digest, layers[1].Digest}}})
		manifest := imagestest.Add(store, algorithm, ocispec.MediaTypeImageManifest, imagestest.JSON(t, ocispec.Manifest{
			Versioned: index.Versioned, MediaType: ocispec.MediaTypeImageManifest,
			Config: imagestest.Add(store, algorithm, ocispec.MediaTypeImageConfig, config), Layers: layers,
		}))
		manifest.Platform = &platform
		index.Manifests = append(index.Manifests, manifest)
	}
	slices.SortFunc(index.Manifests, func(a, b ocispec.Descriptor) int {
		return strings.Compare(a.Platform.Architecture, b.Platform.Architecture)
	})
	root := imagestest.Add(store, digest.SHA512, ocispec.MediaTypeImageIndex, imagestest.JSON(t, index))
	list := []graph.Image{{Reference: "docker.io/team/signed:1", Descriptor: root}}
	refer := func(desc ocispec.Descriptor) ocispec.Descriptor {
		list = append(list, graph.Image{Reference: "docker.io/team/signed@" + desc.Digest.String(), Descriptor: desc})
		return desc
	}
	note := func(algorithm digest.Algorithm, text string, subject *ocispec.Descriptor) ocispec.Descriptor {
		return imagestest.Add(store, algorithm, ocispec.MediaTypeImageManifest, imagestest.JSON(t, ocispec.Manifest{
			Versioned: index.Versioned, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.example.note",
			Config:  imagestest.Add(store, algorithm, ocispec.MediaTypeEmptyJSON, []byte("{}")),
			Layers:  []ocispec.Descriptor{imagestest.Add(store, algorithm, "text/plain", []byte(text))},
			Subject: subject, Annotations: map[string]string{"text": text},
		}))
	}
	signature := refer(note(digest.SHA512, "signature of the index", &root))
	refer(note(digest.SHA256, "SBOM of the index", &root))
	refer(note(digest.SHA512, "signature of the signature", &signature))
	for _, manifest := range index.Manifests {
		refer(note(digest.SHA256, "signature of "+manifest.Platform.Architecture, &manifest))
	}
	part := note(digest.SHA512, "part of an index that refers to the image", nil)
	refer(imagestest.Add(store, digest.SHA512, ocispec.MediaTypeImageIndex, imagestest.JSON(t, ocispec.Index{
		Versioned: index.Versioned, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: "application/vnd.example.notes",
		Manifests: []ocispec.Descriptor{part}, Subject: &root,
	})))
	refer(note(digest.SHA512, "signature of the part", &part))
	return list
}

// startRegistry starts the project's registry.
func startRegistry(t *testing.T) *remote.Registry {
	t.Helper()
	return registrytest.Start(t, tlsfilestest.NewCA(t, "ca")).Pusher(t)
}

func repositoryOf(t *testing.T, registry *remote.Registry) *remote.Repository {
	t.Helper()
	return require.Value(registry.Repository("team/signed"))(t)
}

// sameInRegistries checks that a registry has all content of the images, their referrers, and no other tags.
func sameInRegistries(t *testing.T, from graph.Content, images []graph.Image, registry *remote.Registry) {
	t.Helper()
	repository := repositoryOf(t, registry)
	subjects := map[digest.Digest][]string{}
	for _, image := range images {
		for _, node := range imagestest.Nodes(t, from, image.Descriptor) {
			if !oci.IsManifestOrIndex(node.MediaType) {
				if ok, err := repository.Exists(t.Context(), node); err != nil || !ok {
					t.Errorf("%s %s: exists %v, error %v", node.MediaType, node.Digest, ok, err)
				}
				continue
			}
			want := imagestest.Fetch(t, from, node)
			got, raw, err := repository.Manifest(t.Context(), node.Digest.String())
			if err != nil || got.Digest != node.Digest || got.MediaType != node.MediaType || !bytes.Equal(raw, want) {
				t.Errorf("%s: %v, content %q, error %v", node.Digest, got, raw, err)
			}
			var manifest ocispec.Manifest
			require.NoError(t, json.Unmarshal(want, &manifest))
			if subjects[node.Digest] == nil {
				subjects[node.Digest] = []string{} // nothing refers to most manifests
			}
			if manifest.Subject != nil {
				subjects[manifest.Subject.Digest] = append(subjects[manifest.Subject.Digest], node.Digest.String())
			}
		}
	}
	for subject, want := range subjects {
		got := []string{}
		require.NoError(t, repository.Referrers(t.Context(), subject, func(page []ocispec.Descriptor) error {
			for _, desc := range page {
				got = append(got, desc.Digest.String())
			}
			return nil
		}))
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("referrers of %s:\n%s", subject, diff)
		}
	}
	if got, err := repository.Resolve(t.Context(), "1"); err != nil || got.Digest != images[0].Descriptor.Digest {
		t.Errorf("the tag is %v, error %v", got, err)
	}
	var tags []string
	err := repository.Tags(t.Context(), func(page []string) error { tags = append(tags, page...); return nil })
	if err != nil || !slices.Equal(tags, []string{"1"}) {
		t.Errorf("tags %v, error %v", tags, err)
	}
}

// resolveSigned finds the image in a registry, with its referrers.
func resolveSigned(t *testing.T, registry *remote.Registry, change func(*source.ResolveOptions)) []graph.Item {
	t.Helper()
	opts := source.ResolveOptions{
		Registry:  func(context.Context, string) (*remote.Registry, error) { return registry, nil },
		Store:     openStore(t, t.TempDir()),
		Referrers: true,
	}
	if change != nil {
		change(&opts)
	}
	return require.Value(source.Resolve(t.Context(), []string{registry.Host() + "/team/signed:1"}, opts))(t)
}

// TestBothDigestAlgorithms copies an image between registries of the project, directly and by layout and archive.
func TestBothDigestAlgorithms(t *testing.T) {
	store := &graph.Store{}
	list := signedImage(t, store)
	from := startRegistry(t)
	mustPush(t, graph.Items(store, list...), from, Options{})
	sameInRegistries(t, store, list, from)

	items := resolveSigned(t, from, nil)
	var got, want []string
	for _, item := range items {
		got = append(got, item.Descriptor.Digest.String())
	}
	for _, image := range list {
		want = append(want, image.Descriptor.Digest.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" || items[0].Descriptor.Digest != list[0].Descriptor.Digest {
		t.Fatalf("resolved %v first, all:\n%s", items[0], diff)
	}
	t.Run("directly", func(t *testing.T) {
		to := startRegistry(t)
		mustPush(t, items, to, Options{})
		sameInRegistries(t, store, list, to)
		results := mustPush(t, items, to, Options{})
		for _, r := range results {
			if r.BytesSent != 0 || r.BytesReceived != 0 {
				t.Errorf("again: %+v", r)
			}
		}
	})
	for kind, source := range pullBoth(t, items) {
		t.Run("by "+kind, func(t *testing.T) {
			to := startRegistry(t)
			items := mustItems(t, source, "")
			if len(items) != len(list) {
				t.Errorf("%d images, want %d: %v", len(items), len(list), source.Images())
			}
			mustPush(t, items, to, Options{})
			sameInRegistries(t, store, list, to)
		})
	}
}

// The signature of an index does not fit some of its platforms.
func TestReferrersOfSelectedPlatforms(t *testing.T) {
	store := &graph.Store{}
	list := signedImage(t, store)
	from := startRegistry(t)
	mustPush(t, graph.Items(store, list...), from, Options{})
	for platform, warns := range map[string]bool{"linux/arm64": true, "linux/amd64,linux/arm64": false, "all": false} {
		t.Run(platform, func(t *testing.T) {
			var log bytes.Buffer
			selected := require.Value(graph.ParsePlatforms(platform))(t)
			items := resolveSigned(t, from, func(o *source.ResolveOptions) {
				o.Platforms, o.Log = selected, slog.New(slog.NewTextHandler(&log, nil))
			})
			if got := strings.Contains(log.String(), "referrers=3"); got != warns {
				t.Errorf("warns %v, want %v: %s", got, warns, log.String())
			}
			want := len(list)
			if warns {
				want = 2 // one manifest and its signature
			}
			if len(items) != want {
				t.Errorf("%d items, want %d", len(items), want)
			}
		})
	}
}

func TestUnknownDigestAlgorithms(t *testing.T) {
	const want = " is not supported: want sha256 or sha512"
	other := digest.SHA384.FromString("layer")
	err := name.Check("registry.example/a@" + other.String())
	if err == nil || !strings.Contains(err.Error(), "digest algorithm sha384"+want) {
		t.Errorf("error %v", err)
	}
	store := &graph.Store{}
	manifest := imagestest.Add(store, digest.SHA256, ocispec.MediaTypeImageManifest, fmt.Appendf(nil,
		`{"schemaVersion":2,"config":{"mediaType":"a/b","digest":%q,"size":5},"layers":[]}`, other))
	err = WriteArchive(t.Context(), filepath.Join(t.TempDir(), "a.tar"), store, graph.Image{Reference: "a:1", Descriptor: manifest})
	if err == nil || !strings.Contains(err.Error(), "digest algorithm sha384"+want) {
		t.Errorf("error %v", err)
	}
}

// regctl keeps the referrers of images in layouts in indexes under referrers tags, and images under their tags only.
func TestReferrersInALayoutOfRegctl(t *testing.T) {
	store := &graph.Store{}
	list := signedImage(t, store)
	tagged := func(desc ocispec.Descriptor, tag string) ocispec.Descriptor {
		desc.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
		return desc
	}
	indexes := map[digest.Digest]*ocispec.Index{}
	for _, image := range list {
		var manifest ocispec.Manifest
		require.NoError(t, json.Unmarshal(imagestest.Fetch(t, store, image.Descriptor), &manifest))
		if manifest.Subject == nil {
			continue
		}
		subject := manifest.Subject.Digest
		if indexes[subject] == nil {
			indexes[subject] = &ocispec.Index{Versioned: manifest.Versioned, MediaType: ocispec.MediaTypeImageIndex}
		}
		desc := image.Descriptor
		desc.ArtifactType, desc.Annotations = manifest.ArtifactType, manifest.Annotations
		indexes[subject].Manifests = append(indexes[subject].Manifests, desc)
	}
	listed := []ocispec.Descriptor{tagged(list[0].Descriptor, "latest")}
	for subject, index := range indexes {
		desc := imagestest.Add(store, digest.SHA256, ocispec.MediaTypeImageIndex, imagestest.JSON(t, index))
		listed = append(listed, tagged(desc, subject.Algorithm().String()+"-"+subject.Encoded()[:64]))
	}
	source := imagestest.Open(t, source.Open, imagestest.WriteLayout(t, imagestest.Layout(t, store, listed...)))
	if _, err := source.Items(""); err == nil || !strings.Contains(err.Error(), "has no name") {
		t.Errorf("error %v", err)
	}
	items := mustItems(t, source, "example.org/team/signed:1")
	to := startRegistry(t)
	mustPush(t, items, to, Options{})
	sameInRegistries(t, store, list, to)
}

// No tag may name an image whose signature is still missing: nodes may verify signatures.
func TestReferrersArePushedFirst(t *testing.T) {
	store := &graph.Store{}
	image := imagestest.Index(t, store, "a:1", 100, "amd64")
	signed := graph.Image{Reference: "a@" + image.Descriptor.Digest.String(), Descriptor: image.Descriptor}
	tagged := graph.Image{Reference: "a:sha256-" + image.Descriptor.Digest.Encoded() + ".sig", Descriptor: image.Descriptor}
	other := imagestest.Index(t, store, "b:1", 200, "amd64")
	to := imagestest.NewRegistry(t)
	results := mustPush(t, graph.Items(store, image, other, signed, tagged), to.NewClient(t, nil), Options{})
	var got, want []string
	for _, r := range results {
		got = append(got, r.Reference)
	}
	for _, name := range []string{signed.Reference, tagged.Reference, image.Reference, other.Reference} {
		want = append(want, to.Host()+"/library/"+name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
