package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// remoteContent is a repository's content.
type remoteContent struct {
	repo  *remote.Repository
	store *blobstore.Store
	keep  bool   // see [ResolveOptions.Keep]
	parts bool   // see [ResolveOptions.Sparse]
	made  *Store // indexes of selected platforms
}

// Fetch returns verified content of limited size: manifests and configurations. It keeps them in the store, because
// they are read several times.
func (c *remoteContent) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if b, err := c.made.Blob(ctx, desc, nil); err == nil {
		return b.Open()
	}
	f, err := c.fetch(ctx, desc, nil)
	if errors.Is(err, blobstore.ErrNoRoom) {
		rc, err := c.open(ctx, desc, 0)
		if err != nil {
			return nil, err
		}
		return blob.Verify(rc, desc), nil
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Blob returns content that is downloaded while it is read, unless the store has it.
func (c *remoteContent) Blob(ctx context.Context, desc ocispec.Descriptor,
	received func(offset, n int64)) (blob.Blob, error) {
	if b, err := c.made.Blob(ctx, desc, nil); err == nil {
		return b, nil
	}
	return blob.Blob{Size: desc.Size, Open: func() (io.ReadCloser, error) {
		f, err := c.store.Open(ctx, desc)
		if errors.Is(err, fs.ErrNotExist) {
			return &remoteReader{ctx: ctx, from: c, desc: desc, received: received}, nil
		}
		if err != nil {
			return nil, err
		}
		return f, nil
	}}, nil
}

// kept opens a blob in the store, and downloads it first if necessary. The error is [blobstore.ErrNoRoom] if the store
// does not keep it; always keeps it also without [ResolveOptions.Keep].
func (c *remoteContent) kept(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64),
	always bool) (*os.File, error) {
	if _, err := c.made.Blob(ctx, desc, nil); err == nil || !c.keep && !always {
		return nil, blobstore.ErrNoRoom
	}
	return c.fetch(ctx, desc, received)
}

// keepBlob is kept without opening the blob. moved reports whether it was downloaded.
func (c *remoteContent) keepBlob(ctx context.Context, desc ocispec.Descriptor, t *imageProgress, always bool) (
	moved bool, err error) {
	received := t.received(desc)
	f, err := c.kept(ctx, desc, func(offset, n int64) {
		moved = true
		received(offset, n)
	}, always)
	if err != nil {
		return moved, err
	}
	return moved, f.Close()
}

func (c *remoteContent) fetch(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (*os.File,
	error) {
	f, _, err := c.store.Fetch(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		rc, err := c.open(ctx, desc, offset)
		if err != nil {
			return nil, err
		}
		return countReads(rc, offset, received), nil
	})
	return f, err
}

// open opens content in the repository.
func (c *remoteContent) open(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	if !oci.IsManifestOrIndex(desc.MediaType) {
		return c.repo.Blob(ctx, desc, offset)
	}
	_, raw, err := c.repo.Manifest(ctx, desc.Digest.String())
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(raw[min(offset, int64(len(raw))):])), nil
}

// remoteReader reads content of a repository. It sends no request before the first read after a seek.
type remoteReader struct {
	ctx      context.Context
	from     *remoteContent
	desc     ocispec.Descriptor
	received func(offset, n int64)
	pos      int64
	body     io.ReadCloser
}

// Read implements [io.Reader].
func (r *remoteReader) Read(p []byte) (int, error) {
	if r.body == nil {
		body, err := r.from.open(r.ctx, r.desc, r.pos)
		if err != nil {
			return 0, err
		}
		r.body = countReads(body, r.pos, r.received)
	}
	n, err := r.body.Read(p)
	r.pos += int64(n)
	return n, err
}

// Seek implements [io.Seeker].
func (r *remoteReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.desc.Size
	}
	if offset < 0 || offset > r.desc.Size {
		return r.pos, fs.ErrInvalid
	}
	if offset != r.pos {
		r.pos = offset
		return offset, r.Close()
	}
	return offset, nil
}

// Close implements [io.Closer].
func (r *remoteReader) Close() error {
	body := r.body
	r.body = nil
	if body == nil {
		return nil
	}
	return body.Close()
}
