package spec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/distribution/v3/registry/middleware/registry"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// Distribution allocates a buffer of 4 MiB for each blob that it serves: for a small blob that costs
// more than the rest of the request, and a hundred concurrent pulls need 400 MiB. This middleware
// serves blobs directly from the storage driver, finds only those that are intact, mounts stored
// blobs (mount.go), and tells the collector which blobs clients rely on.
const unbufferedBlobs = "zarf-registry-unbuffered-blobs"

func init() {
	if err := middleware.Register(unbufferedBlobs, newBlobNamespace); err != nil {
		panic(err) // another package of this program uses the name
	}
}

func newBlobNamespace(
	_ context.Context, namespace distribution.Namespace, driver storagedriver.StorageDriver, options map[string]any,
) (distribution.Namespace, error) {
	remover, ok := namespace.(distribution.RepositoryRemover)
	if !ok {
		return nil, errors.New("distribution's registry no longer implements RepositoryRemover")
	}
	source := options["source"].(*Registry)
	source.Driver = driver
	return blobNamespace{namespace, remover, source}, nil
}

// octetStream is the media type of all blobs: only manifests know it.
const octetStream = "application/octet-stream"

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
	return blobStore{r.Repository.Blobs(context.WithoutCancel(ctx)), r.Named(), r.source, &foundBlob{}}
}

func (r blobRepository) Manifests(
	ctx context.Context, options ...distribution.ManifestServiceOption,
) (distribution.ManifestService, error) {
	manifests, err := r.Repository.Manifests(ctx, options...)
	return manifestStore{manifests, r, r.source}, err
}

func (r blobRepository) Tags(ctx context.Context) distribution.TagService {
	return &currentTags{TagService: r.Repository.Tags(ctx), source: r.source, repository: r.Named().Name()}
}

type blobStore struct {
	distribution.BlobStore
	name   reference.Named // of the repository
	source *Registry
	last   *foundBlob // that Stat found: distribution looks each blob up several times
}

type foundBlob struct {
	v1.Descriptor
	stored digest.Digest
}

// Stat returns the descriptor of a blob that is intact, as far as its size tells. Unlike distribution, it keeps a
// digest other than SHA-256.
func (s blobStore) Stat(ctx context.Context, d digest.Digest) (v1.Descriptor, error) {
	if s.last.Digest == d {
		return s.last.Descriptor, nil
	}
	return s.stat(ctx, d, false)
}

// stat looks the blob up again. It notes first, if relied is set, that a client relies on the result.
func (s blobStore) stat(ctx context.Context, d digest.Digest, relied bool) (_ v1.Descriptor, err error) {
	*s.last = foundBlob{}
	stored, err := s.source.ReadLink(ctx, storage.LayerPath(s.name.Name(), d))
	if content.IsDamaged(err) {
		err = distribution.ErrBlobUnknown
	}
	if err != nil {
		return v1.Descriptor{}, err
	}
	if relied {
		use := s.source.collector.Rely(stored)
		defer func() { use.Done(err == nil) }()
	}
	size, _, err := s.source.Size(ctx, stored)
	if err != nil {
		return v1.Descriptor{}, err
	}
	*s.last = foundBlob{v1.Descriptor{MediaType: octetStream, Digest: d, Size: size}, stored}
	return s.last.Descriptor, nil
}

// ServeBlob responds with the blob, or with the range that r requests.
func (s blobStore) ServeBlob(ctx context.Context, w http.ResponseWriter, r *http.Request, d digest.Digest) error {
	var blob v1.Descriptor
	var err error
	if r.Method == http.MethodHead { // a push that skips existing blobs
		blob, err = s.stat(ctx, d, true)
	} else {
		blob, err = s.Stat(ctx, d)
	}
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return errcode.ErrorCodeBlobUnknown.WithDetail(d) // removed since distribution looked it up
	}
	if err != nil {
		return err
	}
	content := &blobContent{ctx: ctx, driver: s.source.Driver, path: storage.BlobPath(s.last.stored), size: blob.Size}
	defer content.close()
	header := w.Header()
	header.Set("Content-Type", blob.MediaType)
	header.Set("Docker-Content-Digest", blob.Digest.String())
	header.Set("ETag", fmt.Sprintf("%q", blob.Digest))
	header.Set("Cache-Control", "max-age=31536000") // a year: content under a digest never changes
	http.ServeContent(w, r, "", time.Time{}, content)
	if content.failure != nil && ctx.Err() == nil {
		// Returning the error would write it into the blob.
		s.source.Log.Error("reading blob failed", "digest", blob.Digest.String(), "error", content.failure)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// blobContent reads a blob. It opens the storage at the offset of the last Seek.
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

// Resume continues an upload.
func (s blobStore) Resume(ctx context.Context, id string) (distribution.BlobWriter, error) {
	detached := context.WithoutCancel(ctx)
	if intentOf(ctx).status {
		detached = storage.ForStatus(detached)
	}
	writer, err := s.BlobStore.Resume(detached, id)
	if err != nil {
		volume.RecordNoSpace(ctx, err)
		return nil, err
	}
	return s.writer(ctx, writer), nil
}

func (s blobStore) writer(ctx context.Context, writer distribution.BlobWriter) *blobWriter {
	return &blobWriter{BlobWriter: writer, ctx: ctx, store: s, source: s.source}
}

// blobWriter is an upload, in one request.
type blobWriter struct {
	distribution.BlobWriter
	ctx     context.Context // of the request
	store   blobStore
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
	err := w.source.Driver.Delete(ctx, storage.UploadDir(w.store.name.Name(), w.ID()))
	if storage.IsNotFound(err) {
		return nil
	}
	return err
}

// Commit finishes the upload, whether or not the client waits for it. It replaces an existing blob, which may be
// damaged.
func (w *blobWriter) Commit(ctx context.Context, provisional v1.Descriptor) (blob v1.Descriptor, err error) {
	ctx = context.WithoutCancel(ctx)
	if err := w.source.collector.AdmitBlob(ctx, provisional.Digest); err != nil {
		w.refused = true
		return v1.Descriptor{}, err
	}
	path := uploadPath(w.store.name.Name(), w.ID())
	end := w.source.commits.begin(path, &commit{location: intentOf(ctx).upload, size: w.Size()})
	defer func() { end(blob.Digest) }()
	use := w.source.collector.Rely(provisional.Digest)
	defer func() { use.Done(err == nil) }()
	blob, err = w.BlobWriter.Commit(content.ReplacingBlobs(ctx), provisional)
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
