package content

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
)

// Repository reads the content of one repository.
type Repository struct {
	source *Store
	name   string
}

// Repository returns a repository, which may be empty.
func (s *Store) Repository(name string) Repository { return Repository{s, name} }

// Read returns a blob or a manifest. The error is [fs.ErrNotExist] if it does not exist, or if it is larger than limit.
func (r Repository) Read(ctx context.Context, d digest.Digest, limit int64) ([]byte, error) {
	stored, err := r.source.Canonical(ctx, d)
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return r.source.ReadBlob(ctx, stored, limit)
}

// Tagged returns the digest of a tag, or "" if the tag does not exist.
func (r Repository) Tagged(ctx context.Context, tag string) (digest.Digest, error) {
	d, err := r.source.Resolve(ctx, r.name, tag)
	if errors.Is(err, ErrUnknownManifest) {
		return "", nil
	}
	return d, err
}

// Referrers returns the referrers of a subject that have one of the artifact types, at most limit.
func (r Repository) Referrers(
	ctx context.Context, subject digest.Digest, types []string, limit int,
) (found []digest.Digest, err error) {
	left := MaxReferrers
	err = r.source.eachReferring(ctx, r.name, referrerLinks, subject, "", func(link backReference) (more bool, err error) {
		if slices.Contains(types, link.ArtifactType) && len(found) < limit {
			found = append(found, link.Digest)
		}
		left--
		return left > 0 && len(found) < limit, nil
	})
	return found, err
}
