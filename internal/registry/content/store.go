// Package content is what distribution stores, with links that it lacks. It tells what is missing or damaged.
//
// It serves no requests, and removes nothing but the back links to deleted manifests.
package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Store is what distribution stores, with the links that distribution lacks. It is safe for concurrent use.
//
// Content is stored once, under its SHA-256 digest, as distribution does. Every other digest is a link to
// that one. In a repository, distribution's links serve both: _layers/sha512/HEX/link contains the SHA-256
// digest. Distribution has no link outside of repositories, and mounts need one: see storage.DigestLinkPath.
type Store struct {
	Driver storagedriver.StorageDriver // distribution's
	Log    *slog.Logger

	Rebuilt atomic.Bool // all manifests have back links
	// completing is locked while the annotations of a manifest are read for a list of referrers.
	completing sync.Mutex
}

// Tagged returns the digest of a tag's manifest, or "" if the tag does not exist, or is damaged: a push replaces it.
func (s *Store) Tagged(ctx context.Context, repository, tag string) (digest.Digest, error) {
	d, err := s.ReadLink(ctx, storage.TagPath(repository, tag))
	if IsMissing(err) {
		return "", nil
	}
	return d, err
}

// Manifest returns the content of a repository's manifest, or an error if it is damaged.
func (s *Store) Manifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	content, err := s.Unverified(ctx, repository, d)
	if err == nil && d.Algorithm().FromBytes(content) != d {
		return nil, fmt.Errorf("manifest %s %w", d, errDamaged)
	}
	return content, err
}

// Unverified returns the content of a repository's manifest, which may be damaged, or a [distribution.ErrBlobUnknown].
func (s *Store) Unverified(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	stored, err := s.ReadLink(ctx, storage.RevisionPath(repository, d))
	if err != nil {
		return nil, err
	}
	return s.readFile(ctx, storage.BlobPath(stored), oci.MaxManifestSize)
}

// readFile returns the content of a file, or a [distribution.ErrBlobUnknown] if it is missing or longer than limit.
func (s *Store) readFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	reader, err := s.open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	content, err := io.ReadAll(io.LimitReader(reader, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = distribution.ErrBlobUnknown
	}
	return content, err
}

func (s *Store) open(ctx context.Context, path string) (io.ReadCloser, error) {
	reader, err := s.Driver.Reader(ctx, path, 0)
	return reader, storage.AsUnknown(err)
}

// Canonical returns the SHA-256 digest of what d names in the whole registry, or a [distribution.ErrBlobUnknown].
func (s *Store) Canonical(ctx context.Context, d digest.Digest) (digest.Digest, error) {
	if d.Algorithm() == digest.Canonical {
		return d, nil
	}
	return s.ReadLink(ctx, storage.DigestLinkPath(d))
}

// ReadLink returns the digest in a link, or a [distribution.ErrBlobUnknown].
func (s *Store) ReadLink(ctx context.Context, path string) (digest.Digest, error) {
	return storage.ReadLink(ctx, s.Driver, path)
}

// Link writes a link.
func (s *Store) Link(ctx context.Context, path string, to digest.Digest) error {
	return s.Driver.PutContent(ctx, path, []byte(to))
}

// Write writes a manifest with its links, in the place of what is there. Digests are its own, SHA-256 first.
func (s *Store) Write(
	ctx context.Context, repository string, content []byte, digests []digest.Digest, links BackLinks,
) error {
	// Back links come first, so that no interrupted push leaves a manifest without them: clients would find it.
	if err := s.AddBackLinks(ctx, links); err != nil {
		return err
	}
	if err := s.Driver.PutContent(ctx, storage.BlobPath(digests[0]), content); err != nil {
		return err
	}
	for _, d := range digests {
		if err := s.Link(ctx, storage.RevisionPath(repository, d), digests[0]); err != nil {
			return err
		}
	}
	return nil
}

// Exists reports whether a path exists.
func (s *Store) Exists(ctx context.Context, path string) (bool, error) {
	_, err := s.Driver.Stat(ctx, path)
	if storage.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// errDamaged means that a manifest has another digest.
var errDamaged = errors.New("is damaged: push it again")

// IsDamaged reports whether a lookup failed because a manifest or a link is damaged. A push replaces both.
func IsDamaged(err error) bool {
	return errors.Is(err, errDamaged) || errors.Is(err, digest.ErrDigestInvalidFormat) ||
		errors.Is(err, digest.ErrDigestInvalidLength) || errors.Is(err, digest.ErrDigestUnsupported)
}

// IsMissing reports whether a lookup has found nothing that is intact. A push stores it.
func IsMissing(err error) bool { return errors.Is(err, distribution.ErrBlobUnknown) || IsDamaged(err) }

// Provides reports whether clients of a repository can read a blob or a manifest.
func (s *Store) Provides(ctx context.Context, repository string, d digest.Digest) (bool, error) {
	for _, link := range []string{storage.LayerPath(repository, d), storage.RevisionPath(repository, d)} {
		stored, err := s.ReadLink(ctx, link)
		if errors.Is(err, distribution.ErrBlobUnknown) {
			continue
		}
		if err != nil {
			return false, err
		}
		return s.Exists(ctx, storage.BlobPath(stored))
	}
	return false, nil
}
