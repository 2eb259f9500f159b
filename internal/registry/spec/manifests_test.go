package spec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// noBackLinks is a storage that fails to write back links.
type noBackLinks struct{ storagedriver.StorageDriver }

func (d noBackLinks) PutContent(ctx context.Context, path string, content []byte) error {
	if storage.BackLink.MatchString(path) {
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

// unreadable are manifests of the repository a that cannot be read.
type unreadable struct {
	distribution.ManifestService
	distribution.Repository
	failure error
	deleted bool
}

func (*unreadable) Named() reference.Named { return repositoryA }

func (u *unreadable) Get(
	context.Context, digest.Digest, ...distribution.ManifestServiceOption,
) (distribution.Manifest, error) {
	return nil, u.failure
}

func (u *unreadable) Delete(context.Context, digest.Digest) error {
	u.deleted = true
	return nil
}

func TestDeletionOfUnreadableManifests(t *testing.T) {
	t.Parallel()
	s := openInMemory(t)
	image := s.image(t, "layer")
	d := digest.FromString(image)
	s.request(t, http.StatusCreated, "PUT", "/v2/a/manifests/"+d.String(), strings.NewReader(image))
	damage := errors.New("invalid character")
	condition := func(since time.Duration) *deletion { return &deletion{since: time.Now().Add(since)} }
	for name, tt := range map[string]struct {
		failure   error
		condition *deletion
		deleted   bool
	}{
		"damaged":                           {damage, nil, true},
		"damaged, the condition holds":      {damage, condition(time.Hour), true},
		"damaged, the condition fails":      {damage, condition(-time.Hour), false},
		"the storage fails":                 {storagedriver.Error{Detail: damage}, nil, false},
		"the storage fails, with condition": {storagedriver.Error{Detail: damage}, condition(time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unreadable{failure: tt.failure}
			ctx := context.WithValue(t.Context(), intentKey{}, &intent{deletion: tt.condition})
			err := manifestStore{u, u, s}.Delete(ctx, d)
			if u.deleted != tt.deleted || (err == nil) != tt.deleted {
				t.Errorf("deleted: %t, want %t: %v", u.deleted, tt.deleted, err)
			}
		})
	}
	// A manifest that does not exist has not been modified.
	r := httptest.NewRequestWithContext(t.Context(), "DELETE", "/v2/a/manifests/"+digest.FromString("x").String(), nil)
	r.Header.Set("If-Unmodified-Since", time.Now().UTC().Format(http.TimeFormat))
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != http.StatusNotFound {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	s.request(t, http.StatusOK, "GET", path(found), nil)
	s.request(t, http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString("layer").String(), nil)
	s.request(t, http.StatusNotFound, "GET", path(other), nil)
}
