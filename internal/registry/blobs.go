package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	err := middleware.Register(unbufferedBlobs, func(_ context.Context, namespace distribution.Namespace, driver storagedriver.StorageDriver, options map[string]any) (distribution.Namespace, error) {
		remover, ok := namespace.(distribution.RepositoryRemover)
		if !ok {
			return nil, errors.New("distribution's registry cannot remove repositories any more")
		}
		return blobNamespace{namespace, remover, blobSource{driver, options["log"].(*slog.Logger)}}, nil
	})
	if err != nil {
		panic(err) // two packages of one program use the name
	}
}

// useUnbufferedBlobs makes distribution apply the middleware.
func useUnbufferedBlobs(config *configuration.Configuration, log *slog.Logger) {
	config.Middleware = map[string][]configuration.Middleware{
		"registry": {{Name: unbufferedBlobs, Options: configuration.Parameters{"log": log}}},
	}
}

// blobSource is where blobs are read.
type blobSource struct {
	driver storagedriver.StorageDriver
	log    *slog.Logger
}

type blobNamespace struct {
	distribution.Namespace
	distribution.RepositoryRemover
	source blobSource
}

func (n blobNamespace) Repository(ctx context.Context, name reference.Named) (distribution.Repository, error) {
	repository, err := n.Namespace.Repository(ctx, name)
	if err != nil {
		return nil, err
	}
	return blobRepository{repository, n.source}, nil
}

type blobRepository struct {
	distribution.Repository
	source blobSource
}

func (r blobRepository) Blobs(ctx context.Context) distribution.BlobStore {
	return blobStore{r.Repository.Blobs(ctx), r.source}
}

type blobStore struct {
	distribution.BlobStore
	source blobSource
}

// ServeBlob answers r with the blob, or with the part of it that r asks for.
func (s blobStore) ServeBlob(ctx context.Context, w http.ResponseWriter, r *http.Request, d digest.Digest) error {
	blob, err := s.Stat(ctx, d)
	if err != nil {
		return err
	}
	content := &blobContent{ctx: ctx, driver: s.source.driver, path: blobPath(blob.Digest), size: blob.Size}
	defer content.close()
	header := w.Header()
	header.Set("Content-Type", blob.MediaType)
	header.Set("Docker-Content-Digest", blob.Digest.String())
	header.Set("ETag", fmt.Sprintf("%q", blob.Digest))
	header.Set("Cache-Control", "max-age=31536000") // a year: a digest never names anything else
	http.ServeContent(w, r, "", time.Time{}, content)
	if content.failure != nil && ctx.Err() == nil {
		// To return it would write it into the blob.
		s.source.log.Error("cannot read a blob", "digest", blob.Digest.String(), "error", content.failure)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// blobContent reads a blob from the place that was sought last.
type blobContent struct {
	ctx     context.Context
	driver  storagedriver.StorageDriver
	path    string
	size    int64
	offset  int64
	reader  io.ReadCloser // at offset, or nil
	failure error
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

func (c *blobContent) Read(p []byte) (n int, err error) {
	if c.reader == nil {
		c.reader, err = c.driver.Reader(c.ctx, c.path, c.offset)
	}
	if err == nil {
		n, err = c.reader.Read(p)
		c.offset += int64(n)
	}
	ended := errors.Is(err, io.EOF)
	if ended && c.offset < c.size {
		err, ended = io.ErrUnexpectedEOF, false
	}
	if err != nil && !ended {
		c.failure = err
	}
	return n, err
}

func (c *blobContent) close() {
	if c.reader != nil {
		_ = c.reader.Close()
		c.reader = nil
	}
}
