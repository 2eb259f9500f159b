package collect

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// garbageSet are the digests that a collection may remove, by every name that manifests may have for them.
type garbageSet map[digest.Digest]struct{}

// emptyList is the digest of an empty list.
var emptyList = digest.FromString("")

func (s garbageSet) has(d digest.Digest) bool {
	_, ok := s[d]
	return ok
}

// encode returns a line for each element of a set.
func encode[T ~string](set map[T]struct{}) []byte {
	var b bytes.Buffer
	for _, element := range slices.Sorted(maps.Keys(set)) {
		b.WriteString(string(element) + "\n")
	}
	return b.Bytes()
}

func decode[T ~string](content []byte) map[T]struct{} {
	set := map[T]struct{}{}
	for line := range strings.Lines(string(content)) {
		set[T(strings.TrimSuffix(line, "\n"))] = struct{}{}
	}
	return set
}

// otherCollects reports whether another process has published a list and may be removing garbage.
func (c *leaseClient) otherCollects(r *leaseReading) bool {
	return r.record.Held && c.own.Load() != r.record.ID
}

// readGarbageList returns nil if the list with a digest does not exist: its collection has ended, or another has begun.
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
	return decode[digest.Digest](content), nil
}

// mayRemove reports whether another process's collection may remove one of the digests, or any if the list is unknown.
func (c *leaseClient) mayRemove(r *leaseReading, digests []digest.Digest) bool {
	return c.otherCollects(r) && (r.garbage == nil || slices.ContainsFunc(digests, r.garbage.has))
}
