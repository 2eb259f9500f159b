package spec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// condition is that of a deletion: the manifest must not have changed since a time.
type condition struct {
	since time.Time
	// changed is why the manifest was not deleted.
	changed error
}

func isConditional(r *http.Request, to request.Target) bool {
	return r.Header.Get("If-Unmodified-Since") != "" && digest.Digest(to.Manifest).Validate() == nil
}

// deleteUnmodified lets clients delete a manifest by digest with the header If-Unmodified-Since, so that a client
// that has read the catalog does not delete what was pushed meanwhile. Unlike in HTTP, the response is 412 also if an
// index in the repository refers to the manifest, and an invalid date is refused: ignoring it could delete too much.
// A manifest that was pushed in that very second counts as pushed later.
func (s *Registry) deleteUnmodified(w http.ResponseWriter, r *http.Request, in *intent) {
	since, err := http.ParseTime(r.Header.Get("If-Unmodified-Since"))
	if err != nil {
		invalid := errcode.ErrorCodeUnsupported.WithMessage(fmt.Sprintf("If-Unmodified-Since: %v", err))
		request.WriteErrorAs(w, http.StatusBadRequest, invalid)
		return
	}
	in.condition = &condition{since: since}
	response := request.Buffer(w)
	s.distribute(response, r)
	if changed := in.condition.changed; changed != nil {
		request.ClearHeader(w.Header())
		request.WriteErrorAs(w, http.StatusPreconditionFailed, changed)
		return
	}
	response.Send(w)
}

// Delete removes a manifest, with all its digests and tags.
func (m manifestStore) Delete(ctx context.Context, d digest.Digest) error {
	on := intentOf(ctx).condition
	if on == nil {
		on = &condition{}
	}
	found := false
	err := m.source.deleteManifests(ctx, m.repository.Named().Name(), []digest.Digest{d}, on.since,
		func(_ digest.Digest, existed bool, kept error) { found, on.changed = existed, kept })
	switch {
	case err != nil:
		return err
	case on.changed != nil:
		return on.changed
	case !found:
		return distribution.ErrBlobUnknown
	}
	return nil
}

// deletionBatch is how many manifests are deleted with one intent, which has 72 bytes for each.
const deletionBatch = 10_000

// deleteManifests deletes manifests of a repository, with all their digests and tags; with a time, unless they were
// pushed in that second or later, or an index refers to them that is not deleted. It calls report for each, one at a
// time.
func (s *Registry) deleteManifests(ctx context.Context, repository string, digests []digest.Digest, since time.Time,
	report func(d digest.Digest, existed bool, kept error)) error {
	for batch := range slices.Chunk(digests, deletionBatch) {
		b := &manifestDeletion{Registry: s, repository: repository, since: since}
		if err := b.delete(ctx, batch, report); err != nil {
			return err
		}
	}
	return nil
}

// manifestDeletion deletes manifests of a repository.
type manifestDeletion struct {
	*Registry
	repository string
	since      time.Time
	intent     *collect.Intent
}

func (b *manifestDeletion) delete(ctx context.Context, digests []digest.Digest,
	report func(d digest.Digest, existed bool, kept error)) error {
	names, err := b.names(ctx, digests)
	if err != nil {
		return err
	}
	all := slices.Concat(names...)
	if b.intent, err = b.collector.Intend(ctx, b.repository, all, !b.since.IsZero()); err != nil {
		return err
	}
	defer b.intent.End()
	var mu sync.Mutex
	// Indexes come first: what they contain is deleted once nothing refers to it.
	for pending := names; len(pending) > 0; {
		var referred [][]digest.Digest
		var reasons []error
		err := storage.InParallel(ctx, pending, storage.Concurrency, func(ctx context.Context, of []digest.Digest) error {
			kept, index, err := b.check(ctx, of)
			existed := false
			if err == nil && kept == nil && index == "" {
				existed, err = b.remove(ctx, of)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				return fmt.Errorf("deleting %s@%s: %w", b.repository, of[0], err)
			case index != "":
				referred = append(referred, of)
				reasons = append(reasons, request.Denied("index %s@%s refers to %s", b.repository, index, of[0]))
			default:
				report(of[0], existed, kept)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(referred) == len(pending) {
			for i, of := range referred {
				report(of[0], true, reasons[i])
			}
			break
		}
		pending = referred
	}
	return b.untag(ctx, all)
}

// names returns all digests by which each manifest is stored, the given one first.
func (b *manifestDeletion) names(ctx context.Context, digests []digest.Digest) ([][]digest.Digest, error) {
	algorithms, err := storage.List(ctx, b.Driver, storage.RevisionsDir(b.repository))
	if err != nil {
		return nil, err
	}
	several := slices.ContainsFunc(algorithms, func(dir string) bool { return path.Base(dir) != string(digest.Canonical) })
	return storage.InOrder(ctx, digests, storage.ManifestConcurrency,
		func(ctx context.Context, d digest.Digest) ([]digest.Digest, error) {
			names := []digest.Digest{d}
			if !several {
				return names, nil
			}
			data, err := b.read(ctx, d)
			if data == nil || err != nil {
				return names, err
			}
			for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
				if other := algorithm.FromBytes(data); other != d {
					names = append(names, other)
				}
			}
			return names, nil
		})
}

// read returns the content of a manifest; nil if it is missing or its link is damaged.
func (b *manifestDeletion) read(ctx context.Context, d digest.Digest) ([]byte, error) {
	data, err := b.Unverified(ctx, b.repository, d)
	if errors.Is(err, content.ErrUnknownManifest) || content.IsDamaged(err) {
		return nil, nil
	}
	return data, err
}

// check returns why a manifest must be kept, or an index that refers to it.
func (b *manifestDeletion) check(ctx context.Context, names []digest.Digest) (
	kept error, index digest.Digest, err error,
) {
	if b.since.IsZero() {
		return nil, "", nil
	}
	exists := false
	for _, d := range names {
		link, err := b.Driver.Stat(ctx, storage.RevisionPath(b.repository, d))
		if storage.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		exists = true
		pushed := link.ModTime().UTC()
		if !pushed.Truncate(time.Second).Before(b.since.Truncate(time.Second)) {
			return request.Denied("%s@%s was pushed again at %s", b.repository, d, pushed.Format(time.RFC3339)), "", nil
		}
	}
	if !exists {
		return nil, "", nil
	}
	for _, d := range names {
		if index, err = b.IndexOf(ctx, b.repository, d); index != "" || err != nil {
			return nil, index, err
		}
	}
	return nil, "", nil
}

// remove removes a manifest, and then its back links.
func (b *manifestDeletion) remove(ctx context.Context, names []digest.Digest) (existed bool, err error) {
	data, err := b.read(ctx, names[0])
	if err != nil {
		return false, err
	}
	var links []string
	for _, d := range names {
		found, err := b.Exists(ctx, storage.RevisionPath(b.repository, d))
		if err != nil {
			return false, err
		}
		if found {
			existed = true
			if err := b.intent.Delete(ctx, path.Dir(storage.RevisionPath(b.repository, d))); err != nil {
				return false, err
			}
		}
		links = append(links, content.BackLinkDirs(b.repository, d, data)...)
	}
	return existed, storage.InParallel(ctx, links, storage.ManifestConcurrency, b.intent.Delete)
}

// untag removes the tags of deleted manifests, also those that an interrupted deletion has left.
func (b *manifestDeletion) untag(ctx context.Context, deleted []digest.Digest) error {
	gone := map[digest.Digest]bool{}
	for _, d := range deleted {
		gone[d] = true
	}
	tags, err := storage.List(ctx, b.Driver, storage.TagsDir(b.repository))
	if err != nil {
		return err
	}
	return storage.InParallel(ctx, tags, storage.Concurrency, func(ctx context.Context, dir string) error {
		tag := path.Base(dir)
		d := b.Tagged(ctx, b.repository, tag)
		if !gone[d] {
			return nil
		}
		if found, err := b.Exists(ctx, storage.RevisionPath(b.repository, d)); found || err != nil {
			return err // it was kept
		}
		defer b.tags.lock(b.repository, tag)()
		if b.Tagged(ctx, b.repository, tag) != d {
			return nil // a push has moved it
		}
		return b.intent.Delete(ctx, dir)
	})
}
