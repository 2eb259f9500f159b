package registry

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// contents reads the registry's catalog.
func (c client) contents() *catalog.Catalog {
	c.t.Helper()
	read, err := catalog.Read(strings.NewReader(c.must(http.StatusOK, "GET", catalog.Path, nil).body))
	require.NoError(c.t, err)
	return read
}

// imageAt returns the image that is listed under a reference without an address.
func imageAt(t *testing.T, images []*catalog.Image, reference string) *catalog.Image {
	t.Helper()
	at := slices.IndexFunc(images, func(i *catalog.Image) bool { return i.Reference() == reference })
	if at < 0 {
		t.Fatalf("%s is not listed", reference)
	}
	return images[at]
}

// pushPlatform pushes the manifest of an image for linux/arm64, without a tag.
func (c client) pushPlatform(repository, layer string) digest.Digest {
	c.t.Helper()
	const config = `{"os":"linux","architecture":"arm64","variant":"v8"}`
	d, _ := c.put(repository, "", ociManifest, map[string]any{
		"config": describe(v1.MediaTypeImageConfig, c.pushBlob(repository, config), len(config)),
		"layers": []any{describe(v1.MediaTypeImageLayer, c.pushBlob(repository, layer), len(layer))},
	})
	return d
}

func TestCatalogListsEverything(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	if empty := c.contents(); len(empty.Manifests) != 0 || len(empty.Blobs) != 0 || time.Since(empty.At) > time.Hour {
		t.Errorf("an empty registry has %+v", empty)
	}
	single, text := c.pushImage("team/a", "1", "layer of a")
	c.must(http.StatusCreated, "PUT", "/v2/team/a/manifests/2", strings.NewReader(text), "Content-Type", ociManifest)
	child := c.pushPlatform("team/b", "layer of b")
	index, _ := c.put("team/b", "multi", ociIndex, map[string]any{"manifests": []any{map[string]any{
		"mediaType": ociManifest, "digest": child, "size": 1, "platform": map[string]any{"os": "linux", "architecture": "arm64"},
	}}})
	signature, _ := c.put("team/b", "", ociManifest, map[string]any{
		"artifactType": "application/vnd.dev.cosign.artifact.sig.v1+json",
		"config":       map[string]any{"mediaType": "application/vnd.oci.empty.v1+json", "digest": c.pushBlob("team/b", "{}"), "size": 2},
		"layers":       []any{},
		"subject":      map[string]any{"mediaType": ociIndex, "digest": index, "size": 1},
	})
	c.put("team/c", "sha512?tag=1", ociManifest, c.image512("team/c", "layer of c"))

	read := c.contents()
	images := read.Images()
	a := imageAt(t, images, "team/a:1")
	if a.Digest != single || !slices.Equal(a.Tags, []string{"1", "2"}) || a.MediaType != ociManifest ||
		time.Since(a.Pushed) > time.Hour || !slices.Contains(a.Needs, digest.FromString("layer of a")) {
		t.Errorf("the image is %+v", a.Manifest)
	}
	b := imageAt(t, images, "team/b:multi")
	if b.Digest != index || !slices.Equal(b.Platforms, []string{"linux/arm64"}) || b.Signatures != 1 || len(b.Members) != 3 {
		t.Errorf("the index is %+v with %d members and %d signatures", b.Manifest, len(b.Members), b.Signatures)
	}
	for _, m := range b.Members {
		switch m.Digest {
		case child:
			if !slices.Equal(m.Platforms, []string{"linux/arm64"}) {
				t.Errorf("the platforms of the child are %q", m.Platforms)
			}
		case signature:
			if m.Subject != index || !m.IsSignature() {
				t.Errorf("the signature is %+v", m)
			}
		}
	}
	at := slices.IndexFunc(images, func(i *catalog.Image) bool { return i.Repository == "team/c" })
	if len(images) != 3 || at < 0 || len(images[at].Aliases) != 1 || images[at].Aliases[0].Algorithm() != digest.SHA512 ||
		read.Blobs[digest.FromString("layer of c")].Size != int64(len("layer of c")) {
		t.Errorf("there are %d images; that of the SHA-512 digest is at %d: %+v", len(images), at, images)
	}
}

// Each of zarf-registry's own paths is for pushers with the push credential, at the listener with mutual TLS.
func TestOwnPathsNeedThePushCredential(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	for path, method := range map[string]string{
		catalog.Path: "GET", gc.Path + "?dry-run=true": "POST", scrub.Path: "POST", deletion.Path: "POST",
	} {
		i.node().must(http.StatusForbidden, method, path, nil)
		i.plain().as(pushUser, pushPassword).must(http.StatusNotFound, method, path, nil)
		c.must(http.StatusMethodNotAllowed, "PUT", path, nil)
		if method == "POST" { // the catalog needs a certificate only
			c.as("", "").must(http.StatusUnauthorized, method, path, nil)
			i.plain().as(pullUser, pullPassword).must(http.StatusForbidden, method, path, nil)
		}
	}
}

// What the preview of a deletion says is what the collection after it frees.
func TestPreviewOfADeletionIsExact(t *testing.T) {
	t.Parallel()
	i := startQuick(t, newTestCA(t), t.TempDir())
	c := i.pusher()
	c.pushImage("team/a", "kept", "shared layer")
	c.pushImage("team/b", "old", "shared layer")
	c.pushImage("team/b", "gone", "layer that only this image has")
	child := c.pushPlatform("team/c", "layer of an index")
	c.pushIndex("team/c", "gone", child)
	older()
	time.Sleep(1100 * time.Millisecond) // HTTP's dates have seconds

	read := c.contents()
	match := require.Value(catalog.ParsePatterns("team/b", "*:gone"))(t)
	decisions := read.Decide(catalog.Rules{Match: match, Used: func(*catalog.Image) []string { return nil }})
	doomed := catalog.ManifestsToDelete(decisions)
	if len(doomed) != 4 {
		t.Fatalf("to be deleted: %+v", doomed)
	}
	preview := read.Reclaimable(doomed, 0)
	for _, m := range doomed {
		c.must(http.StatusAccepted, "DELETE", "/v2/"+m.Repository+"/manifests/"+m.Digest.String(), nil,
			"If-Unmodified-Since", read.At.UTC().Format(http.TimeFormat))
	}
	events := c.collect(gc.Request{})
	result := events[len(events)-1].Result
	if result == nil || result.Bytes != preview.Bytes || result.Blobs != preview.Blobs || preview.Blobs < 5 {
		t.Errorf("collected %+v, the preview was %+v", result, preview)
	}
	c.must(http.StatusOK, "GET", "/v2/team/a/blobs/"+digest.FromString("shared layer").String(), nil)
}
