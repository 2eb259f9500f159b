package spec

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/middleware/registry"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// ownUploads is the name of the middleware through which uploads outlive their request.
const ownUploads = "zarf-registry-uploads"

func init() {
	if err := middleware.Register(ownUploads, newBlobNamespace); err != nil {
		panic(err) // another package of this program uses the name
	}
}

func newBlobNamespace(
	_ context.Context, namespace distribution.Namespace, _ storagedriver.StorageDriver, options map[string]any,
) (distribution.Namespace, error) {
	return blobNamespace{namespace, namespace.(distribution.RepositoryRemover), options["source"].(*Registry)}, nil
}

type blobNamespace struct {
	distribution.Namespace
	distribution.RepositoryRemover
	source *Registry
}

func (n blobNamespace) Repository(ctx context.Context, name reference.Named) (distribution.Repository, error) {
	repository, err := n.Namespace.Repository(ctx, name)
	if err != nil {
		return nil, err
	}
	return blobRepository{repository, n.source}, nil
}

// Repositories lists repositories after last, in order, and returns [io.EOF] with the last ones. It leaves
// out the project's own for clients of the loopback listener and those with the client role.
func (n blobNamespace) Repositories(ctx context.Context, repositories []string, last string) (int, error) {
	if by := request.CallerOf(ctx); by == nil || !by.HidesOwn {
		return n.Namespace.Repositories(ctx, repositories, last)
	}
	for {
		found, err := n.Namespace.Repositories(ctx, repositories, last)
		if found > 0 {
			last = repositories[found-1]
		}
		visible := slices.DeleteFunc(repositories[:found], catalog.Own)
		// A page that does not end the list must not be empty: the next one begins after its last name.
		if len(visible) > 0 || found == 0 || err != nil {
			return len(visible), err
		}
	}
}

type blobRepository struct {
	distribution.Repository
	source *Registry
}

func (r blobRepository) Blobs(ctx context.Context) distribution.BlobStore {
	// Uploads outlive their request: see Commit.
	return blobStore{r.Repository.Blobs(context.WithoutCancel(ctx)), r.Named(), r.source}
}

type blobStore struct {
	distribution.BlobStore
	name   reference.Named // of the repository
	source *Registry
}

// Create begins an upload.
func (s blobStore) Create(
	ctx context.Context, options ...distribution.BlobCreateOption,
) (distribution.BlobWriter, error) {
	writer, err := s.BlobStore.Create(context.WithoutCancel(ctx), options...)
	return s.writer(ctx, writer, err)
}

// Resume continues an upload.
func (s blobStore) Resume(ctx context.Context, id string) (distribution.BlobWriter, error) {
	detached := context.WithoutCancel(ctx)
	if method := requestOf(ctx).Method; method == http.MethodGet || method == http.MethodHead {
		detached = storage.ForStatus(detached)
	}
	writer, err := s.BlobStore.Resume(detached, id)
	if storage.IsNotFound(err) {
		err = distribution.ErrBlobUploadUnknown
	}
	return s.writer(ctx, writer, err)
}

func (s blobStore) writer(ctx context.Context, w distribution.BlobWriter, err error) (distribution.BlobWriter, error) {
	if err != nil {
		volume.RecordNoSpace(ctx, err)
		return nil, err
	}
	return &blobWriter{BlobWriter: w, ctx: ctx, name: s.name.Name(), source: s.source}, nil
}

// blobWriter is an upload, in one request.
type blobWriter struct {
	distribution.BlobWriter
	ctx     context.Context // of the request
	name    string          // of the repository
	source  *Registry
	full    bool // the file system has no space for it
	removed bool
	refused bool // by a collection: the client sends the rest of the upload, which is nothing, later
}

// Write implements [io.Writer].
func (w *blobWriter) Write(p []byte) (int, error) {
	n, err := w.BlobWriter.Write(p)
	w.recordError(err)
	return n, err
}

// ReadFrom implements [io.ReaderFrom].
func (w *blobWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := w.BlobWriter.ReadFrom(r)
	w.recordError(err)
	return n, err
}

func (w *blobWriter) recordError(err error) { w.full = volume.RecordNoSpace(w.ctx, err) || w.full }

// Close removes the upload if it did not fit. Otherwise it would occupy the full file system until it is purged.
func (w *blobWriter) Close() error {
	switch {
	case w.removed:
		return nil // distribution would store the state of its digest
	case w.full:
		return w.Cancel(w.ctx)
	}
	return w.BlobWriter.Close()
}

// Cancel removes the upload, also if the client has just disconnected, unless another request continues it.
func (w *blobWriter) Cancel(ctx context.Context) error {
	if w.refused {
		return nil
	}
	w.removed = true
	ctx = context.WithoutCancel(ctx)
	// It fails after some errors, and after Commit.
	if err := w.BlobWriter.Cancel(ctx); errors.Is(err, storage.ErrWriterReplaced) {
		return err
	}
	err := w.source.Driver.Delete(ctx, storage.UploadDir(w.name, w.ID()))
	if storage.IsNotFound(err) {
		return nil
	}
	return err
}

// Commit finishes the upload, whether or not the client waits for it. It replaces a blob, which may be damaged.
func (w *blobWriter) Commit(ctx context.Context, provisional v1.Descriptor) (blob v1.Descriptor, err error) {
	ctx = context.WithoutCancel(ctx)
	if err := w.source.collector.AdmitBlob(ctx, provisional.Digest); err != nil {
		w.refused = true
		return v1.Descriptor{}, err
	}
	path := uploadPath(w.name, w.ID())
	end := w.source.commits.begin(path, &commit{location: requestOf(ctx).URL.RequestURI(), size: w.Size()})
	defer func() { end(blob.Digest) }()
	use := w.source.collector.Rely(provisional.Digest)
	defer func() { use.Done(err == nil) }()
	blob, err = w.BlobWriter.Commit(content.Replacing(ctx), provisional)
	w.recordError(err)
	if err != nil || blob.Digest == provisional.Digest {
		return blob, err
	}
	// Only now is the SHA-256 digest known. A collection may have removed the blob.
	canonical := w.source.collector.Rely(blob.Digest)
	defer func() { canonical.Done(err == nil) }()
	if found, err := w.source.Exists(ctx, storage.BlobPath(blob.Digest)); err != nil || !found {
		return v1.Descriptor{}, cmp.Or(err,
			request.Unavailable("the blob was garbage-collected during the upload: push it again"))
	}
	if err := w.source.Link(ctx, storage.DigestLinkPath(provisional.Digest), blob.Digest); err != nil {
		return v1.Descriptor{}, err
	}
	blob.Digest = provisional.Digest
	return blob, nil
}
