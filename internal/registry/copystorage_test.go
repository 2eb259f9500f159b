package registry

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// copyStorage copies the images of a directory to the storage at root.
func copyStorage(t *testing.T, from, root string) (storage.Copied, error) {
	t.Helper()
	return storage.Copy(t.Context(), from, loadConfig(t, "version: 0.1\n"+storageAt(root)).Config, func(storage.Copied) {})
}

// onVolume returns options of a registry that stores in a directory, whatever the tests use.
func onVolume(t *testing.T, root string) func(*Options) {
	return configured(t, "version: 0.1\nstorage: {filesystem: {rootdirectory: "+root+"}}\n")
}

func TestCopyStorage(t *testing.T) {
	t.Parallel()
	ca, from, to := newTestCA(t), t.TempDir(), t.TempDir()
	before := start(t, ca, from, onVolume(t, from))
	c := before.pusher()
	large := random(21 << 20) // more than one part of an upload to S3
	image, _ := c.pushImage("a", "v1", large)
	referrer, _ := c.put("a", "", ociManifest, artifact(image, "application/x-signature"))
	index, _ := c.pushIndex("a", "all", image)
	d512, _ := c.put("b/c", "sha512?tag=v1", ociManifest, c.image512("b/c", "layer of 512"))
	untagged, _ := c.pushImage("a", "moved", "previous layer")
	c.pushImage("a", "moved", "layer")
	c.must(http.StatusAccepted, "PATCH", c.begin("a"), strings.NewReader("unfinished"))
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}

	// Interrupted while blobs are copied, and again before the end.
	ctx, cancel := context.WithCancel(t.Context())
	config := loadConfig(t, "version: 0.1\n"+storageAt(to)).Config
	if _, err := storage.Copy(ctx, from, config, func(storage.Copied) { cancel() }); err == nil {
		t.Error("an interrupted copy succeeded")
	}
	first, err := copyStorage(t, from, to)
	if err != nil || first.Blobs == 0 || first.Links == 0 || first.Already {
		t.Fatalf("%+v, %v", first, err)
	}
	after := start(t, ca, to)
	c, node := after.pusher(), after.node()
	for _, path := range []string{"a/manifests/v1", "a/manifests/moved", "a/manifests/" + untagged.String(),
		"a/manifests/all", "a/manifests/" + index.String(), "b/c/manifests/v1", "b/c/manifests/" + d512.String()} {
		node.must(http.StatusOK, "GET", "/v2/"+path, nil)
	}
	if got := node.must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString(large).String(), nil); got.body != large {
		t.Errorf("%d bytes of a large blob", len(got.body))
	}
	found, _ := node.referrers("/v2/a/referrers/" + image.String())
	if len(found) != 1 || found[0].Digest != referrer {
		t.Errorf("referrers %+v", found)
	}
	// The copy counts as new to garbage collection.
	young := c.collect(gc.Request{})
	if last := young[len(young)-1]; last.Result == nil || last.Result.Blobs != 0 {
		t.Errorf("garbage collection %+v", last)
	}

	// A second copy would bring back what was deleted.
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/moved", nil)
	if again, err := copyStorage(t, from, to); err != nil || !again.Already || again.Links != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
	node.must(http.StatusNotFound, "GET", "/v2/a/manifests/moved", nil)
}

func TestCopyStorageFollowsTheSourceUntilItIsComplete(t *testing.T) {
	t.Parallel()
	ca, from, to := newTestCA(t), t.TempDir(), t.TempDir()
	before := start(t, ca, from, onVolume(t, from))
	c := before.pusher()
	c.pushImage("a", "v1", "layer")
	d := c.pushBlob("a", "damaged")
	data := filepath.Join(from, storage.BlobPath(d))
	writeFile(t, data, []byte("DAMAGED"))
	_, err := copyStorage(t, from, to)
	if err == nil || !strings.Contains(err.Error(), "its content has another digest") ||
		!strings.Contains(err.Error(), d.String()) {
		t.Errorf("a damaged blob: %v", err)
	}
	writeFile(t, data, []byte("damaged"))
	c.pushImage("a", "v2", "another layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/v1", nil)
	if _, err := copyStorage(t, from, to); err != nil {
		t.Fatal(err)
	}
	node := start(t, ca, to).node()
	node.must(http.StatusOK, "GET", "/v2/a/manifests/v2", nil)
	node.must(http.StatusNotFound, "GET", "/v2/a/manifests/v1", nil)
}

func TestCopyStorageRefusesADestinationWithImages(t *testing.T) {
	t.Parallel()
	ca, from, to := newTestCA(t), t.TempDir(), t.TempDir()
	start(t, ca, to).pusher().pushImage("a", "v1", "layer")
	if _, err := copyStorage(t, from, to); !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), "already has images") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(to, "docker/registry/v2/zarf-registry/copied.json")); !os.IsNotExist(err) {
		t.Errorf("the record exists: %v", err)
	}
}
