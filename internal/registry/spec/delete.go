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
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
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
	mu     sync.Mutex // held during report; guards removed
}

// repositoryDeletion deletes manifests of a repository.
type repositoryDeletion struct {
	*manifestDeletion
	repository string
	manifests  [][]digest.Digest           // with all digests of each, the given one first
	pushed     map[digest.Digest]time.Time // all of the repository, with since
	removed    map[digest.Digest]bool
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
			r := &repositoryDeletion{manifestDeletion: all, repository: repository, pushed: map[digest.Digest]time.Time{},
				removed: map[digest.Digest]bool{}, atOnce: max(1, storage.Concurrency/len(manifests))}
			return r, r.name(ctx, manifests[repository])
		})
	if err != nil {
		return err
	}
	var intended []content.RepositoryDigest
	for _, r := range repositories {
		for _, d := range slices.Concat(r.manifests...) {
			intended = append(intended, content.RepositoryDigest{Repository: r.repository, Digest: d})
		}
	}
	if all.intent, err = s.collector.Intend(ctx, intended, !since.IsZero()); err != nil {
		return err
	}
	defer all.intent.End()
	return storage.InParallel(ctx, repositories, storage.Concurrency,
		func(ctx context.Context, r *repositoryDeletion) error { return r.delete(ctx) })
}

func (r *repositoryDeletion) delete(ctx context.Context) error {
	if !r.since.IsZero() {
		if err := r.readPushed(ctx); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	// Indexes come first: what they contain is deleted once nothing refers to it.
	for pending := r.manifests; len(pending) > 0; {
		var referred [][]digest.Digest
		var reasons []error
		err := storage.InParallel(ctx, pending, r.atOnce, func(ctx context.Context, names []digest.Digest) error {
			kept, index, err := r.check(ctx, names)
			existed := false
			if err == nil && kept == nil && index == "" {
				existed, err = r.remove(ctx, names)
			}
			switch {
			case err != nil:
				return fmt.Errorf("deleting %s@%s: %w", r.repository, names[0], err)
			case index == "":
				r.done(names, existed, kept)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			referred = append(referred, names)
			reasons = append(reasons, request.Denied("index %s@%s refers to %s", r.repository, index, names[0]))
			return nil
		})
		if err != nil {
			return err
		}
		if len(referred) == len(pending) {
			for n, names := range referred {
				r.done(names, true, reasons[n])
			}
			break
		}
		pending = referred
	}
	return r.untagAll(ctx)
}

// readPushed reads when the manifests of the repository were pushed. S3 tells that of a thousand in one request.
func (r *repositoryDeletion) readPushed(ctx context.Context) error {
	dir := storage.RevisionsDir(r.repository)
	return storage.WalkFiles(ctx, r.Driver, dir, func(info storagedriver.FileInfo) error {
		if m := storage.NamedLink.FindStringSubmatch(info.Path()); m != nil {
			r.pushed[storage.PathDigest(m[4], m[5])] = info.ModTime().UTC()
		}
		return nil
	})
}

func (r *repositoryDeletion) done(names []digest.Digest, existed bool, kept error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range names {
		r.removed[d] = kept == nil
	}
	r.report(content.RepositoryDigest{Repository: r.repository, Digest: names[0]}, existed, kept)
}

// name finds all digests by which each manifest is stored.
func (r *repositoryDeletion) name(ctx context.Context, digests []digest.Digest) error {
	algorithms, err := storage.List(ctx, r.Driver, storage.RevisionsDir(r.repository))
	if err != nil {
		return err
	}
	several := slices.ContainsFunc(algorithms, func(dir string) bool { return path.Base(dir) != string(digest.Canonical) })
	r.manifests, err = storage.InOrder(ctx, digests, storage.ManifestConcurrency,
		func(ctx context.Context, d digest.Digest) ([]digest.Digest, error) {
			names := []digest.Digest{d}
			if !several {
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
					names = append(names, other)
				}
			}
			return names, nil
		})
	return err
}

// check returns why a manifest must be kept, or an index that refers to it.
func (r *repositoryDeletion) check(ctx context.Context, names []digest.Digest) (
	kept error, index digest.Digest, err error,
) {
	exists := false // without since, nothing is known to exist
	for _, d := range names {
		pushed, found := r.pushed[d]
		exists = exists || found
		if found && !pushed.Truncate(time.Second).Before(r.since.Truncate(time.Second)) {
			return request.Denied("%s@%s was pushed again at %s", r.repository, d, pushed.Format(time.RFC3339)), "", nil
		}
	}
	for n := 0; exists && n < len(names) && index == "" && err == nil; n++ {
		index, err = r.IndexOf(ctx, r.repository, names[n])
	}
	return nil, index, err
}

// remove removes a manifest, and then its back links.
func (r *repositoryDeletion) remove(ctx context.Context, names []digest.Digest) (existed bool, err error) {
	var dirs []string
	for _, d := range names {
		links, err := r.BackLinksOf(ctx, r.repository, d)
		if err != nil {
			return false, err
		}
		removed, err := r.intent.Delete(ctx, storage.RevisionPath(r.repository, d))
		if err != nil {
			return false, err
		}
		existed = existed || removed
		dirs = append(dirs, links.Dirs()...)
	}
	err = storage.InParallel(ctx, dirs, storage.ManifestConcurrency, func(ctx context.Context, dir string) error {
		_, err := r.intent.Delete(ctx, dir)
		return err
	})
	return existed, err
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
		if err != nil {
			return err
		}
		if !r.removed[d] {
			return nil
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
