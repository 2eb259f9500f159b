package collect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// garbageSet are the digests that a collection may remove, by every name that manifests may have for them. Its
// encoding is a line for each.
type garbageSet map[digest.Digest]struct{}

// emptyList is the digest of an empty list.
var emptyList = digest.FromString("")

func (s garbageSet) has(d digest.Digest) bool {
	_, ok := s[d]
	return ok
}

func (s garbageSet) encode() []byte {
	var b strings.Builder
	for _, d := range slices.Sorted(maps.Keys(s)) {
		b.WriteString(string(d) + "\n")
	}
	return []byte(b.String())
}

func decodeGarbage(content []byte) garbageSet {
	s := garbageSet{}
	for line := range strings.Lines(string(content)) {
		s[digest.Digest(strings.TrimSuffix(line, "\n"))] = struct{}{}
	}
	return s
}

// otherCollects reports whether another process has published a list and may be removing garbage.
func (c *leaseClient) otherCollects(r *leaseReading) bool {
	return r.record.Held && c.own.Load() != r.record.ID
}

// readGarbageList reads the list with a digest. It returns nil if that list does not exist: the collection has just
// ended, or another collector has begun at the same time.
func (c *leaseClient) readGarbageList(ctx context.Context, want digest.Digest) (garbageSet, error) {
	content, err := c.driver.GetContent(ctx, garbageListPath)
	if storage.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list of garbage: %w", err)
	}
	if digest.FromBytes(content) != want {
		return nil, nil
	}
	return decodeGarbage(content), nil
}

// mayRemove reports whether another process's collection may remove one of the digests, or any if the list is
// unknown.
func (c *leaseClient) mayRemove(r *leaseReading, digests []digest.Digest) bool {
	return c.otherCollects(r) && (r.garbage == nil || slices.ContainsFunc(digests, r.garbage.has))
}
