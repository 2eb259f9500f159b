package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
)

// condemnedSet are the digests that a collection may remove, by every name that manifests may have for them. Its
// encoding is a line for each.
type condemnedSet map[digest.Digest]struct{}

// emptyList is the digest of an empty list.
var emptyList = digest.FromString("")

func (s condemnedSet) has(d digest.Digest) bool {
	_, ok := s[d]
	return ok
}

func (s condemnedSet) encode() []byte {
	var b strings.Builder
	for _, d := range slices.Sorted(maps.Keys(s)) {
		b.WriteString(string(d) + "\n")
	}
	return []byte(b.String())
}

func decodeCondemned(content []byte) condemnedSet {
	s := condemnedSet{}
	for line := range strings.Lines(string(content)) {
		s[digest.Digest(strings.TrimSuffix(line, "\n"))] = struct{}{}
	}
	return s
}

// foreign reports whether another process has published a list and may be sweeping.
func (c *leaseClient) foreign(r *leaseReading) bool {
	return r.record.Held && c.own.Load() != r.record.ID
}

// readCondemned reads the list with a digest. It returns nil if that list does not exist: the collection has just
// ended, or another collector has begun at the same time.
func (c *leaseClient) readCondemned(ctx context.Context, want digest.Digest) (condemnedSet, error) {
	content, err := c.driver.GetContent(ctx, condemnedPath)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list of garbage: %w", err)
	}
	if digest.FromBytes(content) != want {
		return nil, nil
	}
	return decodeCondemned(content), nil
}

// threatens reports whether another process's collection may remove one of the digests, or any if the list is
// unknown.
func (c *leaseClient) threatens(r *leaseReading, digests []digest.Digest) bool {
	return c.foreign(r) && (r.condemned == nil || slices.ContainsFunc(digests, r.condemned.has))
}

// condemned reports whether another process's collection may remove a blob, as far as known. It does not read the
// storage.
func (c *leaseClient) condemned(d digest.Digest) bool {
	if c == nil {
		return false
	}
	r := c.last.Load()
	return c.held(r) && c.threatens(r, []digest.Digest{d})
}

// admitBlob waits while another process's collection may remove a blob that is about to be stored, like admit. A
// digest other than SHA-256 says nothing about what it is stored as, so that it waits for every list.
func (c *leaseClient) admitBlob(ctx context.Context, d digest.Digest) error {
	if c == nil {
		return nil
	}
	_, err := c.wait(ctx, func(r *leaseReading) bool {
		return c.threatens(r, []digest.Digest{d}) || c.foreign(r) && d.Algorithm() != digest.Canonical
	})
	return err
}
