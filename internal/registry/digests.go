package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
)

// Content is stored once, under its SHA-256 digest, as distribution does. Every other digest is a link to
// that one. In a repository, distribution's links serve both: _layers/sha512/HEX/link contains the SHA-256
// digest. Distribution has no link outside of repositories, and mounts need one: see digestLinkPath.

// canonical returns the SHA-256 digest of what d names in the whole registry, or a
// [distribution.ErrBlobUnknown].
func (s *contentStore) canonical(ctx context.Context, d digest.Digest) (digest.Digest, error) {
	if d.Algorithm() == digest.Canonical {
		return d, nil
	}
	return s.readLink(ctx, digestLinkPath(d))
}

// readLink returns the digest in a link, or a [distribution.ErrBlobUnknown].
func (s *contentStore) readLink(ctx context.Context, path string) (digest.Digest, error) {
	return readLink(ctx, s.driver, path)
}

func readLink(ctx context.Context, driver storagedriver.StorageDriver, path string) (digest.Digest, error) {
	content, err := driver.GetContent(ctx, path)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return "", distribution.ErrBlobUnknown
	}
	if err != nil {
		return "", err
	}
	d, err := digest.Parse(strings.TrimSpace(string(content)))
	if err != nil {
		return "", fmt.Errorf("link %s contains %q: %w: push its content again, or delete the link", path, content, err)
	}
	return d, nil
}

// link writes a link.
func (s *contentStore) link(ctx context.Context, path string, to digest.Digest) error {
	return s.driver.PutContent(ctx, path, []byte(to))
}

// exists reports whether a path exists.
func (s *contentStore) exists(ctx context.Context, path string) (bool, error) {
	_, err := s.driver.Stat(ctx, path)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return false, nil
	}
	return err == nil, err
}
