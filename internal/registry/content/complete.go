package content

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Lacking returns a [distribution.ErrManifestBlobUnknown] for something that a manifest needs and that is missing or
// damaged, or nil. Other errors are about the manifest's descriptors, or the storage's.
func (s *Store) Lacking(ctx context.Context, repository string, m Described) error {
	seen := map[digest.Digest]bool{}
	unseen := func(all []v1.Descriptor) (list []v1.Descriptor) {
		for _, desc := range all {
			if !seen[desc.Digest] {
				seen[desc.Digest] = true
				list = append(list, desc)
			}
		}
		return list
	}
	// What the manifests of an index say is in memory for a few of them.
	var queue []v1.Descriptor
	for found := []Described{m}; len(found) > 0; {
		for _, m := range found {
			blobs := unseen(m.Blobs())
			err := storage.InParallel(ctx, blobs, storage.Concurrency, func(ctx context.Context, blob v1.Descriptor) error {
				return s.needsBlob(ctx, repository, blob)
			})
			if err != nil {
				return err
			}
			for _, child := range unseen(m.Manifests) {
				queue = append(queue, v1.Descriptor{MediaType: child.MediaType, Digest: child.Digest, Size: child.Size})
			}
		}
		var err error
		batch := queue[:min(len(queue), storage.ManifestConcurrency)]
		queue = queue[len(batch):]
		found, err = storage.InOrder(ctx, batch, storage.ManifestConcurrency,
			func(ctx context.Context, child v1.Descriptor) (Described, error) {
				return s.needsChild(ctx, repository, child)
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// LackingChild returns an error as Lacking does for a manifest of an index that does not exist. It reads no content.
func (s *Store) LackingChild(ctx context.Context, repository string, m Described) error {
	return storage.InParallel(ctx, m.Manifests, storage.Concurrency, func(ctx context.Context, child v1.Descriptor) error {
		for _, link := range []string{storage.RevisionPath(repository, child.Digest),
			storage.LayerPath(repository, child.Digest)} {
			if found, err := s.Exists(ctx, link); found || err != nil {
				return err
			}
		}
		if oci.IsNonDistributable(child.MediaType) {
			return nil
		}
		return distribution.ErrManifestBlobUnknown{Digest: child.Digest}
	})
}

// needsChild returns what the manifest of an index says, or an error as lacking does.
func (s *Store) needsChild(ctx context.Context, repository string, child v1.Descriptor) (Described, error) {
	_, err := s.ReadLink(ctx, storage.RevisionPath(repository, child.Digest))
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return Described{}, s.needsBlob(ctx, repository, child) // an index may refer to blobs, too
	}
	var content []byte
	if err == nil {
		content, err = s.Manifest(ctx, repository, child.Digest)
	}
	if IsMissing(err) {
		return Described{}, distribution.ErrManifestBlobUnknown{Digest: child.Digest}
	}
	if err != nil {
		return Described{}, err
	}
	m, err := Describe(content)
	if err != nil {
		return Described{}, nil //nolint:nilerr // not a manifest as this registry understands it
	}
	return m, nil
}

// needsBlob returns an error as lacking does.
func (s *Store) needsBlob(ctx context.Context, repository string, blob v1.Descriptor) error {
	if oci.IsNonDistributable(blob.MediaType) {
		return nil
	}
	var size int64
	recorded, intact := false, false
	stored, err := s.ReadLink(ctx, storage.LayerPath(repository, blob.Digest))
	if err == nil {
		size, recorded, err = s.Size(ctx, stored)
	}
	if err == nil && size != blob.Size && !recorded {
		intact, err = s.Examine(ctx, stored, func(r io.Reader) io.Reader { return r })
		if err == nil && !intact {
			err = distribution.ErrBlobUnknown
		}
	}
	switch {
	case IsMissing(err):
		return distribution.ErrManifestBlobUnknown{Digest: blob.Digest}
	case err == nil && size != blob.Size:
		return errcode.ErrorCodeManifestInvalid.WithMessage(fmt.Sprintf("%s has %d bytes, and the manifest says %d",
			blob.Digest, size, blob.Size))
	}
	return err
}
