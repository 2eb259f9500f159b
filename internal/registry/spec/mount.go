package spec

import (
	"context"
	"errors"
	"net/http"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// A client may begin an upload with the blob's digest and leave it to the registry to find the blob
// (OCI distribution spec 1.1, "Mounting a blob from another repository"): POST
// /v2/NAME/blobs/uploads/?mount=DIGEST. Distribution only looks in the repository that the client
// specifies with from=REPOSITORY. This registry mounts every stored blob, because clients that may push
// to one repository may read all of them.

// beginUpload serves a POST. What a collection would refuse is refused before it is sent.
func (s *Registry) beginUpload(w http.ResponseWriter, r *http.Request) error {
	if d := toMount(r); d != "" {
		if err := s.collector.AdmitBlob(r.Context(), d); err != nil {
			return err
		}
	}
	s.distribute(w, r)
	return nil
}

// toMount returns the digest of the blob that a request asks to mount, or "". An invalid one is left to distribution.
func toMount(r *http.Request) digest.Digest {
	d, _ := digest.Parse(r.URL.Query().Get("mount"))
	return d
}

// Create begins an upload. If the request names a stored blob, Create mounts it, whatever repository it
// came from, and returns a [distribution.ErrBlobMounted].
func (s blobStore) Create(
	ctx context.Context, options ...distribution.BlobCreateOption,
) (distribution.BlobWriter, error) {
	named := toMount(requestOf(ctx))
	stored, size, found := s.source.collector.Stored(ctx, named)
	switch {
	case named != "" && !found:
		// Distribution would mount what the other repository has a link to, even if a collection has removed it.
		options = nil
	case found:
		from, err := reference.WithDigest(s.name, stored)
		if err != nil {
			return nil, err
		}
		options = append(options, mountStored{from, v1.Descriptor{Digest: stored, Size: size}})
	}
	writer, err := s.BlobStore.Create(context.WithoutCancel(ctx), options...)
	var mounted distribution.ErrBlobMounted
	if errors.As(err, &mounted) && named != stored {
		if err := s.source.Link(ctx, storage.LayerPath(s.name.Name(), named), stored); err != nil {
			return nil, err
		}
		mounted.Descriptor.Digest = named
		return nil, mounted
	}
	if err != nil {
		volume.RecordNoSpace(ctx, err)
		return nil, err
	}
	return s.writer(ctx, writer), nil
}

// mountStored makes distribution link a blob without checking the repository that it comes from.
type mountStored struct {
	from reference.Canonical
	blob v1.Descriptor
}

// Apply implements [distribution.BlobCreateOption].
func (m mountStored) Apply(v any) error {
	options, ok := v.(*distribution.CreateOptions)
	if !ok {
		return distribution.ErrUnsupported
	}
	options.Mount.ShouldMount, options.Mount.From, options.Mount.Stat = true, m.from, &m.blob
	return nil
}
