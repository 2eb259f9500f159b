package spec

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"slices"
	"sync"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/volume"
)

// currentTags are a repository's tags, for one request.
type currentTags struct {
	distribution.TagService
	source     *Registry
	repository string
}

// Tag lets the tag refer to the manifest, unless that will be refused: the previous one stays.
//
// Deletions in other processes do not know of the push yet. That of the previous manifest may remove the tag although
// it has moved. That of this manifest may have looked for tags before this one was written, which would then refer to
// nothing. Then both are stored again.
func (t *currentTags) Tag(ctx context.Context, tag string, manifest v1.Descriptor) error {
	in := intentOf(ctx)
	if in.admission != nil {
		if err := in.admission.ConfirmTag(ctx); err != nil {
			return err
		}
	}
	for range storeAttempts {
		previous, err := t.write(ctx, tag, manifest)
		if err == nil {
			err = t.source.collector.AwaitDeletions(ctx, t.repository, manifest.Digest, previous)
		}
		if err != nil {
			return err
		}
		// Another push may have moved the tag meanwhile.
		found, err := t.source.Exists(ctx, storage.TagPath(t.repository, tag))
		if err == nil && found {
			found, err = t.source.Exists(ctx, storage.RevisionPath(t.repository, manifest.Digest))
		}
		if found || err != nil {
			return err
		}
		if _, err := in.store(); err != nil {
			remove := func() error { return t.TagService.Untag(ctx, tag) }
			return cmp.Or(t.source.untag(ctx, t.repository, tag, manifest.Digest, remove), err)
		}
	}
	return request.Unavailable("the tag was deleted again and again while it was pushed: push it later")
}

// write returns the manifest that the tag referred to, or "".
func (t *currentTags) write(ctx context.Context, tag string, manifest v1.Descriptor) (
	previous digest.Digest, err error,
) {
	defer t.source.tags.lock(t.repository, tag)()
	previous = t.source.Tagged(ctx, t.repository, tag)
	err = t.TagService.Tag(ctx, tag, manifest)
	volume.RecordNoSpace(ctx, err)
	return previous, err
}

// untag removes a tag, unless a push has moved it from a manifest.
func (s *Registry) untag(ctx context.Context, repository, tag string, from digest.Digest, remove func() error) error {
	defer s.tags.lock(repository, tag)()
	if s.Tagged(ctx, repository, tag) != from {
		return nil
	}
	return remove()
}

// Get returns the manifest of the tag. A damaged link is no tag: a push replaces it.
func (t *currentTags) Get(ctx context.Context, tag string) (v1.Descriptor, error) {
	manifest, err := t.TagService.Get(ctx, tag)
	if content.IsDamaged(err) {
		return v1.Descriptor{}, distribution.ErrTagUnknown{Tag: tag}
	}
	return manifest, err
}

// Lookup returns nothing: only deletions call it, and manifestStore.Delete has removed the tags.
func (t *currentTags) Lookup(context.Context, v1.Descriptor) ([]string, error) { return nil, nil }

// Untag removes the tag.
func (t *currentTags) Untag(ctx context.Context, tag string) error {
	defer t.source.tags.lock(t.repository, tag)()
	return t.TagService.Untag(ctx, tag)
}

// List returns up to limit tags after last, in the order that the specification wants, or all if limit is negative;
// with io.EOF if no tag follows. Distribution walks the storage instead: S3 lists v1-a before v1, because it compares
// paths, so a page that ends with v1-a would be followed by v2.
func (t *currentTags) List(ctx context.Context, limit int, last string) ([]string, error) {
	tags, err := t.All(ctx) // in this order
	if errors.As(err, new(distribution.ErrRepositoryUnknown)) {
		// In S3 there are no empty directories. A repository without tags exists while it has a manifest.
		exists, failed := t.source.Exists(ctx, storage.RepositoriesPath+"/"+t.repository+"/_manifests")
		switch {
		case failed != nil:
			return nil, failed
		case exists:
			return nil, io.EOF
		}
	}
	if err != nil {
		return nil, err
	}
	if last != "" {
		first, found := slices.BinarySearch(tags, last)
		if found {
			first++
		}
		tags = tags[first:]
	}
	if limit >= 0 && len(tags) > limit {
		return tags[:limit], nil
	}
	return tags, io.EOF
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
