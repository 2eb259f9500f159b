package content

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
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

// rebuildRecord is the content of rebuiltPath.
type rebuildRecord struct {
	// Since is when the last rebuild began, by the storage's clock.
	Since time.Time `json:"since"`
}

// Rebuild adds the links that distribution does not write: back links, and those from other digests to SHA-256.
func (s *Store) Rebuild(ctx context.Context) error {
	var last rebuildRecord
	content, err := s.Driver.GetContent(ctx, rebuiltPath)
	if err == nil {
		err = json.Unmarshal(content, &last)
	}
	if err != nil && !storage.IsNotFound(err) {
		return fmt.Errorf("reading %s: %w", rebuiltPath, err)
	}
	began, err := storage.Now(ctx, s.Driver, "")
	if err != nil {
		return err
	}

	var links []string
	err = storage.WalkFiles(ctx, s.Driver, storage.RepositoriesPath, func(info storagedriver.FileInfo) error {
		if !info.ModTime().Before(last.Since.Add(-time.Minute)) { // a pushed file may get its time before it appears
			links = append(links, info.Path())
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = storage.InParallel(ctx, links, storage.ManifestConcurrency, s.rebuildLink)
	if err != nil {
		return err
	}
	if content, err = json.Marshal(rebuildRecord{Since: began}); err != nil {
		return err
	}
	return s.Driver.PutContent(ctx, rebuiltPath, content)
}

// rebuildLink adds what the link of a manifest or of a blob needs.
func (s *Store) rebuildLink(ctx context.Context, name string) error {
	if m := storage.RevisionLink.FindStringSubmatch(name); m != nil {
		links, err := s.backLinksOf(ctx, m[1], storage.PathDigest(m[2], m[3]))
		for _, link := range links {
			if err == nil {
				err = s.Driver.PutContent(ctx, link.path, link.content)
			}
		}
		return err
	}
	if m := storage.LayerLink.FindStringSubmatch(name); m != nil && m[2] != digest.Canonical.String() {
		stored, err := s.ReadLink(ctx, name)
		if errors.Is(err, distribution.ErrBlobUnknown) || IsDamaged(err) {
			return nil // just deleted, or to be pushed again
		}
		if err != nil || stored.Algorithm() != digest.Canonical {
			return err
		}
		return s.Link(ctx, storage.DigestLinkPath(storage.PathDigest(m[2], m[3])), stored)
	}
	return nil
}
