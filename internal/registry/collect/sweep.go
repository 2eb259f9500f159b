package collect

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// sweeper removes manifests and blobs, unless clients of this process need them.
type sweeper struct {
	driver   storagedriver.StorageDriver
	use      *blobsInUse
	dryRun   bool
	report   func(gc.Event)
	leaseErr func() error // an error if the lease is lost
	// deleteTimeout bounds one deletion: the storage must not carry it out after the lease has expired.
	deleteTimeout time.Duration
	result        *gc.Result

	mu sync.Mutex // held by blob, which runs for several at once, while it changes the result and reports
}

// sweep removes what is in the list and not kept. Blobs that were written or linked after cutoff are kept, too.
func (s *sweeper) sweep(ctx context.Context, m *marking, list garbageSet, cutoff time.Time) error {
	// Pushes change m.keep from here on.
	var manifests []content.StoredManifest
	for _, manifest := range m.Manifests {
		if d := m.Stored(manifest.Digest); list.has(d) && !m.keep[d] {
			manifests = append(manifests, manifest)
		}
	}
	var blobs []digest.Digest
	for _, d := range m.Order {
		switch {
		case m.keep[d]:
		case m.Blobs[d].Young(cutoff):
			s.result.Kept++
		case list.has(d):
			blobs = append(blobs, d)
		}
	}
	stray := m.strayLinks()
	defer s.use.sweep(m, cutoff)()
	ctx, syncRemovals := storage.WithRemovals(ctx)
	for _, manifest := range manifests {
		key := manifest.RepositoryDigest
		paths := slices.Concat(m.History[key], []string{manifest.Path}, m.BackLinks[key])
		if err := s.manifest(ctx, key, m.Stored(key.Digest), paths); err != nil {
			return err
		}
	}
	for key, links := range stray {
		if d := m.Stored(key.Digest); list.has(d) {
			if _, err := s.use.removeStray(d, func() error { return s.remove(ctx, links...) }); err != nil {
				return err
			}
		}
	}
	// After a power cut, no manifest may be back without its blobs.
	if err := syncRemovals(); err != nil {
		return err
	}
	err := storage.InParallel(ctx, blobs, storage.Concurrency, func(ctx context.Context, d digest.Digest) error {
		return s.blob(ctx, d, m.Blobs[d])
	})
	if err != nil {
		return err
	}
	return syncRemovals()
}

// manifest removes a manifest from its repository: the paths that belong to it. Its blob, which has the stored digest,
// is removed like other blobs.
func (s *sweeper) manifest(
	ctx context.Context, key content.RepositoryDigest, stored digest.Digest, paths []string,
) error {
	removed, err := s.use.remove(stored, func() error { return s.remove(ctx, paths...) })
	if !removed || err != nil {
		return err
	}
	s.result.Manifests++
	s.report(gc.Event{Removed: &gc.Removed{Repository: key.Repository, Digest: key.Digest.String()}})
	return nil
}

// blob removes a blob, its repository links first: while its data exists, the next collection finds it.
func (s *sweeper) blob(ctx context.Context, d digest.Digest, b *content.Blob) error {
	removed, err := s.use.remove(d, func() error { return s.remove(ctx, append(slices.Clone(b.Links), b.Path)...) })
	if errors.Is(err, errConcurrentWrite) {
		removed, err = false, nil // a push uses the blob
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !removed {
		s.result.Kept++
		return nil
	}
	s.result.Blobs++
	s.result.Bytes += b.Size
	s.report(gc.Event{Removed: &gc.Removed{Digest: d.String(), Bytes: b.Size}})
	return nil
}

// errConcurrentWrite means that a push wrote to a directory while it was being removed. The blob's data
// still exists.
var errConcurrentWrite = errors.New("a push wrote to it while it was being removed")

func (s *sweeper) remove(ctx context.Context, paths ...string) error {
	for _, name := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.leaseErr(); err != nil {
			return err
		}
		if s.dryRun {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, s.deleteTimeout)
		err := s.driver.Delete(bounded, name)
		cancel()
		switch {
		case err == nil, storage.IsNotFound(err):
		case storage.FailedWith(err, syscall.ENOTEMPTY):
			return errConcurrentWrite
		default:
			return err
		}
	}
	return nil
}
