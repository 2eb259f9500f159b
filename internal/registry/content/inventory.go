package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Inventory is what the storage holds, apart from unfinished uploads. It takes about 120 bytes for a blob with a link,
// so that a million of them fit into a small pod: paths are derived from digests and repositories.
//
// Damaged links and tags never make it fail: see Damaged.
type Inventory struct {
	Driver    storagedriver.StorageDriver
	Blobs     []Blob // by key
	Manifests []StoredManifest
	// Tagged are the tags of manifests that have any.
	Tagged map[RepositoryDigest][]string
	// History are the tags that referred to manifests once.
	History map[RepositoryDigest][]string
	// BackLinks are the directories of back links to manifests, stored or not.
	BackLinks map[RepositoryDigest][]string
	// Canonical are the SHA-256 digests of other digests.
	Canonical map[digest.Digest]digest.Digest
	// Damaged are tags and links that contain no digest. What they stand for is unknown.
	Damaged []Damage

	since        time.Time      // older files of repositories are skipped
	repositories map[string]int // numbers
	names        []string       // by number
	links        []blobLink     // by key
	others       []otherLink
	otherDirs    map[Key][]string // of links by other digests
}

// Damage is a damaged tag, or the damaged link of a manifest or a blob.
type Damage struct {
	Repository string        // empty for a link outside of repositories
	Tag        string        // or
	Digest     digest.Digest // of the link
	Manifest   bool          // the link is a manifest's
}

// String says what is damaged and what to do.
func (d Damage) String() string {
	switch {
	case d.Tag != "":
		return fmt.Sprintf("the tag %s:%s is damaged: push it again, or delete it", d.Repository, d.Tag)
	case d.Repository == "":
		return fmt.Sprintf("the link of %s is damaged: push its image again", d.Digest)
	}
	return fmt.Sprintf("the link of %s@%s is damaged: push it again, or delete it", d.Repository, d.Digest)
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
	Pushed time.Time // last
}

// Key is a digest in little memory: the SHA-256 digest, or that of the text of another one.
type Key [32]byte

// KeyOf returns the key of a digest.
func KeyOf(d digest.Digest) (key Key) {
	encoded, ok := strings.CutPrefix(string(d), "sha256:")
	if ok && len(encoded) == 2*len(key) {
		if _, err := hex.Decode(key[:], []byte(encoded)); err == nil {
			return key
		}
	}
	return sha256.Sum256([]byte(d))
}

// Digest returns the SHA-256 digest.
func (k Key) Digest() digest.Digest { return digest.NewDigestFromBytes(digest.SHA256, k[:]) }

// Compare orders keys like their digests.
func (k Key) Compare(other Key) int { return bytes.Compare(k[:], other[:]) }

// Blob is a stored blob.
type Blob struct {
	Key
	// Keep is for users of the inventory.
	Keep   bool
	Size   int64
	newest int64 // in nanoseconds (Unix)
}

// Newest is when the blob was written, or last linked to a repository, be it by a mount.
func (b *Blob) Newest() time.Time { return time.Unix(0, b.newest).UTC() }

// Young reports whether the grace period protects the blob.
func (b *Blob) Young(cutoff time.Time) bool { return b.newest > cutoff.UnixNano() }

// Dir is the blob's directory.
func (b *Blob) Dir() string { return path.Dir(storage.BlobPath(b.Digest())) }

// blobLink is a blob's link in a repository.
type blobLink struct {
	Key
	repository uint32
	at         int64 // in nanoseconds (Unix)
}

// otherLink is the link of a digest other than SHA-256.
type otherLink struct {
	digest digest.Digest
	dir    string
	at     time.Time
}

// Read reads everything.
func (i *Inventory) Read(ctx context.Context) error {
	tags, err := i.readRepositories(ctx)
	if err != nil {
		return err
	}
	if err := i.readTags(ctx, tags); err != nil {
		return err
	}
	if err := i.readBlobs(ctx); err != nil {
		return err
	}
	byKey := func(a, b Blob) int { return a.Compare(b.Key) }
	if !slices.IsSortedFunc(i.Blobs, byKey) {
		slices.SortFunc(i.Blobs, byKey)
	}
	slices.SortFunc(i.links, func(a, b blobLink) int { return a.Compare(b.Key) })
	for _, l := range i.links {
		if b := i.Find(l.Key); b != nil {
			b.newest = max(b.newest, l.at)
		}
	}
	i.otherDirs = map[Key][]string{}
	for _, l := range i.others {
		if b := i.Blob(l.digest); b != nil {
			b.newest = max(b.newest, l.at.UnixNano())
			i.otherDirs[b.Key] = append(i.otherDirs[b.Key], l.dir)
		}
	}
	i.others = nil
	return nil
}

// repository returns the name of a repository, which shares its memory, and its number.
func (i *Inventory) repository(name string) (string, uint32) {
	n, ok := i.repositories[name]
	if !ok {
		n, name = len(i.names), strings.Clone(name)
		i.repositories[name] = n
		i.names = append(i.names, name)
	}
	return i.names[n], uint32(n)
}

// readRepositories reads everything but what tags refer to, and blobs.
func (i *Inventory) readRepositories(ctx context.Context) (tags []RepositoryTag, err error) {
	i.Tagged, i.History = map[RepositoryDigest][]string{}, map[RepositoryDigest][]string{}
	i.BackLinks, i.Canonical = map[RepositoryDigest][]string{}, map[digest.Digest]digest.Digest{}
	i.repositories = map[string]int{}
	err = storage.WalkFiles(ctx, i.Driver, storage.RepositoriesPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if info.ModTime().Before(i.since) {
			return nil
		} else if m := storage.RevisionLink.FindStringSubmatch(name); m != nil {
			repository, _ := i.repository(m[1])
			key := RepositoryDigest{repository, storage.PathDigest(m[2], m[3])}
			i.Manifests = append(i.Manifests, StoredManifest{key, info.ModTime()})
			return i.resolve(ctx, Damage{Repository: repository, Digest: key.Digest, Manifest: true}, name)
		} else if m := storage.BackLink.FindStringSubmatch(name); m != nil {
			repository, _ := i.repository(m[1])
			key := RepositoryDigest{repository, storage.PathDigest(m[2], m[3])}
			i.BackLinks[key] = append(i.BackLinks[key], path.Dir(name))
		} else if m := storage.HistoryLink.FindStringSubmatch(name); m != nil {
			repository, _ := i.repository(m[1])
			key := RepositoryDigest{repository, storage.PathDigest(m[3], m[4])}
			i.History[key] = append(i.History[key], strings.Clone(m[2]))
		} else if m := storage.LayerLink.FindStringSubmatch(name); m != nil {
			repository, number := i.repository(m[1])
			d := storage.PathDigest(m[2], m[3])
			if k := KeyOf(d); k.Digest() == d {
				i.links = append(i.links, blobLink{k, number, info.ModTime().UnixNano()})
				return nil
			}
			i.others = append(i.others, otherLink{d, path.Dir(name), info.ModTime()})
			return i.resolve(ctx, Damage{Repository: repository, Digest: d}, name)
		} else if m := storage.CurrentLink.FindStringSubmatch(name); m != nil {
			repository, _ := i.repository(m[1])
			tags = append(tags, RepositoryTag{repository, strings.Clone(m[2])})
		}
		return nil
	})
	return tags, err
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
		case IsDamaged(err):
			i.Damaged = append(i.Damaged, Damage{Repository: t.Repository, Tag: t.Tag})
			return nil
		case err != nil:
			return err
		}
		key := RepositoryDigest{t.Repository, d}
		i.Tagged[key] = append(i.Tagged[key], t.Tag)
		return nil
	})
}

func (i *Inventory) readBlobs(ctx context.Context) error {
	return storage.WalkFiles(ctx, i.Driver, storage.BlobsPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.BlobData.FindStringSubmatch(name); m != nil {
			if d := storage.PathDigest(m[1], m[2]); KeyOf(d).Digest() == d {
				i.Blobs = append(i.Blobs, Blob{Key: KeyOf(d), Size: info.Size(), newest: info.ModTime().UnixNano()})
			}
		} else if m := storage.DigestLink.FindStringSubmatch(name); m != nil {
			d := storage.PathDigest(m[1], m[2])
			i.others = append(i.others, otherLink{d, path.Dir(name), info.ModTime()})
			return i.resolve(ctx, Damage{Digest: d}, name)
		}
		return nil
	})
}

// resolve remembers the SHA-256 digest that the link of another digest contains.
func (i *Inventory) resolve(ctx context.Context, what Damage, link string) error {
	if what.Digest.Algorithm() == digest.Canonical {
		return nil // distribution resolves these by their name
	}
	stored, err := storage.ReadLink(ctx, i.Driver, link)
	switch {
	case errors.Is(err, distribution.ErrBlobUnknown): // just deleted
	case IsDamaged(err):
		i.Damaged = append(i.Damaged, what)
	case err != nil:
		return err
	case stored != what.Digest:
		i.Canonical[what.Digest] = stored
	}
	return nil
}

// Stored returns the digest under which content is stored.
func (i *Inventory) Stored(d digest.Digest) digest.Digest {
	if stored, ok := i.Canonical[d]; ok {
		return stored
	}
	return d
}

// Blob returns the blob of a digest, or nil if it is missing.
func (i *Inventory) Blob(d digest.Digest) *Blob { return i.Find(KeyOf(i.Stored(d))) }

// Find returns the blob with a key, or nil if it is missing.
func (i *Inventory) Find(k Key) *Blob {
	n, ok := slices.BinarySearchFunc(i.Blobs, k, func(b Blob, k Key) int { return b.Compare(k) })
	if !ok {
		return nil
	}
	return &i.Blobs[n]
}

// LinkDirs returns the directories of a blob's links: in repositories, and of its other digests.
func (i *Inventory) LinkDirs(b *Blob) (dirs []string) {
	first, _ := slices.BinarySearchFunc(i.links, b.Key, func(l blobLink, k Key) int { return l.Compare(k) })
	for _, l := range i.links[first:] {
		if l.Key != b.Key {
			break
		}
		dirs = append(dirs, path.Dir(storage.LayerPath(i.names[l.repository], b.Digest())))
	}
	return append(dirs, i.otherDirs[b.Key]...)
}

// Dirs returns the directories of a manifest in its repository: the entries of tags, itself, and its back links.
func (i *Inventory) Dirs(m RepositoryDigest) (dirs []string) {
	for _, tag := range i.History[m] {
		dirs = append(dirs, path.Dir(storage.HistoryPath(m.Repository, tag, m.Digest)))
	}
	dirs = append(dirs, path.Dir(storage.RevisionPath(m.Repository, m.Digest)))
	return append(dirs, i.BackLinks[m]...)
}

// Unclear are the repositories with damaged tags or damaged links of manifests. It is unknown which of their manifests
// have tags.
func (i *Inventory) Unclear() map[string]Damage {
	unclear := map[string]Damage{}
	for _, d := range i.Damaged {
		if d.Tag != "" || d.Manifest {
			unclear[d.Repository] = d
		}
	}
	return unclear
}

// Decode calls decode with the content of a manifest, or of a configuration, which may be as large. Few large ones are
// in memory at once.
func (i *Inventory) Decode(ctx context.Context, d digest.Digest, decode func(data []byte) error) error {
	b := i.Blob(d)
	switch {
	case b == nil:
		return fmt.Errorf("%s is missing from the storage: push the image again", d)
	case b.Size > oci.MaxManifestSize:
		return fmt.Errorf("%s has %d bytes, more than a manifest may have", d, b.Size)
	}
	done, err := AwaitMemory(ctx, b.Size)
	if err != nil {
		return err
	}
	defer done()
	data, err := i.Driver.GetContent(ctx, storage.BlobPath(b.Digest()))
	if err != nil {
		return err
	}
	return decode(data)
}
