package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// slowDriver reads slowly.
type slowDriver struct{ storagedriver.StorageDriver }

func (d slowDriver) GetContent(ctx context.Context, name string) ([]byte, error) {
	time.Sleep(time.Minute)
	return d.StorageDriver.GetContent(ctx, name)
}

// While manifests are read, empty lines keep the connection alive.
func TestCatalogOfASlowStorage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := slowDriver{inmemory.New()}
		put := func(path, text string) {
			if err := driver.PutContent(t.Context(), path, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		const blobs = 100
		for n := range blobs {
			text := fmt.Sprintf(`{"layers":[],"annotations":{"n":"%d"}}`, n)
			d := digest.FromString(text)
			put(storage.BlobPath(d), text)
			if n == 0 {
				put(storage.RevisionPath("a", d), d.String())
			}
		}
		w := httptest.NewRecorder()
		serveCatalog(w, httptest.NewRequestWithContext(t.Context(), "GET", catalog.Path, nil),
			&content.Store{Driver: driver}, new(atomic.Bool), make(chan struct{}, 1))
		events, empty := 0, 0
		for line := range strings.Lines(w.Body.String()) {
			if line == "\n" {
				empty++
				continue
			}
			if err := json.Unmarshal([]byte(line), new(catalog.Event)); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			events++
		}
		if events != blobs+2 || empty == 0 { // the manifest and the end
			t.Errorf("%d events and %d empty lines", events, empty)
		}
	})
}
