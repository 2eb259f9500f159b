package content

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// A back link leads from a manifest to one that refers to it in the same repository: from a subject to its
// referrers, and from the manifests of an index to the index. Its path is
//
//	REPOSITORY/_referrers/ALGORITHM/SUBJECT/ALGORITHM/REFERRER/descriptor.json
//	REPOSITORY/_indexes/ALGORITHM/CHILD/ALGORITHM/INDEX/descriptor.json
//
// and its content the descriptor of the manifest that refers, with annotations only in a link to a referrer and only
// if they are small: they are as large as a client likes, an index has thousands of back links, and lists of referrers
// are read by everyone. A manifest's back links are written before it, and removed after it: a back link counts only
// while the manifest exists, so one that remains after a crash does no harm, and garbage collection removes it.
//
// Distribution itself writes no back links. At each start, the registry adds those of manifests that were pushed since
// it last did so (rebuild). Until it has finished, lists of referrers are made from manifests, and conditional
// deletions wait.
const (
	referrerLinks = "_referrers"
	indexLinks    = "_indexes"
)

// maxLink is the maximum size of a back link, in bytes.
const maxLink = 64 << 10

// backReference is the content of a back link.
type backReference struct {
	v1.Descriptor
	// Incomplete means that the annotations are too large for a link: they are in the manifest.
	Incomplete bool `json:"incomplete,omitempty"`
}

// backLinkDir is the directory of the back links of a kind, of which each manifest has a directory where they begin.
func backLinkDir(repository, kind string) string {
	return storage.RepositoriesPath + "/" + repository + "/" + kind
}

// backLinkPath is the path of a back link in the directory of a manifest.
func backLinkPath(links string, to digest.Digest) string {
	return links + "/" + storage.DigestPath(to) + "/descriptor.json"
}

// BackLinks are all back links to a manifest.
type BackLinks []storedLink

// storedLink is a back link with its path.
type storedLink struct {
	path    string
	content []byte
}

// BackLinks returns the back links to the manifest under a name, which is one of its digests.
func (d Described) BackLinks(repository string, name digest.Digest) (links BackLinks) {
	manifest := v1.Descriptor{MediaType: d.Type(), Digest: name, Size: d.size, ArtifactType: d.ArtifactType}
	add := func(kind string, from digest.Digest, link []byte) {
		dir := backLinkDir(repository, kind) + "/" + storage.DigestPath(from)
		links = append(links, storedLink{backLinkPath(dir, name), link})
	}
	link, _ := json.Marshal(backReference{Descriptor: manifest}) // of texts only
	for _, child := range d.Manifests {
		add(indexLinks, child.Digest, link)
	}
	if d.Subject != nil {
		manifest.Annotations = d.Annotations
		if link, _ = json.Marshal(backReference{Descriptor: manifest}); len(link) > maxLink {
			manifest.Annotations = nil
			link, _ = json.Marshal(backReference{Descriptor: manifest, Incomplete: true})
		}
		add(referrerLinks, d.Subject.Digest, link)
	}
	slices.SortFunc(links, func(a, b storedLink) int { return cmp.Compare(a.path, b.path) })
	return slices.CompactFunc(links, func(a, b storedLink) bool { return a.path == b.path })
}

// Size returns how many bytes the links have, and how many they occupy on most file systems.
func (l BackLinks) Size() (written, occupied int64) {
	for _, link := range l {
		written += int64(len(link.content))
		occupied += max(int64(len(link.content)), blockSize)
	}
	return written, occupied
}

// Dirs returns the directories of the links.
func (l BackLinks) Dirs() (dirs []string) {
	for _, link := range l {
		dirs = append(dirs, path.Dir(link.path))
	}
	return dirs
}

// AddBackLinks writes links.
func (s *Store) AddBackLinks(ctx context.Context, links BackLinks) error {
	return storage.InParallel(ctx, links, storage.Concurrency, func(ctx context.Context, link storedLink) error {
		return s.Driver.PutContent(ctx, link.path, link.content)
	})
}

// HasAll reports whether a repository has a manifest under all of these digests, and such back links.
func (s *Store) HasAll(ctx context.Context, repository string, names []digest.Digest, links BackLinks) (bool, error) {
	all := slices.Clone(links)
	for _, d := range names {
		all = append(all, storedLink{path: storage.RevisionPath(repository, d)})
	}
	found, err := storage.InOrder(ctx, all, storage.Concurrency,
		func(ctx context.Context, link storedLink) (bool, error) { return s.Exists(ctx, link.path) })
	return !slices.Contains(found, false), err
}

// candidates returns the digests after last in a directory of a repository, ordered, without SHA-256 digests of
// manifests that were pushed by another digest, which is also there.
func (s *Store) candidates(ctx context.Context, repository, dir string, last digest.Digest) ([]digest.Digest, error) {
	digests, err := storage.ListDigests(ctx, s.Driver, dir)
	if err != nil {
		return nil, err
	}
	aliases, err := storage.InOrder(ctx, digests, storage.Concurrency,
		func(ctx context.Context, d digest.Digest) (alias digest.Digest, err error) {
			if d.Algorithm() != digest.Canonical {
				alias, err = s.ReadLink(ctx, storage.RevisionPath(repository, d))
			}
			if IsMissing(err) {
				err = nil // just deleted or garbage-collected, or to be pushed again
			}
			return alias, err
		})
	slices.Sort(digests)
	slices.Sort(aliases)
	return slices.DeleteFunc(digests, func(d digest.Digest) bool {
		_, found := slices.BinarySearch(aliases, d)
		return found || d <= last
	}), err
}

// readBackLink returns a back link to a manifest, or nil if it does not exist. Before the first rebuild, it derives the
// link from the manifest.
func (s *Store) readBackLink(
	ctx context.Context, repository, path string, to digest.Digest, rebuilt bool,
) (*backReference, error) {
	if exists, err := s.Exists(ctx, storage.RevisionPath(repository, to)); err != nil || !exists {
		return nil, err
	}
	var content []byte
	var err error
	if rebuilt {
		content, err = s.readFile(ctx, path, maxLink)
	} else {
		var links BackLinks
		links, err = s.BackLinksOf(ctx, repository, to)
		if i := slices.IndexFunc(links, func(link storedLink) bool { return link.path == path }); i >= 0 {
			content = links[i].content
		}
	}
	if errors.Is(err, distribution.ErrBlobUnknown) || err == nil && content == nil {
		return nil, nil // the manifest was just deleted, or has no such link
	}
	if err != nil {
		return nil, err
	}
	link := new(backReference)
	if err := json.Unmarshal(content, link); err != nil {
		return nil, fmt.Errorf("back link %s: %w", path, err)
	}
	return link, nil
}

// complete adds the annotations to an incomplete back link. They are large: one request reads them at a time.
func (s *Store) complete(ctx context.Context, repository string, link *backReference) error {
	s.completing.Lock()
	defer s.completing.Unlock()
	content, err := s.Unverified(ctx, repository, link.Digest)
	if err != nil {
		return err
	}
	m, err := Describe(content)
	link.Annotations = m.Annotations
	return err
}

// BackLinksOf returns the back links to a stored manifest; none if it was deleted, if its link is damaged, or if it is
// not a manifest as this release understands it. It does not ask whether the repository has a manifest with a SHA-256
// digest, which tells where its content is. Few large manifests are in memory at once.
func (s *Store) BackLinksOf(ctx context.Context, repository string, d digest.Digest) (BackLinks, error) {
	stored, err := d, error(nil)
	if d.Algorithm() != digest.Canonical {
		stored, err = s.ReadLink(ctx, storage.RevisionPath(repository, d))
	}
	var reader io.ReadCloser
	if err == nil {
		reader, err = s.open(ctx, storage.BlobPath(stored))
	}
	if IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	content, done, err := Receive(ctx, reader)
	if err != nil {
		return nil, err
	}
	defer done()
	m, err := Describe(content)
	if err != nil {
		s.Log.Warn("manifest has no back links", "repository", repository, "digest", d.String(), "error", err)
	}
	return m.BackLinks(repository, d), nil
}

// MaxReferrers is the default and the maximum of descriptors in a response. A response also has at most
// oci.MaxManifestSize bytes, unless it has only one descriptor, because clients read it as a manifest.
const MaxReferrers = 1000

// Referrers returns the referrers of a subject after last, ordered by digest, and whether there are more.
func (s *Store) Referrers(
	ctx context.Context, repository string, subject digest.Digest, artifactType string, last digest.Digest, limit int,
) (page []v1.Descriptor, more bool, err error) {
	links, rebuilt := backLinkDir(repository, referrerLinks)+"/"+storage.DigestPath(subject), s.Rebuilt.Load()
	dir := links
	if !rebuilt {
		dir = storage.RevisionsDir(repository)
	}
	digests, err := s.candidates(ctx, repository, dir, last)
	if err != nil {
		return nil, false, err
	}
	page = []v1.Descriptor{}
	size := 0
	for batch := range slices.Chunk(digests, storage.Concurrency) {
		read, err := storage.InOrder(ctx, batch, storage.Concurrency,
			func(ctx context.Context, d digest.Digest) (*backReference, error) {
				return s.readBackLink(ctx, repository, backLinkPath(links, d), d, rebuilt)
			})
		if err != nil {
			return nil, false, err
		}
		for _, link := range read {
			if link == nil || artifactType != "" && link.ArtifactType != artifactType {
				continue
			}
			if len(page) == limit {
				return page, true, nil
			}
			if link.Incomplete {
				if err := s.complete(ctx, repository, link); errors.Is(err, distribution.ErrBlobUnknown) {
					continue // just deleted
				} else if err != nil {
					return nil, false, err
				}
			}
			encoded, _ := json.Marshal(link.Descriptor) // was decoded
			size += len(encoded) + 1
			if len(page) > 0 && size > oci.MaxManifestSize-1024 { // the rest of the index
				return page, true, nil
			}
			page = append(page, link.Descriptor)
		}
	}
	return page, false, nil
}

// blockSize is what a small file occupies on most file systems, in bytes.
const blockSize = 4 << 10
