package content

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Inventory is what the storage holds, apart from unfinished uploads.
type Inventory struct {
	Driver    storagedriver.StorageDriver
	Manifests []StoredManifest
	// Tagged are the tags of manifests that have any.
	Tagged map[RepositoryDigest][]string
	// History are the paths of entries for manifests that tags referred to once.
	History map[RepositoryDigest][]string
	// BackLinks are the directories of back links to manifests, stored or not.
	BackLinks map[RepositoryDigest][]string
	// Canonical are the SHA-256 digests of other digests.
	Canonical map[digest.Digest]digest.Digest
	Blobs     map[digest.Digest]*Blob // by SHA-256 digest
	Order     []digest.Digest         // of blobs, as they were found
	// DamagedTag is called for a tag whose link contains no digest. Without it, that is an error, because it is unknown
	// what the tag keeps.
	DamagedTag func(RepositoryTag)
}

// RepositoryTag is a tag of a repository.
type RepositoryTag struct{ Repository, Tag string }

// RepositoryDigest is a digest in a repository.
type RepositoryDigest struct {
	Repository string
	Digest     digest.Digest
}

// StoredManifest is a manifest of a repository.
type StoredManifest struct {
	RepositoryDigest
	Path   string
	Pushed time.Time // last
}

// Blob is a stored blob.
type Blob struct {
	Path string // its directory
	Size int64
	// Newest is when the blob was written, or last linked to a repository, be it by a mount.
	Newest time.Time
	Links  []string // directories in repositories
}

// Young reports whether the grace period protects the blob.
func (b *Blob) Young(cutoff time.Time) bool { return b.Newest.After(cutoff) }

// Read reads everything.
func (i *Inventory) Read(ctx context.Context) error {
	i.Tagged, i.History = map[RepositoryDigest][]string{}, map[RepositoryDigest][]string{}
	i.BackLinks, i.Canonical = map[RepositoryDigest][]string{}, map[digest.Digest]digest.Digest{}
	links, tags, err := i.readRepositories(ctx)
	if err != nil {
		return err
	}
	if err := i.readTags(ctx, tags); err != nil {
		return err
	}
	digestLinks, err := i.readBlobs(ctx)
	if err != nil {
		return err
	}
	for _, l := range append(links, digestLinks...) {
		if b := i.Blobs[l.digest]; b != nil {
			b.Links = append(b.Links, l.path)
			if l.at.After(b.Newest) {
				b.Newest = l.at
			}
		}
	}
	return nil
}

// blobLink is a blob's link in a repository.
type blobLink struct {
	digest digest.Digest
	path   string
	at     time.Time
}

func (i *Inventory) readRepositories(ctx context.Context) (links []blobLink, tags []RepositoryTag, err error) {
	err = storage.WalkFiles(ctx, i.Driver, storage.RepositoriesPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.RevisionLink.FindStringSubmatch(name); m != nil {
			d := storage.PathDigest(m[2], m[3])
			if _, err := i.resolve(ctx, d, name); err != nil {
				return err
			}
			i.Manifests = append(i.Manifests, StoredManifest{RepositoryDigest{m[1], d}, path.Dir(name), info.ModTime()})
		} else if m := storage.BackLink.FindStringSubmatch(name); m != nil {
			key := RepositoryDigest{m[1], storage.PathDigest(m[2], m[3])}
			i.BackLinks[key] = append(i.BackLinks[key], path.Dir(name))
		} else if m := storage.HistoryLink.FindStringSubmatch(name); m != nil {
			key := RepositoryDigest{m[1], storage.PathDigest(m[2], m[3])}
			i.History[key] = append(i.History[key], path.Dir(name))
		} else if m := storage.LayerLink.FindStringSubmatch(name); m != nil {
			stored, err := i.resolve(ctx, storage.PathDigest(m[2], m[3]), name)
			if err != nil {
				return err
			}
			links = append(links, blobLink{stored, path.Dir(name), info.ModTime()})
		} else if m := storage.CurrentLink.FindStringSubmatch(name); m != nil {
			tags = append(tags, RepositoryTag{m[1], m[2]})
		}
		return nil
	})
	return links, tags, err
}

// readTags reads what tags refer to.
func (i *Inventory) readTags(ctx context.Context, tags []RepositoryTag) error {
	var mu sync.Mutex
	return storage.InParallel(ctx, tags, storage.Concurrency, func(ctx context.Context, t RepositoryTag) error {
		d, err := storage.ReadLink(ctx, i.Driver, storage.TagPath(t.Repository, t.Tag))
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, distribution.ErrBlobUnknown):
			return nil // the tag was just deleted
		case i.DamagedTag != nil && IsDamaged(err):
			i.DamagedTag(t)
			return nil
		case err != nil:
			return err
		}
		key := RepositoryDigest{t.Repository, d}
		i.Tagged[key] = append(i.Tagged[key], t.Tag)
		return nil
	})
}

func (i *Inventory) readBlobs(ctx context.Context) (links []blobLink, err error) {
	i.Blobs = map[digest.Digest]*Blob{}
	err = storage.WalkFiles(ctx, i.Driver, storage.BlobsPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.BlobData.FindStringSubmatch(name); m != nil {
			d := storage.PathDigest(m[1], m[2])
			i.Blobs[d] = &Blob{Path: path.Dir(name), Size: info.Size(), Newest: info.ModTime()}
			i.Order = append(i.Order, d)
		} else if m := storage.DigestLink.FindStringSubmatch(name); m != nil {
			stored, err := i.resolve(ctx, storage.PathDigest(m[1], m[2]), name)
			if err != nil {
				return err
			}
			links = append(links, blobLink{stored, path.Dir(name), info.ModTime()})
		}
		return nil
	})
	return links, err
}

// resolve returns the SHA-256 digest that the link of a digest contains, and remembers it. It reads no links that
// distribution resolves by their name.
func (i *Inventory) resolve(ctx context.Context, d digest.Digest, link string) (digest.Digest, error) {
	if d.Algorithm() == digest.Canonical {
		return d, nil
	}
	stored, err := storage.ReadLink(ctx, i.Driver, link)
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return d, nil // just deleted
	}
	if err == nil && stored != d {
		i.Canonical[d] = stored
	}
	return stored, err
}

// Stored returns the digest under which content is stored.
func (i *Inventory) Stored(d digest.Digest) digest.Digest {
	if stored, ok := i.Canonical[d]; ok {
		return stored
	}
	return d
}
