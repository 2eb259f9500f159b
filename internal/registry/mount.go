package registry

import (
	"context"
	"net/http"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A client that begins an upload may name the blob and leave it to the registry
// to find it (OCI distribution spec 1.1, "Mounting a blob from another
// repository"): POST /v2/NAME/blobs/uploads/?mount=DIGEST. Distribution looks only
// where the client says, with from=REPOSITORY. Here every blob whose data is
// stored is mounted, because whoever may push to one repository may read all of
// them.

type mountKey struct{}

// withMounts tells next's blob stores which blob the client would like to have
// mounted. What is no digest, next answers as it does.
func withMounts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if d, err := digest.Parse(r.URL.Query().Get("mount")); err == nil {
				r = r.WithContext(context.WithValue(r.Context(), mountKey{}, d))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Create begins an upload, or mounts the blob that the request names and returns
// a [distribution.ErrBlobMounted], wherever the blob came from. Without its data it
// does what distribution does.
func (s blobStore) Create(ctx context.Context, options ...distribution.BlobCreateOption) (distribution.BlobWriter, error) {
	if d, ok := ctx.Value(mountKey{}).(digest.Digest); ok {
		s.source.use.note(d)
		if size, ok := s.source.stored(ctx, d); ok {
			named, err := reference.WithDigest(s.name, d)
			if err != nil {
				return nil, err
			}
			options = append(options, mountStored{named, v1.Descriptor{Digest: d, Size: size}})
		}
	}
	writer, err := s.BlobStore.Create(ctx, options...)
	if err != nil {
		return nil, err
	}
	return blobWriter{writer, s.source}, nil
}

// mountStored makes distribution link a blob without a look at the repository
// that it is from.
type mountStored struct {
	named reference.Canonical
	blob  v1.Descriptor
}

// Apply implements [distribution.BlobCreateOption].
func (m mountStored) Apply(v any) error {
	options, ok := v.(*distribution.CreateOptions)
	if !ok {
		return distribution.ErrUnsupported
	}
	options.Mount.ShouldMount = true
	if options.Mount.From == nil { // notifications name it
		options.Mount.From = m.named
	}
	options.Mount.Stat = &m.blob
	return nil
}

// stored returns the size of a blob whose data is there. It asks the driver: a
// cache may still know what a garbage collection has removed. An empty file is the
// blob only where the blob is empty: it is what a crash can leave of another. A
// storage that fails holds nothing: the upload will say what is wrong with it.
func (s *blobSource) stored(ctx context.Context, d digest.Digest) (size int64, ok bool) {
	info, err := s.driver.Stat(ctx, blobPath(d))
	if err != nil || info.IsDir() || info.Size() == 0 && d != d.Algorithm().FromBytes(nil) {
		return 0, false
	}
	return info.Size(), true
}
