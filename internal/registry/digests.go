package registry

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Content is stored once, under its SHA-256 digest, as distribution does. Every other digest is a link to
// that one. In a repository, distribution's links serve both: _layers/sha512/HEX/link contains the SHA-256
// digest. Distribution has no link outside of repositories, and mounts need one: see storage.DigestLinkPath.

// canonical returns the SHA-256 digest of what d names in the whole registry, or a
// [distribution.ErrBlobUnknown].
func (s *contentStore) canonical(ctx context.Context, d digest.Digest) (digest.Digest, error) {
	if d.Algorithm() == digest.Canonical {
		return d, nil
	}
	return s.readLink(ctx, storage.DigestLinkPath(d))
}

// readLink returns the digest in a link, or a [distribution.ErrBlobUnknown].
func (s *contentStore) readLink(ctx context.Context, path string) (digest.Digest, error) {
	return storage.ReadLink(ctx, s.driver, path)
}

// link writes a link.
func (s *contentStore) link(ctx context.Context, path string, to digest.Digest) error {
	return s.driver.PutContent(ctx, path, []byte(to))
}

// exists reports whether a path exists.
func (s *contentStore) exists(ctx context.Context, path string) (bool, error) {
	_, err := s.driver.Stat(ctx, path)
	if storage.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
