package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// inventory is what the storage holds, apart from unfinished uploads.
type contents struct {
	driver    storagedriver.StorageDriver
	manifests []storedManifest
	// tagged are the tags of manifests that have any.
	tagged map[repositoryDigest][]string
	// history are the paths of entries for manifests that tags referred to once.
	history map[repositoryDigest][]string
	// backLinks are the directories of back links to manifests, stored or not.
	backLinks map[repositoryDigest][]string
	// canonical are the SHA-256 digests of other digests.
	canonical map[digest.Digest]digest.Digest
	blobs     map[digest.Digest]*storedBlob // by SHA-256 digest
	order     []digest.Digest               // of blobs, as they were found
	// damagedTag is called for a tag whose link contains no digest. Without it, that is an error, because it is unknown
	// what the tag keeps.
	damagedTag func(repositoryTag)
}

type repositoryTag struct{ repository, tag string }

type repositoryDigest struct {
	repository string
	digest     digest.Digest
}

type storedManifest struct {
	repositoryDigest
	path   string
	pushed time.Time // last
}

type storedBlob struct {
	path string // its directory
	size int64
	// newest is when the blob was written, or last linked to a repository, be it by a mount.
	newest time.Time
	links  []string // directories in repositories
}

// young reports whether the grace period protects the blob.
func (b *storedBlob) young(cutoff time.Time) bool { return b.newest.After(cutoff) }

func (i *contents) read(ctx context.Context) error {
	i.tagged, i.history = map[repositoryDigest][]string{}, map[repositoryDigest][]string{}
	i.backLinks, i.canonical = map[repositoryDigest][]string{}, map[digest.Digest]digest.Digest{}
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
		if b := i.blobs[l.digest]; b != nil {
			b.links = append(b.links, l.path)
			if l.at.After(b.newest) {
				b.newest = l.at
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

func (i *contents) readRepositories(ctx context.Context) (links []blobLink, tags []repositoryTag, err error) {
	err = storage.WalkFiles(ctx, i.driver, storage.RepositoriesPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.RevisionLink.FindStringSubmatch(name); m != nil {
			d := storage.PathDigest(m[2], m[3])
			if _, err := i.resolve(ctx, d, name); err != nil {
				return err
			}
			i.manifests = append(i.manifests, storedManifest{repositoryDigest{m[1], d}, path.Dir(name), info.ModTime()})
		} else if m := storage.BackLink.FindStringSubmatch(name); m != nil {
			key := repositoryDigest{m[1], storage.PathDigest(m[2], m[3])}
			i.backLinks[key] = append(i.backLinks[key], path.Dir(name))
		} else if m := storage.HistoryLink.FindStringSubmatch(name); m != nil {
			key := repositoryDigest{m[1], storage.PathDigest(m[2], m[3])}
			i.history[key] = append(i.history[key], path.Dir(name))
		} else if m := storage.LayerLink.FindStringSubmatch(name); m != nil {
			stored, err := i.resolve(ctx, storage.PathDigest(m[2], m[3]), name)
			if err != nil {
				return err
			}
			links = append(links, blobLink{stored, path.Dir(name), info.ModTime()})
		} else if m := storage.CurrentLink.FindStringSubmatch(name); m != nil {
			tags = append(tags, repositoryTag{m[1], m[2]})
		}
		return nil
	})
	return links, tags, err
}

// readTags reads what tags refer to.
func (i *contents) readTags(ctx context.Context, tags []repositoryTag) error {
	var mu sync.Mutex
	return storage.InParallel(ctx, tags, storage.Concurrency, func(ctx context.Context, t repositoryTag) error {
		d, err := storage.ReadLink(ctx, i.driver, storage.TagPath(t.repository, t.tag))
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, distribution.ErrBlobUnknown):
			return nil // the tag was just deleted
		case i.damagedTag != nil && isDamaged(err):
			i.damagedTag(t)
			return nil
		case err != nil:
			return err
		}
		key := repositoryDigest{t.repository, d}
		i.tagged[key] = append(i.tagged[key], t.tag)
		return nil
	})
}

func (i *contents) readBlobs(ctx context.Context) (links []blobLink, err error) {
	i.blobs = map[digest.Digest]*storedBlob{}
	err = storage.WalkFiles(ctx, i.driver, storage.BlobsPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := storage.BlobData.FindStringSubmatch(name); m != nil {
			d := storage.PathDigest(m[1], m[2])
			i.blobs[d] = &storedBlob{path: path.Dir(name), size: info.Size(), newest: info.ModTime()}
			i.order = append(i.order, d)
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
func (i *contents) resolve(ctx context.Context, d digest.Digest, link string) (digest.Digest, error) {
	if d.Algorithm() == digest.Canonical {
		return d, nil
	}
	stored, err := storage.ReadLink(ctx, i.driver, link)
	if errors.Is(err, distribution.ErrBlobUnknown) {
		return d, nil // just deleted
	}
	if err == nil && stored != d {
		i.canonical[d] = stored
	}
	return stored, err
}

// stored returns the digest under which content is stored.
func (i *contents) stored(d digest.Digest) digest.Digest {
	if stored, ok := i.canonical[d]; ok {
		return stored
	}
	return d
}

// marking is what is needed of an inventory. All digests are those under which content is stored.
type marking struct {
	*contents
	references map[digest.Digest]references      // of the manifests
	referrers  map[digest.Digest][]digest.Digest // by subject
	keep       map[digest.Digest]bool
}

// mark keeps every manifest, or, if untagged manifests are removed, those pushed after cutoff, those that a tag or
// a kept index refers to, and those whose subject (in the OCI image specification) is kept; and everything that these
// refer to. It does not read manifests whose references are known.
func (i *contents) mark(
	ctx context.Context, untagged bool, cutoff time.Time, known map[digest.Digest]references,
) (*marking, error) {
	m := &marking{
		contents: i, references: map[digest.Digest]references{}, referrers: map[digest.Digest][]digest.Digest{},
		keep: map[digest.Digest]bool{},
	}
	var unknown []digest.Digest
	for _, manifest := range i.manifests {
		d := i.stored(manifest.digest)
		if _, done := m.references[d]; done || i.blobs[d] == nil { // a missing manifest refers to nothing
			continue
		}
		r, ok := known[d]
		if !ok {
			unknown = append(unknown, d)
		}
		m.references[d] = r
	}
	var mu sync.Mutex
	err := storage.InParallel(ctx, unknown, storage.Concurrency, func(ctx context.Context, d digest.Digest) error {
		r, err := i.readReferences(ctx, d)
		mu.Lock()
		defer mu.Unlock()
		m.references[d] = r
		return err
	})
	if err != nil {
		return nil, err
	}
	for d, r := range m.references {
		if r.subject != "" {
			subject := i.stored(r.subject)
			m.referrers[subject] = append(m.referrers[subject], d)
		}
	}
	for _, manifest := range i.manifests {
		if !untagged || i.tagged[manifest.repositoryDigest] != nil || manifest.pushed.After(cutoff) {
			m.add(manifest.digest)
		}
	}
	return m, nil
}

func (i *contents) readReferences(ctx context.Context, d digest.Digest) (references, error) {
	if ctx.Err() != nil {
		return references{}, context.Cause(ctx)
	}
	content, err := i.driver.GetContent(ctx, path.Join(i.blobs[d].path, "data"))
	if err != nil {
		return references{}, fmt.Errorf("reading manifest %s: %w", d, err)
	}
	r, err := parseReferences(content)
	if err != nil {
		return references{}, fmt.Errorf("manifest %s: %w: its references are unknown, so nothing is removed: "+
			"delete the manifest or push it again", d, err)
	}
	return r, nil
}

// add keeps content, everything that it needs, and what refers to it as its subject.
func (m *marking) add(digests ...digest.Digest) {
	queue := slices.Clone(digests)
	for len(queue) > 0 {
		d := m.stored(queue[len(queue)-1])
		queue = queue[:len(queue)-1]
		if m.keep[d] {
			continue
		}
		m.keep[d] = true
		queue = append(queue, m.referrers[d]...)
		queue = append(queue, m.references[d].needs...) // none of a layer, whatever its content
	}
}

// closure returns digests and all that they need, as manifests name them.
func (m *marking) closure(digests ...digest.Digest) (all []digest.Digest) {
	seen := map[digest.Digest]bool{}
	queue := slices.Clone(digests)
	for len(queue) > 0 {
		d := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if seen[d] {
			continue
		}
		seen[d] = true
		all = append(all, d)
		queue = append(queue, m.references[m.stored(d)].needs...)
	}
	return all
}

// strayLinks returns the back links to manifests that their repository does not have.
func (m *marking) strayLinks() map[repositoryDigest][]string {
	stray := maps.Clone(m.backLinks)
	for _, manifest := range m.manifests {
		delete(stray, manifest.repositoryDigest)
	}
	return stray
}

// condemn returns what may be removed: what is not kept and was not written or linked after cutoff.
func (m *marking) condemn(cutoff time.Time) garbageSet {
	list := garbageSet{}
	for _, manifest := range m.manifests {
		if d := m.stored(manifest.digest); !m.keep[d] {
			list[d] = struct{}{}
		}
	}
	for d, b := range m.blobs {
		if !m.keep[d] && !b.young(cutoff) {
			list[d] = struct{}{}
		}
	}
	for link := range m.strayLinks() {
		list[m.stored(link.digest)] = struct{}{}
	}
	for d, stored := range m.canonical { // as manifests may name it
		if list.has(stored) {
			list[d] = struct{}{}
		}
	}
	return list
}

// references are the digests in a manifest.
type references struct {
	needs   []digest.Digest
	subject digest.Digest
}

// parseReferences treats every digest in a manifest as needed, so that it also covers formats that it
// does not know. The exceptions are annotations, and the subject: a signature does not keep its image.
func parseReferences(content []byte) (references, error) {
	var manifest map[string]any
	if err := json.Unmarshal(content, &manifest); err != nil {
		return references{}, err
	}
	var r references
	if subject, ok := manifest["subject"].(map[string]any); ok {
		text, _ := subject["digest"].(string)
		d, err := digest.Parse(text)
		if err != nil {
			return references{}, fmt.Errorf("invalid subject %q: %w", text, err)
		}
		r.subject = d
		delete(manifest, "subject")
	}
	var visit func(any)
	visit = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				if key != "annotations" {
					visit(inner)
				}
			}
		case []any:
			for _, inner := range value {
				visit(inner)
			}
		case string:
			if d, err := digest.Parse(value); err == nil {
				r.needs = append(r.needs, d)
			}
		}
	}
	visit(manifest)
	return r, nil
}
