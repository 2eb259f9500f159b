package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// sweep removes what is in the list and neither kept, nor younger than cutoff, nor needed by clients of this process.
func (r *run) sweep(ctx context.Context, m *marks, list garbageSet) error {
	r.report(gc.Event{Phase: gc.Sweeping})
	// Pushes change what is kept from here on.
	manifests := map[digest.Digest][]content.RepositoryDigest{} // by what is stored: the same in several repositories
	var order []digest.Digest
	for _, manifest := range m.Manifests {
		if d := m.Stored(manifest.Digest); list.has(d) && !m.kept(d) {
			if manifests[d] == nil {
				order = append(order, d)
			}
			manifests[d] = append(manifests[d], manifest.RepositoryDigest)
		}
	}
	var blobs []*content.Blob
	for n := range m.Blobs {
		switch b := &m.Blobs[n]; {
		case b.Keep:
		case b.Young(r.cutoff):
			r.result.Kept++
		case list.has(b.Digest()):
			blobs = append(blobs, b)
		}
	}
	stray := map[digest.Digest][]string{}
	for key, links := range m.strayLinks() {
		if d := m.Stored(key.Digest); list.has(d) {
			stray[d] = append(stray[d], links...)
		}
	}
	end, err := r.use.sweep(m, r.cutoff)
	if err != nil {
		return err
	}
	defer end()
	ctx, syncRemovals := storage.WithRemovals(ctx)
	removeManifests := func() error {
		return storage.InParallel(ctx, order, r.atOnce(), func(ctx context.Context, d digest.Digest) error {
			for _, key := range manifests[d] {
				if err := r.removeManifest(ctx, key, d, m.Dirs(key)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	removeStray := func() error {
		return storage.InParallel(ctx, slices.Collect(maps.Keys(stray)), r.atOnce(),
			func(ctx context.Context, d digest.Digest) error {
				_, err := r.use.removeStray(d, func() error { return r.remove(ctx, stray[d]...) })
				return err
			})
	}
	removeBlobs := func() error {
		return storage.InParallel(ctx, blobs, r.atOnce(), func(ctx context.Context, b *content.Blob) error {
			return r.removeBlob(ctx, b.Digest(), b, m.LinkDirs(b))
		})
	}
	// After a power cut, no manifest may be back without its blobs.
	for _, step := range []func() error{removeManifests, removeStray, syncRemovals, removeBlobs, syncRemovals} {
		if err := step(); err != nil {
			return fmt.Errorf("removing garbage: %w", err)
		}
	}
	return nil
}

// atOnce is how much is removed at once.
func (r *run) atOnce() int { return cmp.Or(r.removals, storage.Concurrency) }

// removeManifest removes the paths of a manifest from its repository. Its blob is removed like others.
func (r *run) removeManifest(
	ctx context.Context, key content.RepositoryDigest, stored digest.Digest, paths []string,
) error {
	removed, err := r.use.remove(stored, func() error { return r.remove(ctx, paths...) })
	if !removed || err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Manifests++
	r.report(gc.Event{Removed: &gc.Removed{Repository: key.Repository, Digest: key.Digest.String()}})
	return nil
}

// removeBlob removes a blob, its repository links first: while its data exists, the next collection finds it.
func (r *run) removeBlob(ctx context.Context, d digest.Digest, b *content.Blob, links []string) error {
	removed, err := r.use.remove(d, func() error { return r.remove(ctx, append(links, b.Dir())...) })
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

// errConcurrentWrite means that a push wrote to a directory while it was being removed. The blob's data still exists.
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
		if _, err := r.leases.delete(ctx, name); storage.FailedWith(err, syscall.ENOTEMPTY) {
			return errConcurrentWrite
		} else if err != nil {
			return err
		}
	}
	return nil
}
