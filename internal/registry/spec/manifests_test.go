package spec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

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
