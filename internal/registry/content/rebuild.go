package content

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// rebuiltPath is the record of the last rebuild, next to the record of garbage collection.
const rebuiltPath = "/docker/registry/v2/zarf-registry/back-links.json"

// KeepRebuilding rebuilds back links until it has succeeded.
func (s *Store) KeepRebuilding(ctx context.Context) {
	const retry = 10 * time.Second
	for {
		err := s.Rebuild(ctx)
		if err == nil {
			s.Rebuilt.Store(true)
			return
		}
		if ctx.Err() == nil {
			s.Log.Error("indexing referrers failed, retrying", "error", err)
		}
		if poll.Sleep(ctx, retry) != nil {
			return
		}
	}
}

// AwaitRebuild waits until all manifests have back links.
func (s *Store) AwaitRebuild(ctx context.Context) error {
	for !s.Rebuilt.Load() {
		if err := poll.Sleep(ctx, time.Second/10); err != nil {
			return err
		}
	}
	return nil
}

// rebuildRecord is the content of rebuiltPath.
type rebuildRecord struct {
	// Since is when the last rebuild began, by the storage's clock.
	Since time.Time `json:"since"`
}

// Rebuild adds the links that distribution does not write: back links, and those from other digests to SHA-256.
func (s *Store) Rebuild(ctx context.Context) error {
	last, err := storage.ReadJSON[rebuildRecord](ctx, s.Driver, rebuiltPath)
	if err != nil {
		return err
	}
	began, err := storage.Now(ctx, s.Driver, "")
	if err != nil {
		return err
	}

	// A file may get its time before it appears.
	stored := &Inventory{Driver: s.Driver, since: last.Since.Add(-time.Minute)}
	if _, err := stored.readRepositories(ctx, storage.RepositoriesPath); err != nil {
		return err
	}
	for _, d := range stored.Damaged {
		s.Log.Warn("stored content is damaged", "problem", d.String())
	}
	addLinks := func(ctx context.Context, m StoredManifest) error {
		links, err := s.BackLinksOf(ctx, m.Repository, m.Digest)
		if err != nil {
			return err
		}
		return s.AddBackLinks(ctx, links)
	}
	if err := storage.InParallel(ctx, stored.Manifests, storage.Concurrency, addLinks); err != nil {
		return err
	}
	for _, blob := range stored.others {
		if d, ok := stored.Canonical[blob.digest]; ok && d.Algorithm() == digest.Canonical {
			if err := s.Link(ctx, storage.DigestLinkPath(blob.digest), d); err != nil {
				return err
			}
		}
	}
	return storage.WriteJSON(ctx, s.Driver, rebuiltPath, rebuildRecord{Since: began})
}
