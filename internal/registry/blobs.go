package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/middleware/registry"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Distribution reads each blob that it serves through a buffer of 4 MiB, which
// costs more than the rest of the request for a small one, and 400 MiB for a
// hundred pulls at a time. This middleware serves blobs straight from the
// storage driver.
const unbufferedBlobs = "zarf-registry-unbuffered-blobs"

func init() {
	err := middleware.Register(unbufferedBlobs, func(_ context.Context, namespace distribution.Namespace, driver storagedriver.StorageDriver, _ map[string]any) (distribution.Namespace, error) {
		remover, ok := namespace.(distribution.RepositoryRemover)
		if !ok {
			return nil, errors.New("distribution's registry cannot remove repositories any more")
		}
		return blobNamespace{namespace, remover, driver}, nil
	})
	if err != nil {
		panic(err) // two packages of one program use the name
	}
}

// useUnbufferedBlobs makes distribution apply the middleware.
func useUnbufferedBlobs(config *configuration.Configuration) {
	config.Middleware = map[string][]configuration.Middleware{"registry": {{Name: unbufferedBlobs}}}
}

type blobNamespace struct {
	distribution.Namespace
	distribution.RepositoryRemover
	driver storagedriver.StorageDriver
}

func (n blobNamespace) Repository(ctx context.Context, name reference.Named) (distribution.Repository, error) {
	repository, err := n.Namespace.Repository(ctx, name)
	if err != nil {
		return nil, err
	}
	return blobRepository{repository, n.driver}, nil
}

type blobRepository struct {
	distribution.Repository
	driver storagedriver.StorageDriver
}

func (r blobRepository) Blobs(ctx context.Context) distribution.BlobStore {
	return blobStore{r.Repository.Blobs(ctx), r.driver}
}

type blobStore struct {
	distribution.BlobStore
	driver storagedriver.StorageDriver
}

// ServeBlob answers r with the blob, or with the part of it that r asks for.
func (s blobStore) ServeBlob(ctx context.Context, w http.ResponseWriter, r *http.Request, d digest.Digest) error {
	blob, err := s.Stat(ctx, d)
	if err != nil {
		return err
	}
	content := &blobContent{ctx: ctx, driver: s.driver, path: blobPath(blob.Digest), size: blob.Size}
	defer content.close()
	header := w.Header()
	header.Set("Content-Type", blob.MediaType)
	header.Set("Docker-Content-Digest", blob.Digest.String())
	header.Set("ETag", fmt.Sprintf("%q", blob.Digest))
	header.Set("Cache-Control", "max-age=31536000") // a year: a digest never names anything else
	http.ServeContent(w, r, "", time.Time{}, content)
	return nil
}

// blobContent reads a blob from the place that was sought last.
type blobContent struct {
	ctx    context.Context
	driver storagedriver.StorageDriver
	path   string
	size   int64
	offset int64
	reader io.ReadCloser // at offset, or nil
}

func (c *blobContent) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.offset
	case io.SeekEnd:
		offset += c.size
	}
	if offset != c.offset {
		c.close()
	}
	c.offset = offset
	return offset, nil
}

func (c *blobContent) Read(p []byte) (int, error) {
	if c.reader == nil {
		var err error
		if c.reader, err = c.driver.Reader(c.ctx, c.path, c.offset); err != nil {
			return 0, err
		}
	}
	n, err := c.reader.Read(p)
	c.offset += int64(n)
	return n, err
}

func (c *blobContent) close() {
	if c.reader != nil {
		_ = c.reader.Close()
		c.reader = nil
	}
}
