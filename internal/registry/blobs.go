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
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Distribution reads each blob that it serves through a buffer of 4 MiB, which
// costs more than the rest of the request for a small one, and 400 MiB for a
// hundred pulls at a time. This middleware serves blobs straight from the
// storage driver, mounts those that are there (mount.go), and remembers which ones
// clients count on (collect.go).
const unbufferedBlobs = "zarf-registry-unbuffered-blobs"

func init() {
	err := middleware.Register(unbufferedBlobs, func(_ context.Context, namespace distribution.Namespace, driver storagedriver.StorageDriver, options map[string]any) (distribution.Namespace, error) {
		remover, ok := namespace.(distribution.RepositoryRemover)
		if !ok {
			return nil, errors.New("distribution's registry cannot remove repositories any more")
		}
		source := options["source"].(*blobSource)
		source.driver = driver
		return blobNamespace{namespace, remover, source}, nil
	})
	if err != nil {
		panic(err) // two packages of one program use the name
	}
}

// useUnbufferedBlobs makes distribution apply the middleware, which completes source.
func useUnbufferedBlobs(config *configuration.Configuration, source *blobSource) {
	config.Middleware = map[string][]configuration.Middleware{
		"registry": {{Name: unbufferedBlobs, Options: configuration.Parameters{"source": source}}},
	}
}

// blobSource is where blobs are read.
type blobSource struct {
	driver storagedriver.StorageDriver // distribution's own
	use    inUse
	log    *slog.Logger
}

type blobNamespace struct {
	distribution.Namespace
	distribution.RepositoryRemover
	source *blobSource
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
	source *blobSource
}

func (r blobRepository) Blobs(ctx context.Context) distribution.BlobStore {
	return blobStore{r.Repository.Blobs(ctx), r.Named(), r.source}
}

type blobStore struct {
	distribution.BlobStore
	name   reference.Named // of the repository
	source *blobSource
}

// ServeBlob answers r with the blob, or with the part of it that r asks for.
func (s blobStore) ServeBlob(ctx context.Context, w http.ResponseWriter, r *http.Request, d digest.Digest) error {
	if r.Method == http.MethodHead { // a push that asks what it need not send
		s.source.use.note(d)
	}
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

// Resume goes on with an upload.
func (s blobStore) Resume(ctx context.Context, id string) (distribution.BlobWriter, error) {
	writer, err := s.BlobStore.Resume(ctx, id)
	if err != nil {
		return nil, err
	}
	return blobWriter{writer, s.source}, nil
}

// blobWriter is an upload.
type blobWriter struct {
	distribution.BlobWriter
	source *blobSource
}

// Commit ends the upload. Distribution keeps a blob that is there already, however old.
func (w blobWriter) Commit(ctx context.Context, provisional v1.Descriptor) (v1.Descriptor, error) {
	w.source.use.note(provisional.Digest)
	return w.BlobWriter.Commit(ctx, provisional)
}
