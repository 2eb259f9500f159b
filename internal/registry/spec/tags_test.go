package spec

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

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
	s := openAt(t, root, func(d storagedriver.StorageDriver) storagedriver.StorageDriver {
		return hookedDriver{StorageDriver: d, fired: new(atomic.Bool), beforeDelete: storage.TagsDir("a") + "/moved",
			hook: func() {
				go func() { pushed <- ask(t, other, "PUT", "/v2/a/manifests/moved", manifestType, second).Code }()
				for n := 0; n < 1000 && other.Tagged(t.Context(), "a", "moved") != digest.FromString(second); n++ {
					time.Sleep(time.Millisecond)
				}
			}}
	})
	s.request(t, http.StatusAccepted, "DELETE", manifestPath(first), nil)
	if code := <-pushed; code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	if got := other.Tagged(t.Context(), "a", "gone"); got != "" {
		t.Errorf("the tag of the deleted manifest refers to %s", got)
	}
	if got := other.Tagged(t.Context(), "a", "moved"); got != digest.FromString(second) {
		t.Errorf("the tag that moved refers to %q", got)
	}
	s.request(t, http.StatusAccepted, "DELETE", "/v2/a/manifests/moved", nil)
	if got := other.Tagged(t.Context(), "a", "moved"); got != "" {
		t.Errorf("the deleted tag refers to %s", got)
	}
}
