package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// noBackLinks is a storage that fails to write back links.
type noBackLinks struct{ storagedriver.StorageDriver }

func (d noBackLinks) PutContent(ctx context.Context, path string, content []byte) error {
	if strings.HasSuffix(path, "/descriptor.json") {
		return storagedriver.Error{Detail: errors.New("unavailable")}
	}
	return d.StorageDriver.PutContent(ctx, path, content)
}

// A client that finds a manifest does not push it again.
func TestNoManifestIsFoundWithoutBackLinks(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	image := s.image(t, "layer")
	subject := digest.FromString(image)
	referrer := strings.TrimSuffix(image, "}") + fmt.Sprintf(`,"subject":{"mediaType":%q,"digest":%q,"size":%d}}`,
		manifestType, subject, len(image))
	path := "/v2/a/manifests/" + digest.FromString(referrer).String()
	driver := s.Driver
	s.Driver = noBackLinks{driver}
	s.request(t, http.StatusInternalServerError, "PUT", path, strings.NewReader(referrer))
	s.Driver = driver
	s.request(t, http.StatusNotFound, "HEAD", path, nil)
	s.request(t, http.StatusCreated, "PUT", path, strings.NewReader(referrer))
	listed := s.request(t, http.StatusOK, "GET", "/v2/a/referrers/"+subject.String(), nil)
	if !strings.Contains(listed.Body.String(), digest.FromString(referrer).String()) {
		t.Errorf("the list of referrers is %s", listed.Body)
	}
}

// unreadable is a storage that fails to read manifests.
type unreadable struct{ storagedriver.StorageDriver }

func (d unreadable) Reader(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	return nil, storagedriver.Error{Detail: errors.New("unavailable")}
}

func (d unreadable) List(ctx context.Context, path string) ([]string, error) {
	if strings.HasSuffix(path, "_indexes") {
		return nil, storagedriver.Error{Detail: errors.New("unavailable")}
	}
	return d.StorageDriver.List(ctx, path)
}

func TestDeletionOfUnreadableManifests(t *testing.T) {
	t.Parallel()
	condition := func(since time.Duration) []string {
		return []string{"If-Unmodified-Since", time.Now().Add(since).UTC().Format(http.TimeFormat)}
	}
	for name, tt := range map[string]struct {
		fails  bool
		header []string
		status int
	}{
		"damaged":                           {false, nil, http.StatusAccepted},
		"damaged, the condition holds":      {false, condition(time.Hour), http.StatusAccepted},
		"damaged, the condition fails":      {false, condition(-time.Hour), http.StatusPreconditionFailed},
		"the storage fails":                 {true, nil, http.StatusInternalServerError},
		"the storage fails, with condition": {true, condition(time.Hour), http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			s := openInMemory(t)
			image := s.image(t, "layer")
			d := digest.FromString(image)
			s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/"+d.String(), strings.NewReader(image))
			require.NoError(t, s.Driver.PutContent(t.Context(), storage.BlobPath(d), []byte("{")))
			driver := s.Driver
			if tt.fails {
				s.Driver = unreadable{driver}
			}
			s.request(t, tt.status, "DELETE", "/v2/a/manifests/"+d.String(), nil, tt.header...)
			_, err := driver.Stat(t.Context(), storage.RevisionPath("a", d))
			if deleted := storage.IsNotFound(err); deleted != (tt.status == http.StatusAccepted) {
				t.Errorf("deleted: %t", deleted)
			}
		})
	}
	// A manifest that does not exist has not been modified.
	s := openInMemory(t)
	missing := "/v2/a/manifests/" + digest.FromString("x").String()
	s.request(t, http.StatusNotFound, "DELETE", missing, nil, condition(0)...)
	s.request(t, http.StatusBadRequest, "DELETE", missing, nil, "If-Unmodified-Since", "yesterday")
	// Nor does the back link keep it that an index has left.
	image := s.image(t, "layer")
	s.request(t, http.StatusCreated, "PUT", manifestPath(image), strings.NewReader(image))
	index := strings.NewReader(indexOfOne(image))
	s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/multi", index, "Content-Type", indexType)
	s.request(t, http.StatusAccepted, "DELETE", manifestPath(image), nil)
	s.request(t, http.StatusNotFound, "DELETE", manifestPath(image), nil, condition(time.Hour)...)
}

func TestRepeatedDeletionRemovesTags(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	image, other := s.image(t, "layer"), s.image(t, "another layer")
	d := digest.FromString(image)
	s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/v1", strings.NewReader(image))
	s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/v2", strings.NewReader(other))
	if err := s.Driver.Delete(t.Context(), storage.RevisionPath("a", d)); err != nil { // and then the process ended
		t.Fatal(err)
	}
	s.request(t, http.StatusNotFound, "DELETE", "/v2/a/manifests/"+d.String(), nil)
	if tags := s.request(t, http.StatusOK, "GET", "/v2/a/tags/list", nil); !strings.Contains(tags.Body.String(), `["v2"]`) {
		t.Errorf("%s", tags.Body)
	}
}

func TestManifestThatAClientFindsIsKept(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	found, other := s.image(t, "layer"), s.image(t, "another layer")
	path := func(image string) string { return "/v2/a/manifests/" + digest.FromString(image).String() }
	s.request(t, http.StatusCreated, "PUT", path(found), strings.NewReader(found))
	s.request(t, http.StatusCreated, "PUT", path(other), strings.NewReader(other))
	_, err := s.collector.Collect(t.Context(), gc.Request{DeleteUntagged: true, Timeout: time.Minute}, func(e gc.Event) {
		if e.Phase == gc.Sweeping {
			s.request(t, http.StatusOK, "HEAD", path(found), nil)
		}
	})
	require.NoError(t, err)
	s.request(t, http.StatusOK, "GET", path(found), nil)
	s.request(t, http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("layer").String(), nil)
	s.request(t, http.StatusNotFound, "GET", path(other), nil)
}
