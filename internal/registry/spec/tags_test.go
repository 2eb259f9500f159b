package spec

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// tagged returns what a tag refers to.
func tagged(t *testing.T, s *Registry, tag string) digest.Digest {
	t.Helper()
	d, err := s.Tagged(t.Context(), "a", tag)
	if err != nil {
		t.Error(err)
	}
	return d
}

// A tag moves, in another process, after a deletion of its manifest has decided to remove it.
func TestDeletionKeepsTagsThatMoved(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	other := openAt(t, root, unchanged)
	first, second := other.image(t, "layer"), other.image(t, "another layer")
	for _, tag := range []string{"gone", "moved"} {
		other.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/"+tag, strings.NewReader(first))
	}
	pushed := make(chan int, 1)
	s := openHooked(t, root, &hookedDriver{beforeDelete: storage.TagDir("a", "moved"), hook: func() {
		go func() { pushed <- ask(t, other, "PUT", "/v2/a/manifests/moved", manifestType, second).Code }()
		for n := 0; n < 1000 && tagged(t, other, "moved") != digest.FromString(second); n++ {
			time.Sleep(time.Millisecond)
		}
	}})
	s.request(t, http.StatusAccepted, "DELETE", manifestPath(first), nil)
	if code := <-pushed; code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	if got := tagged(t, other, "gone"); got != "" {
		t.Errorf("the tag of the deleted manifest refers to %s", got)
	}
	if got := tagged(t, other, "moved"); got != digest.FromString(second) {
		t.Errorf("the tag that moved refers to %q", got)
	}
	s.request(t, http.StatusAccepted, "DELETE", "/v2/a/manifests/moved", nil)
	if got := tagged(t, other, "moved"); got != "" {
		t.Errorf("the deleted tag refers to %s", got)
	}
}

// A manifest is deleted when a push has stored it, and before its tag is written. The tag must not refer to nothing
// until somebody pushes the manifest by digest.
func TestATagOfADeletedManifestIsNotLeft(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		processes int
		index     bool // whose manifest is deleted, too
	}{
		"1 process": {1, false}, "2 processes": {2, false}, "an index loses its manifest": {2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			other := openAt(t, root, unchanged)
			image := other.image(t, "layer")
			pushed, mediaType := image, manifestType
			if tt.index {
				other.request(t, http.StatusCreated, "PUT", manifestPath(image), strings.NewReader(image))
				pushed, mediaType = indexOfOne(image), indexType
			}
			var s *Registry
			hooked := &hookedDriver{beforeGet: storage.TagPath("a", "v1"), hook: func() {
				deleter := other
				if tt.processes == 1 {
					deleter = s
				}
				for _, m := range slices.Compact([]string{pushed, image}) {
					deleter.request(t, http.StatusAccepted, "DELETE", manifestPath(m), nil)
				}
			}}
			s = openHooked(t, root, hooked)
			push := ask(t, s, "PUT", "/v2/a/manifests/v1", mediaType, pushed)
			if !hooked.fired.Load() {
				t.Fatal("nothing was deleted during the push")
			}
			if tt.index {
				if got := tagged(t, other, "v1"); push.Code != http.StatusServiceUnavailable || got != "" {
					t.Errorf("the push of an index without its manifest: %d, its tag refers to %q", push.Code, got)
				}
				return
			}
			if got := ask(t, other, "GET", "/v2/a/manifests/v1", "", ""); push.Code != http.StatusCreated ||
				got.Code != http.StatusOK || got.Body.String() != pushed {
				t.Errorf("push: %d, the tag: %d %s", push.Code, got.Code, got.Body)
			}
		})
	}
}

// A push by digest stores a manifest again when a deletion has removed it, and before the deletion looks for its tags.
func TestADeletionRemovesTagsOfWhatIsPushedAgain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	other := openAt(t, root, unchanged)
	image := other.image(t, "layer")
	other.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/v1", strings.NewReader(image))
	pushed := make(chan int, 1)
	s := openHooked(t, root, &hookedDriver{beforeList: storage.TagsDir("a"), hook: func() {
		go func() { pushed <- ask(t, other, "PUT", manifestPath(image), manifestType, image).Code }()
		for found := false; !found; time.Sleep(time.Millisecond) {
			found, _ = other.Exists(t.Context(), storage.RevisionPath("a", digest.FromString(image)))
		}
	}})
	s.request(t, http.StatusAccepted, "DELETE", manifestPath(image), nil)
	if code := <-pushed; code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	other.request(t, http.StatusOK, "GET", manifestPath(image), nil)
	other.request(t, http.StatusNotFound, "GET", "/v2/a/manifests/v1", nil)
}
