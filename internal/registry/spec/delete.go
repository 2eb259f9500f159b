package spec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/registry/collect"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// deleteManifest removes a manifest, with all its digests and tags.
//
// With the header If-Unmodified-Since, a client that has read the catalog does not delete what was pushed meanwhile.
// Unlike in HTTP, the response is 412 also if an index in the repository refers to the manifest, and an invalid date is
// refused: ignoring it could delete too much. A manifest that was pushed in that very second counts as pushed later.
func (s *Registry) deleteManifest(w http.ResponseWriter, r *http.Request, repository string, d digest.Digest) error {
	var since time.Time
	if text := r.Header.Get("If-Unmodified-Since"); text != "" {
		var err error
		if since, err = http.ParseTime(text); err != nil {
			request.WriteErrorAs(w, http.StatusBadRequest,
				errcode.ErrorCodeUnsupported.WithMessage(fmt.Sprintf("If-Unmodified-Since: %v", err)))
			return nil
		}
	}
	var found bool
	var changed error
	err := s.deleteManifests(r.Context(), map[string][]digest.Digest{repository: {d}}, since,
		func(_ content.RepositoryDigest, existed bool, kept error) { found, changed = existed, kept })
	switch {
	case err != nil:
		return err
	case changed != nil:
		request.WriteErrorAs(w, http.StatusPreconditionFailed, changed)
	case !found:
		return errcode.ErrorCodeManifestUnknown.WithDetail(d)
	default:
		s.audit(r.Context(), request.ActionDelete, repository, d.String(), d)
		w.WriteHeader(http.StatusAccepted)
	}
	return nil
}

// manifestDeletion deletes manifests.
type manifestDeletion struct {
	*Registry
	since  time.Time
	intent *collect.Intent
	report func(m content.RepositoryDigest, existed bool, kept error)
	mu     sync.Mutex // held during report
}

// repositoryDeletion deletes manifests of a repository.
type repositoryDeletion struct {
	*manifestDeletion
	repository string
	several    bool                                                    // digests of a manifest
	manifests  [][]content.RepositoryDigest                            // with all digests of each, the given one first
	stored     content.Inventory                                       // with since: the manifests of the repository,
	pushed     map[content.RepositoryDigest]time.Time                  // when each was pushed,
	indexes    map[content.RepositoryDigest][]content.RepositoryDigest // and what contains it
	removed    map[content.RepositoryDigest]bool
	atOnce     int
}

// deleteManifests deletes manifests, with all their digests and tags; with a time, unless they were pushed in that
// second or later, or an index refers to them that is not deleted. It calls report for each, one at a time.
func (s *Registry) deleteManifests(ctx context.Context, manifests map[string][]digest.Digest, since time.Time,
	report func(m content.RepositoryDigest, existed bool, kept error)) (err error) {
	if !since.IsZero() {
		if err := s.AwaitRebuild(ctx); err != nil {
			return err
		}
	}
	all := &manifestDeletion{Registry: s, since: since, report: report}
	repositories, err := storage.InOrder(ctx, slices.Sorted(maps.Keys(manifests)), storage.ManifestConcurrency,
		func(ctx context.Context, repository string) (*repositoryDeletion, error) {
			r := &repositoryDeletion{manifestDeletion: all, repository: repository, stored: content.Inventory{Driver: s.Driver},
				pushed: map[content.RepositoryDigest]time.Time{}, removed: map[content.RepositoryDigest]bool{},
				atOnce: max(1, storage.Concurrency/len(manifests))}
			return r, r.name(ctx, manifests[repository])
		})
	if err != nil {
		return err
	}
	var intended []content.RepositoryDigest
	for _, r := range repositories {
		intended = append(intended, slices.Concat(r.manifests...)...)
	}
	if all.intent, err = s.collector.Intend(ctx, intended, !since.IsZero()); err != nil {
		return err
	}
	defer all.intent.End()
	return storage.InParallel(ctx, repositories, storage.Concurrency,
		func(ctx context.Context, r *repositoryDeletion) error { return r.delete(ctx) })
}

func (r *repositoryDeletion) delete(ctx context.Context) error {
	// A push that was too early to see the intent may have been the first by a digest of another algorithm.
	if several, err := r.hasSeveralAlgorithms(ctx); err != nil {
		return err
	} else if several && !r.several {
		return request.Unavailable("%s was pushed to by digests of another algorithm meanwhile: delete again", r.repository)
	}
	if !r.since.IsZero() { // S3 tells about a thousand manifests or back links in one request
		if err := r.stored.ReadManifests(ctx, r.repository); err != nil {
			return err
		}
		r.indexes = r.stored.Indexes()
		for _, m := range r.stored.Manifests {
			r.pushed[m.RepositoryDigest] = m.Pushed.UTC()
		}
	}
	// Indexes come first: what they contain is deleted once nothing refers to it.
	for pending, stuck := r.manifests, false; len(pending) > 0; {
		var deletable, referred [][]content.RepositoryDigest
		for _, names := range pending {
			switch kept, byIndex := r.check(names); {
			case byIndex && !stuck:
				referred = append(referred, names)
			case kept != nil:
				r.done(names, true, kept)
			default:
				deletable = append(deletable, names)
			}
		}
		if err := storage.InParallel(ctx, deletable, r.atOnce, r.remove); err != nil {
			return err
		}
		pending, stuck = referred, len(deletable) == 0
	}
	return r.untagAll(ctx)
}

func (r *repositoryDeletion) done(names []content.RepositoryDigest, existed bool, kept error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range names {
		r.removed[m] = kept == nil
	}
	r.report(names[0], existed, kept)
}

// hasSeveralAlgorithms reports whether manifests have digests other than SHA-256.
func (r *repositoryDeletion) hasSeveralAlgorithms(ctx context.Context) (bool, error) {
	dirs, err := storage.List(ctx, r.Driver, storage.RevisionsDir(r.repository))
	return slices.ContainsFunc(dirs, func(dir string) bool { return path.Base(dir) != string(digest.Canonical) }), err
}

// name finds all digests by which each manifest is stored.
func (r *repositoryDeletion) name(ctx context.Context, digests []digest.Digest) (err error) {
	if r.several, err = r.hasSeveralAlgorithms(ctx); err != nil {
		return err
	}
	r.manifests, err = storage.InOrder(ctx, digests, storage.ManifestConcurrency,
		func(ctx context.Context, d digest.Digest) ([]content.RepositoryDigest, error) {
			names := []content.RepositoryDigest{{Repository: r.repository, Digest: d}}
			if !r.several {
				return names, nil
			}
			data, err := r.Unverified(ctx, r.repository, d)
			if content.IsMissing(err) {
				return names, nil
			}
			if err != nil {
				return nil, err
			}
			for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
				if other := algorithm.FromBytes(data); other != d {
					names = append(names, content.RepositoryDigest{Repository: r.repository, Digest: other})
				}
			}
			return names, nil
		})
	return err
}

// check returns why a manifest must be kept, and whether that is an index. Without since, it need not be kept.
func (r *repositoryDeletion) check(names []content.RepositoryDigest) (kept error, byIndex bool) {
	exists := slices.ContainsFunc(names, func(m content.RepositoryDigest) bool { return !r.pushed[m].IsZero() })
	for _, m := range names {
		if pushed, stored := r.pushed[m]; stored && !pushed.Truncate(time.Second).Before(r.since.Truncate(time.Second)) {
			return request.Denied("%s@%s was pushed again at %s", m.Repository, m.Digest, pushed.Format(time.RFC3339)), false
		}
		for _, index := range r.indexes[m] {
			if exists && !r.removed[index] {
				return request.Denied("index %s@%s refers to %s", r.repository, index.Digest, names[0].Digest), true
			}
		}
	}
	return nil, false
}

// remove removes a manifest, and then its back links.
func (r *repositoryDeletion) remove(ctx context.Context, names []content.RepositoryDigest) error {
	existed, dirs := false, []string{}
	for _, m := range names {
		dirs = append(dirs, r.stored.BackLinks[m]...)
		if r.since.IsZero() {
			links, err := r.BackLinksOf(ctx, m.Repository, m.Digest)
			if err != nil {
				return fmt.Errorf("reading %s@%s: %w", m.Repository, m.Digest, err)
			}
			dirs = append(dirs, links.Dirs()...)
		}
		removed, err := r.intent.Delete(ctx, storage.RevisionPath(m.Repository, m.Digest))
		if err != nil {
			return fmt.Errorf("deleting %s@%s: %w", m.Repository, m.Digest, err)
		}
		existed = existed || removed
	}
	err := storage.InParallel(ctx, dirs, storage.ManifestConcurrency, func(ctx context.Context, dir string) error {
		_, err := r.intent.Delete(ctx, dir)
		return err
	})
	if err == nil {
		r.done(names, existed, nil)
	}
	return err
}

// untagAll removes the tags of removed manifests, also those that an interrupted deletion has left. A push may have
// stored such a manifest again: its tag, if it has one, comes after the intent.
func (r *repositoryDeletion) untagAll(ctx context.Context) error {
	tags, err := storage.List(ctx, r.Driver, storage.TagsDir(r.repository))
	if err != nil {
		return err
	}
	return storage.InParallel(ctx, tags, r.atOnce, func(ctx context.Context, dir string) error {
		tag := path.Base(dir)
		d, err := r.Tagged(ctx, r.repository, tag)
		if err != nil || !r.removed[content.RepositoryDigest{Repository: r.repository, Digest: d}] {
			return err
		}
		return r.untag(ctx, r.repository, tag, d, func() error {
			_, err := r.intent.Delete(ctx, dir)
			return err
		})
	})
}

// Deletions serves deletions of many manifests.
func (s *Registry) Deletions(draining *atomic.Bool) http.Handler {
	return request.Methods("deletions", func(w http.ResponseWriter, r *http.Request) {
		if s.readOnly {
			request.WriteError(w, errReadOnly)
			return
		}
		var query deletion.Request
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, deletion.MaxRequest)).Decode(&query)
		if err == nil {
			err = validate(query)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request.Stream(r.Context(), draining, w, func() any { return struct{}{} },
			func(ctx context.Context, send func(any)) {
				last := deletion.Event{End: true}
				err := s.deleteManifests(ctx, query.Manifests, query.Since,
					func(m content.RepositoryDigest, existed bool, kept error) {
						e := deletion.Event{Repository: m.Repository, Digest: m.Digest}
						if kept != nil {
							e.Kept = kept.Error()
						} else if existed {
							s.audit(ctx, request.ActionDelete, m.Repository, m.Digest.String(), m.Digest)
						}
						send(e)
					})
				if err != nil {
					s.Log.Error("deleting manifests failed", "error", err)
					last = deletion.Event{Error: err.Error()}
				}
				send(last)
			})
	}, http.MethodPost)
}

func validate(query deletion.Request) error {
	if query.Since.IsZero() {
		return errors.New("since is missing: when the catalog was read")
	}
	for repository, digests := range query.Manifests {
		if _, err := reference.WithName(repository); err != nil {
			return fmt.Errorf("repository %q: %w", repository, err)
		}
		for _, d := range digests {
			if err := d.Validate(); err != nil {
				return fmt.Errorf("manifest %q of %s: %w", d, repository, err)
			}
		}
	}
	return nil
}
