package collect

import (
	"context"
	"fmt"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"sync"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// countingDriver counts how many files are read at once.
type countingDriver struct {
	storagedriver.StorageDriver
	mu           sync.Mutex
	running, max int
}

func (d *countingDriver) GetContent(ctx context.Context, path string) ([]byte, error) {
	d.mu.Lock()
	d.running++
	d.max = max(d.max, d.running)
	d.mu.Unlock()
	time.Sleep(20 * time.Millisecond) // as long as a request to S3 takes
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running--
	}()
	return d.StorageDriver.GetContent(ctx, path)
}

// Object storage takes long for each file, so a large registry could not be marked in time.
func TestMarkingReadsInParallel(t *testing.T) {
	t.Parallel()
	memory := newTestStorage(t)
	for n := range 20 {
		image := memory.manifest(memory.blob(fmt.Sprint(n)))
		memory.put(storage.TagPath("a", fmt.Sprint(n)), image.String())
	}
	driver := &countingDriver{StorageDriver: memory.StorageDriver}
	stored := &content.Inventory{Driver: driver}
	require.NoError(t, stored.Read(t.Context()))
	if driver.max < 2 || len(stored.Tagged) != 20 {
		t.Errorf("read %d of 20 tags, %d at once", len(stored.Tagged), driver.max)
	}
	driver.max = 0
	m := require.Value(mark(t.Context(), stored, true, time.Now(), nil))(t)
	kept := 0
	for _, b := range m.Blobs {
		if b.Keep {
			kept++
		}
	}
	if driver.max < 2 || len(m.references) != 20 || kept != 20+20 {
		t.Errorf("read %d of 20 manifests, %d at once; kept %d", len(m.references), driver.max, kept)
	}
}
