package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// slowDriver reads slowly.
type slowDriver struct{ storagedriver.StorageDriver }

func (d slowDriver) GetContent(ctx context.Context, name string) ([]byte, error) {
	time.Sleep(time.Minute)
	return d.StorageDriver.GetContent(ctx, name)
}

// ask asks for a catalog.
func ask(ctx context.Context, handler http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, "GET", catalog.Path, nil)
	handler.ServeHTTP(w, request.With(r, request.Target{}, &request.Caller{Roles: []string{pki.OrganizationPush}}))
	return w
}

// While manifests are read, empty lines keep the connection alive, and clients that wait for their turn may leave.
func TestCatalogOfASlowStorage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := slowDriver{inmemory.New()}
		put := func(path, text string) {
			require.NoError(t, driver.PutContent(t.Context(), path, []byte(text)))
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
		handler := Catalog(&content.Store{Driver: driver}, "", new(atomic.Bool))
		go func() {
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if body := ask(ctx, handler).Body.String(); strings.Trim(body, "\n") != "" {
				t.Errorf("a second client was served: %s", body)
			}
		}()
		w := ask(t.Context(), handler)
		events, empty := 0, 0
		for line := range strings.Lines(w.Body.String()) {
			if line == "\n" {
				empty++
				continue
			}
			require.NoError(t, json.Unmarshal([]byte(line), new(catalog.Event)), "in", line)
			events++
		}
		if events != blobs+2 || empty == 0 { // the manifest and the end
			t.Errorf("%d events and %d empty lines", events, empty)
		}
	})
}

// lateDriver is a storage whose clock is behind.
type lateDriver struct{ storagedriver.StorageDriver }

func (d lateDriver) Stat(ctx context.Context, path string) (storagedriver.FileInfo, error) {
	info, err := d.StorageDriver.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	return storagedriver.FileInfoInternal{FileInfoFields: storagedriver.FileInfoFields{Path: path, Size: info.Size(),
		ModTime: info.ModTime().Add(-time.Hour)}}, nil
}

// D10: deletions compare the time of the catalog with those of files.
func TestTheCatalogHasTheTimeOfTheStorage(t *testing.T) {
	t.Parallel()
	w := ask(t.Context(), Catalog(&content.Store{Driver: lateDriver{inmemory.New()}}, "", new(atomic.Bool)))
	read, err := catalog.Read(w.Body)
	if err != nil || time.Since(read.At) < time.Hour {
		t.Errorf("%v, %v", read, err)
	}
}
