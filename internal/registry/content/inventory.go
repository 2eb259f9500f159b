package content

import (
	"bytes"
	"cmp"
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
// All its digests are valid. What is damaged never makes it fail: see Damaged.
type Inventory struct {
	Driver    storagedriver.StorageDriver
	Blobs     []Blob // by key
	Manifests []StoredManifest
	Tagged    map[RepositoryDigest][]string // the tags of manifests that have any
	// History are the tags that referred to manifests once.
	History map[RepositoryDigest][]string
	// BackLinks are the directories of back links to manifests, stored or not.
	BackLinks map[RepositoryDigest][]string
	// Canonical are the SHA-256 digests of other digests.
	Canonical map[digest.Digest]digest.Digest
	// Damaged lists tags and links without a valid digest as content, and files without one as name. It is unknown what
	// they referred to.
	Damaged []Damage

	mu           sync.Mutex     // held while links are read at once
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
	Digest     digest.Digest // of the link, or
	Path       string        // whose name is damaged
	Manifest   bool          // the link is a manifest's
}

// String says what is damaged and what to do.
func (d Damage) String() string {
	switch {
	case d.Path != "":
		return fmt.Sprintf("the name of %s is damaged: push its image again, and remove it from the storage", d.Path)
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
	Keep   bool // for users of the inventory
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

// Read reads everything. An inventory that is read again needs no more memory, and its previous content is gone.
func (i *Inventory) Read(ctx context.Context) error {
	i.Blobs, i.Manifests, i.links, i.others = i.Blobs[:0], i.Manifests[:0], i.links[:0], i.others[:0]
	tags, err := i.readRepositories(ctx, storage.RepositoriesPath)
	if err != nil {
		return err
	}
	if err := i.readTags(ctx, tags); err != nil {
		return err
	}
	if err := i.readBlobs(ctx); err != nil {
		return err
	}
	slices.SortFunc(i.Blobs, func(a, b Blob) int { return a.Compare(b.Key) })
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
	return nil
}

// ReadManifests reads the manifests of a repository, and the back links to them.
func (i *Inventory) ReadManifests(ctx context.Context, repository string) error {
	_, err := i.readRepositories(ctx, storage.RevisionsDir(repository), backLinkDir(repository, indexLinks),
		backLinkDir(repository, referrerLinks))
	return err
}

// Indexes returns the indexes, stored or not, that contain manifests.
func (i *Inventory) Indexes() map[RepositoryDigest][]RepositoryDigest {
	indexes := map[RepositoryDigest][]RepositoryDigest{}
	for index, dirs := range i.BackLinks {
		for _, dir := range dirs {
			names := strings.Split(dir, "/") // …/KIND/ALGORITHM/CHILD/ALGORITHM/INDEX
			if n := len(names); names[n-5] == indexLinks {
				child := RepositoryDigest{index.Repository, storage.PathDigest(names[n-4], names[n-3])}
				indexes[child] = append(indexes[child], index)
			}
		}
	}
	return indexes
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

// readRepositories reads directories of repositories, but not what tags refer to.
func (i *Inventory) readRepositories(ctx context.Context, dirs ...string) (tags []RepositoryTag, err error) {
	i.Tagged, i.History = map[RepositoryDigest][]string{}, map[RepositoryDigest][]string{}
	i.BackLinks, i.Canonical = map[RepositoryDigest][]string{}, map[digest.Digest]digest.Digest{}
	i.repositories, i.names, i.Damaged = map[string]int{}, nil, nil
	visit := func(info storagedriver.FileInfo) error {
		name := info.Path()
		if info.ModTime().Before(i.since) {
			return nil
		} else if m := storage.CurrentLink.FindStringSubmatch(name); m != nil {
			repository, _ := i.repository(m[1])
			tags = append(tags, RepositoryTag{repository, strings.Clone(m[2])})
			return nil
		}
		m := storage.NamedLink.FindStringSubmatch(name)
		if m == nil {
			return nil
		}
		repository, number := i.repository(m[1])
		what, tag := m[2], m[3]
		link := Damage{Repository: repository, Manifest: what == "_manifests/revisions"}
		d, ok := i.named(m[4], m[5], name, link)
		if !ok {
			return nil
		}
		link.Digest = d
		key := RepositoryDigest{repository, d}
		switch {
		case link.Manifest:
			i.Manifests = append(i.Manifests, StoredManifest{key, info.ModTime()})
			return i.resolve(ctx, link, name)
		case tag != "":
			i.History[key] = append(i.History[key], strings.Clone(tag))
		case what != "_layers":
			i.BackLinks[key] = append(i.BackLinks[key], path.Dir(name))
		case d.Algorithm() == digest.Canonical:
			i.links = append(i.links, blobLink{KeyOf(d), number, info.ModTime().UnixNano()})
		default:
			i.others = append(i.others, otherLink{d, path.Dir(name), info.ModTime()})
			return i.resolve(ctx, link, name)
		}
		return nil
	}
	for _, dir := range dirs {
		err = cmp.Or(err, storage.WalkFiles(ctx, i.Driver, dir, visit))
	}
	return tags, err
}

// named returns the digest that a file is named after. If it is invalid, the file is damaged.
func (i *Inventory) named(algorithm, encoded, name string, file Damage) (d digest.Digest, ok bool) {
	d = storage.PathDigest(algorithm, encoded)
	if ok = d.Validate() == nil; !ok {
		file.Path = name
		i.Damaged = append(i.Damaged, file)
	}
	return d, ok
}

// readTags reads what tags refer to.
func (i *Inventory) readTags(ctx context.Context, tags []RepositoryTag) error {
	return storage.InParallel(ctx, tags, storage.Concurrency, func(ctx context.Context, t RepositoryTag) error {
		what := Damage{Repository: t.Repository, Tag: t.Tag}
		return i.readLink(ctx, what, storage.TagPath(t.Repository, t.Tag), func(d digest.Digest) {
			key := RepositoryDigest{t.Repository, d}
			i.Tagged[key] = append(i.Tagged[key], t.Tag)
		})
	})
}

func (i *Inventory) readBlobs(ctx context.Context) error {
	return storage.WalkFiles(ctx, i.Driver, storage.BlobsPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.BlobData.FindStringSubmatch(name); m != nil {
			if d, ok := i.named(m[1], m[2], name, Damage{}); ok && d.Algorithm() == digest.Canonical {
				i.Blobs = append(i.Blobs, Blob{Key: KeyOf(d), Size: info.Size(), newest: info.ModTime().UnixNano()})
			}
		} else if m := storage.DigestLink.FindStringSubmatch(name); m != nil {
			if d, ok := i.named(m[1], m[2], name, Damage{}); ok {
				i.others = append(i.others, otherLink{d, path.Dir(name), info.ModTime()})
				return i.resolve(ctx, Damage{Digest: d}, name)
			}
		}
		return nil
	})
}

// resolve remembers the SHA-256 digest that the link of another digest contains.
func (i *Inventory) resolve(ctx context.Context, what Damage, link string) error {
	if what.Digest.Algorithm() == digest.Canonical {
		return nil // distribution resolves these by their name
	}
	return i.readLink(ctx, what, link, func(stored digest.Digest) {
		if stored != what.Digest {
			i.Canonical[what.Digest] = stored
		}
	})
}

// readLink calls use with the digest in a link, for one link at a time, unless it was just deleted or is damaged.
func (i *Inventory) readLink(ctx context.Context, what Damage, link string, use func(digest.Digest)) error {
	d, err := storage.ReadLink(ctx, i.Driver, link)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case errors.Is(err, distribution.ErrBlobUnknown):
		return nil
	case IsDamaged(err):
		i.Damaged = append(i.Damaged, what)
		return nil
	case err == nil:
		use(d)
	}
	return err
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

// Unclear are the repositories with damaged tags or manifests' links: each of their manifests may have a tag.
func (i *Inventory) Unclear() map[string]Damage {
	unclear := map[string]Damage{}
	for _, d := range i.Damaged {
		if d.Tag != "" || d.Manifest {
			unclear[d.Repository] = d
		}
	}
	return unclear
}

// Decode calls decode with the content of a manifest or a configuration. Few large ones are in memory at once.
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
