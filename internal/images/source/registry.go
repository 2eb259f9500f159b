package source

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// repository is the content of a repository in a registry.
type repository struct {
	repo   *remote.Repository
	store  *blobstore.Store // or nil
	sparse bool             // see [ResolveOptions.Sparse]
	// Indexes of selected platforms, and the manifests and configurations that the store does not keep: they are read
	// several times.
	made graph.Store
}

// Location returns the registry's host and the repository.
func (r *repository) Location() (host, name string) { return r.repo.Host(), r.repo.Name() }

// Sparse reports whether indexes may lack manifests.
func (r *repository) Sparse() bool { return r.sparse }

// Fetch returns verified content of limited size: manifests and configurations.
func (r *repository) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if b, ok := r.made.Find(desc.Digest); ok {
		return b.Open()
	}
	if r.store != nil {
		f, _, err := r.download(ctx, desc, nil)
		if !errors.Is(err, blobstore.ErrNoRoom) {
			return f, err
		}
	}
	rc, err := r.open(ctx, desc, nil)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	raw, err := io.ReadAll(blob.Verify(rc, desc))
	if err != nil {
		return nil, err
	}
	b := blob.FromBytes(raw)
	r.made.Put(desc.Digest, b)
	return b.Open()
}

// Blob returns content that is downloaded while it is read, unless the store has it.
func (r *repository) Blob(ctx context.Context, desc ocispec.Descriptor,
	received func(offset, n int64)) (blob.Blob, error) {
	if b, err := r.made.Blob(ctx, desc, nil); !errors.Is(err, errdef.ErrNotFound) {
		return b, err
	}
	return blob.Blob{Size: desc.Size, Open: func() (io.ReadCloser, error) {
		if r.store != nil {
			f, err := r.store.Open(ctx, desc)
			if !errors.Is(err, fs.ErrNotExist) {
				return f, err
			}
		}
		return r.open(ctx, desc, received)
	}}, nil
}

// Keep downloads content to the store, unless it is there, and returns the store. The error is [blobstore.ErrNoRoom]
// without a store, and if the store is full.
func (r *repository) Keep(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (
	store *blobstore.Store, moved bool, err error) {
	if _, made := r.made.Find(desc.Digest); made || r.store == nil {
		return nil, false, blobstore.ErrNoRoom
	}
	f, fetched, err := r.download(ctx, desc, received)
	if err != nil {
		return nil, false, err
	}
	return r.store, fetched > 0, f.Close()
}

// download opens content in the store, and downloads it first if necessary.
func (r *repository) download(ctx context.Context, desc ocispec.Descriptor,
	received func(offset, n int64)) (f *os.File, fetched int64, err error) {
	return r.store.Fetch(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
		rc, err := r.open(ctx, desc, received)
		if err == nil {
			_, err = rc.Seek(offset, io.SeekStart)
		}
		return rc, err
	})
}

func (r *repository) open(ctx context.Context, desc ocispec.Descriptor, received func(offset, n int64)) (
	io.ReadSeekCloser, error) {
	if !oci.IsManifestOrIndex(desc.MediaType) {
		return r.repo.Blob(ctx, desc, received), nil
	}
	_, raw, err := r.repo.Manifest(ctx, desc.Digest.String())
	if err != nil {
		return nil, err
	}
	if received != nil {
		received(0, int64(len(raw)))
	}
	rc, err := blob.FromBytes(raw).Open()
	return rc.(io.ReadSeekCloser), err
}
