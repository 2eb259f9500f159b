package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// serveBlob serves requests for a blob. Distribution would allocate a buffer of 4 MiB for each: for a small blob that
// costs more than the rest of the request, and a hundred concurrent pulls need 400 MiB.
func (s *Registry) serveBlob(w http.ResponseWriter, r *http.Request, to request.Target) error {
	d, err := digest.Parse(to.Blob)
	switch {
	case err != nil:
		return errcode.ErrorCodeDigestInvalid.WithDetail(to.Blob)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return s.getBlob(w, r, to.Repository, d)
	case r.Method == http.MethodDelete && s.readOnly:
		return errReadOnly
	case r.Method == http.MethodDelete:
		if err := s.Driver.Delete(r.Context(), storage.LayerPath(to.Repository, d)); err != nil {
			return storage.AsUnknown(err)
		}
		s.audit(r.Context(), request.ActionDelete, to.Repository, to.Blob, d)
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return request.NotAllowed(w, "blobs", http.MethodGet, http.MethodHead, http.MethodDelete)
}

// findBlob returns a repository's blob that is intact, as far as its size tells, or a [distribution.ErrBlobUnknown].
func (s *Registry) findBlob(ctx context.Context, repository string, d digest.Digest, relies bool) (
	stored digest.Digest, size int64, err error,
) {
	stored, err = s.ReadLink(ctx, storage.LayerPath(repository, d))
	if content.IsDamaged(err) {
		err = distribution.ErrBlobUnknown
	}
	if err != nil {
		return "", 0, err
	}
	if relies {
		use := s.collector.Rely(stored)
		defer func() { use.Done(err == nil) }()
	}
	size, _, err = s.Size(ctx, stored)
	return stored, size, err
}

// getBlob responds with a blob, or with the range that r requests. A push that skips existing blobs asks with HEAD.
func (s *Registry) getBlob(w http.ResponseWriter, r *http.Request, repository string, d digest.Digest) error {
	stored, size, err := s.findBlob(r.Context(), repository, d, r.Method == http.MethodHead)
	if err != nil {
		return err
	}
	content := &blobContent{ctx: r.Context(), driver: s.Driver, path: storage.BlobPath(stored), size: size}
	defer content.close()
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream") // only manifests know the media type
	header.Set("Docker-Content-Digest", d.String())
	header.Set("ETag", fmt.Sprintf("%q", d))
	header.Set("Cache-Control", "max-age=31536000") // a year: content under a digest never changes
	http.ServeContent(w, r, "", time.Time{}, content)
	if content.failure != nil && r.Context().Err() == nil {
		// Returning the error would write it into the blob.
		s.Log.Error("reading blob failed", "digest", d.String(), "error", content.failure)
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
	if errors.Is(err, io.EOF) && c.offset < c.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
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
