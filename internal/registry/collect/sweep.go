package collect

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// removeGarbage removes the manifests and blobs that are in the list and not kept, unless clients of this process need
// them. Blobs that were written or linked after cutoff are kept, too.
func (r *run) removeGarbage(ctx context.Context, m *marking, list garbageSet) error {
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
		case m.Blobs[d].Young(r.cutoff):
			r.result.Kept++
		case list.has(d):
			blobs = append(blobs, d)
		}
	}
	stray := m.strayLinks()
	defer r.use.sweep(m, r.cutoff)()
	ctx, syncRemovals := storage.WithRemovals(ctx)
	for _, manifest := range manifests {
		key := manifest.RepositoryDigest
		paths := slices.Concat(m.History[key], []string{manifest.Path}, m.BackLinks[key])
		if err := r.removeManifest(ctx, key, m.Stored(key.Digest), paths); err != nil {
			return err
		}
	}
	for key, links := range stray {
		if d := m.Stored(key.Digest); list.has(d) {
			if _, err := r.use.removeStray(d, func() error { return r.remove(ctx, links...) }); err != nil {
				return err
			}
		}
	}
	// After a power cut, no manifest may be back without its blobs.
	if err := syncRemovals(); err != nil {
		return err
	}
	err := storage.InParallel(ctx, blobs, storage.Concurrency, func(ctx context.Context, d digest.Digest) error {
		return r.removeBlob(ctx, d, m.Blobs[d])
	})
	if err != nil {
		return err
	}
	return syncRemovals()
}

// removeManifest removes a manifest from its repository: the paths that belong to it. Its blob, which has the stored
// digest, is removed like other blobs.
func (r *run) removeManifest(
	ctx context.Context, key content.RepositoryDigest, stored digest.Digest, paths []string,
) error {
	removed, err := r.use.remove(stored, func() error { return r.remove(ctx, paths...) })
	if !removed || err != nil {
		return err
	}
	r.result.Manifests++
	r.report(gc.Event{Removed: &gc.Removed{Repository: key.Repository, Digest: key.Digest.String()}})
	return nil
}

// removeBlob removes a blob, its repository links first: while its data exists, the next collection finds it.
func (r *run) removeBlob(ctx context.Context, d digest.Digest, b *content.Blob) error {
	removed, err := r.use.remove(d, func() error { return r.remove(ctx, append(slices.Clone(b.Links), b.Path)...) })
	if errors.Is(err, errConcurrentWrite) {
		removed, err = false, nil // a push uses the blob
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !removed {
		r.result.Kept++
		return nil
	}
	r.result.Blobs++
	r.result.Bytes += b.Size
	r.report(gc.Event{Removed: &gc.Removed{Digest: d.String(), Bytes: b.Size}})
	return nil
}

// errConcurrentWrite means that a push wrote to a directory while it was being removed. The blob's data
// still exists.
var errConcurrentWrite = errors.New("a push wrote to it while it was being removed")

func (r *run) remove(ctx context.Context, paths ...string) error {
	for _, name := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.leaseErr(); err != nil {
			return err
		}
		if r.request.DryRun {
			continue
		}
		// The storage must not carry a deletion out after the lease has expired.
		bounded, cancel := context.WithTimeout(ctx, r.Times.RenewDeadline)
		err := r.leases.driver.Delete(bounded, name)
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
