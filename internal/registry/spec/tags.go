package spec

import (
	"cmp"
	"context"
	"encoding/json"
	"hash/maphash"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"sync"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// tag lets a tag refer to a manifest that is stored, unless that will be refused: the previous one stays.
//
// Deletions in other processes do not know of the push yet. That of the previous manifest may remove the tag although
// it has moved. That of this manifest may have looked for tags before this one was written, which would then refer to
// nothing. Then both are stored again.
func (s *Registry) tag(ctx context.Context, p *push, tag string) error {
	if err := p.admission.ConfirmTag(ctx); err != nil {
		return err
	}
	for range storeAttempts {
		previous, err := s.writeTag(ctx, p.repository, tag, p.name())
		if err == nil {
			err = s.collector.AwaitDeletions(ctx, p.repository, append(slices.Clone(p.digests), previous)...)
		}
		if err != nil {
			return err
		}
		// Another push may have moved the tag meanwhile.
		found, err := s.Exists(ctx, storage.TagPath(p.repository, tag))
		if err == nil && found {
			found, err = s.HasAll(ctx, p.repository, p.digests, nil)
		}
		if found || err != nil {
			return err
		}
		if err := s.store(ctx, p); err != nil {
			remove := func() error { return s.Driver.Delete(ctx, storage.TagDir(p.repository, tag)) }
			return cmp.Or(s.untag(ctx, p.repository, tag, p.name(), remove), err)
		}
	}
	return request.Unavailable("the tag was deleted again and again while it was pushed: push it later")
}

// writeTag returns the manifest that the tag referred to, or "".
func (s *Registry) writeTag(ctx context.Context, repository, tag string, to digest.Digest) (digest.Digest, error) {
	defer s.tags.lock(repository, tag)()
	previous, err := s.Tagged(ctx, repository, tag)
	if err == nil {
		err = s.Link(ctx, storage.HistoryPath(repository, tag, to), to)
	}
	if err == nil {
		err = s.Link(ctx, storage.TagPath(repository, tag), to)
	}
	return previous, err
}

// untag removes a tag, unless a push has moved it from a manifest.
func (s *Registry) untag(ctx context.Context, repository, tag string, from digest.Digest, remove func() error) error {
	defer s.tags.lock(repository, tag)()
	if d, err := s.Tagged(ctx, repository, tag); d != from || err != nil {
		return err
	}
	return remove()
}

func (s *Registry) deleteTag(w http.ResponseWriter, r *http.Request, to request.Target) error {
	defer s.tags.lock(to.Repository, to.Manifest)()
	d, err := s.Tagged(r.Context(), to.Repository, to.Manifest)
	if err == nil {
		err = s.Driver.Delete(r.Context(), storage.TagDir(to.Repository, to.Manifest))
	}
	if storage.IsNotFound(err) {
		return errcode.ErrorCodeManifestUnknown.WithDetail(to.Manifest)
	}
	if err == nil {
		s.audit(r.Context(), request.ActionDelete, to.Repository, to.Manifest, d)
		w.WriteHeader(http.StatusAccepted)
	}
	return err
}

// listTags serves a repository's tags in order, after the parameter last, and at most n of them.
func (s *Registry) listTags(w http.ResponseWriter, r *http.Request, repository string) error {
	query := r.URL.Query()
	limit, err := pageSize(query, 0, s.maxTags, math.MaxInt)
	if err != nil {
		return err
	}
	dirs, err := storage.List(r.Context(), s.Driver, storage.TagsDir(repository))
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		// In S3 there are no empty directories. A repository without tags exists while it has a manifest.
		exists, err := s.Exists(r.Context(), path.Dir(storage.TagsDir(repository)))
		if err != nil {
			return err
		}
		if !exists {
			return errcode.ErrorCodeNameUnknown.WithDetail(map[string]string{"name": repository})
		}
	}
	tags := make([]string, len(dirs))
	for n, dir := range dirs {
		tags[n] = path.Base(dir)
	}
	slices.Sort(tags)
	last := query.Get("last")
	tags = slices.DeleteFunc(tags, func(tag string) bool { return tag <= last })
	header := w.Header()
	if len(tags) > limit {
		tags = tags[:limit]
		if limit > 0 {
			linkNext(header, r, url.Values{"n": {strconv.Itoa(limit)}, "last": {tags[limit-1]}})
		}
	}
	header.Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"name": repository, "tags": tags}) // the client may have disconnected
	return nil
}

// tagLocks serialize changes of a tag. A few tags share a lock. The zero value is not locked.
type tagLocks [64]sync.Mutex

var tagSeed = maphash.MakeSeed()

// lock returns a function that unlocks the tag.
func (l *tagLocks) lock(repository, tag string) (unlock func()) {
	m := &l[maphash.String(tagSeed, repository+":"+tag)%uint64(len(l))]
	m.Lock()
	return m.Unlock
}
