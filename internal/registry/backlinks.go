package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// A back link leads from a manifest to one that refers to it in the same repository: from a subject to its
// referrers, and from the manifests of an index to the index. Its path is
//
//	REPOSITORY/_referrers/ALGORITHM/SUBJECT/ALGORITHM/REFERRER/descriptor.json
//	REPOSITORY/_indexes/ALGORITHM/CHILD/ALGORITHM/INDEX/descriptor.json
//
// and its content the descriptor of the manifest that refers. A manifest's back links are written before its
// push is acknowledged. They are removed after the manifest: a back link counts only while the manifest
// exists, so one that remains after a crash does no harm, and garbage collection removes it.
//
// Earlier releases, and distribution itself, write no back links. At each start, the registry adds those of
// manifests that were pushed since it last did so (rebuild). Until it has finished, manifests are read instead.
const (
	referrerLinks = "_referrers"
	indexLinks    = "_indexes"
)

// storageConcurrency is how many files are read or written at once.
const storageConcurrency = 16

// described is what a manifest says about itself and others.
type described struct {
	mediaType, artifactType string
	annotations             map[string]string
	subject                 digest.Digest
	children                []digest.Digest // the manifests of an index
}

// describe returns an error if the content is not a manifest, or refers to something with an invalid digest.
func describe(content []byte) (described, error) {
	var m struct {
		MediaType    string            `json:"mediaType"`
		ArtifactType string            `json:"artifactType"`
		Config       *v1.Descriptor    `json:"config"`
		Manifests    []v1.Descriptor   `json:"manifests"`
		Subject      *v1.Descriptor    `json:"subject"`
		Annotations  map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(content, &m); err != nil {
		return described{}, err
	}
	d := described{mediaType: m.MediaType, artifactType: m.ArtifactType, annotations: m.Annotations}
	if d.artifactType == "" && m.Config != nil {
		d.artifactType = m.Config.MediaType
	}
	if m.Subject != nil {
		if err := m.Subject.Digest.Validate(); err != nil {
			return described{}, fmt.Errorf("subject %q: %w", m.Subject.Digest, err)
		}
		d.subject = m.Subject.Digest
	}
	for _, child := range m.Manifests {
		if err := child.Digest.Validate(); err != nil {
			return described{}, fmt.Errorf("manifest %q of the index: %w", child.Digest, err)
		}
		d.children = append(d.children, child.Digest)
	}
	return d, nil
}

// backLinkDir is the directory of the back links of a kind that begin at a manifest.
func backLinkDir(repository, kind string, from digest.Digest) string {
	return repositoriesPath + "/" + repository + "/" + kind + "/" + digestPath(from)
}

// backLinkPath is the path of a back link in such a directory.
func backLinkPath(links string, to digest.Digest) string {
	return links + "/" + digestPath(to) + "/descriptor.json"
}

// backLinks returns the paths of a manifest's back links, and their content.
func backLinks(repository string, manifest v1.Descriptor, content []byte) (paths []string, link []byte, err error) {
	m, err := describe(content)
	if err != nil {
		return nil, nil, err
	}
	manifest.MediaType = cmp.Or(manifest.MediaType, m.mediaType)
	if manifest.MediaType == "" { // optional in OCI manifests
		manifest.MediaType = v1.MediaTypeImageManifest
		if m.children != nil {
			manifest.MediaType = v1.MediaTypeImageIndex
		}
	}
	manifest.Size = int64(len(content))
	manifest.ArtifactType, manifest.Annotations = m.artifactType, m.annotations
	if link, err = json.Marshal(manifest); err != nil {
		return nil, nil, err
	}
	add := func(kind string, from digest.Digest) {
		paths = append(paths, backLinkPath(backLinkDir(repository, kind, from), manifest.Digest))
	}
	if m.subject != "" {
		add(referrerLinks, m.subject)
	}
	for _, child := range m.children {
		add(indexLinks, child)
	}
	slices.Sort(paths)
	return slices.Compact(paths), link, nil
}

// addBackLinks writes the back links to a manifest.
func (s *blobSource) addBackLinks(
	ctx context.Context, repository string, manifest v1.Descriptor, content []byte,
) error {
	paths, link, err := backLinks(repository, manifest, content)
	if err != nil {
		return err
	}
	return inParallel(ctx, paths, storageConcurrency, func(ctx context.Context, path string) error {
		return s.driver.PutContent(ctx, path, link)
	})
}

// removeBackLinks removes the back links to a manifest that was deleted.
func (s *blobSource) removeBackLinks(
	ctx context.Context, repository string, manifest v1.Descriptor, content []byte,
) error {
	paths, _, err := backLinks(repository, manifest, content)
	if err != nil {
		return nil //nolint:nilerr // a manifest of an earlier release, which has none
	}
	return inParallel(ctx, paths, storageConcurrency, func(ctx context.Context, name string) error {
		err := s.driver.Delete(ctx, path.Dir(name))
		if errors.As(err, new(storagedriver.PathNotFoundError)) {
			return nil
		}
		return err
	})
}

// referrersOf returns the descriptors of the manifests whose subject is given, ordered by digest.
func (s *blobSource) referrersOf(
	ctx context.Context, repository string, subject digest.Digest,
) ([]v1.Descriptor, error) {
	return s.referring(ctx, repository, referrerLinks, subject)
}

// indexesOf returns the digests of the indexes that contain a manifest.
func (s *blobSource) indexesOf(ctx context.Context, repository string, child digest.Digest) ([]digest.Digest, error) {
	indexes, err := s.referring(ctx, repository, indexLinks, child)
	var digests []digest.Digest
	for _, index := range indexes {
		digests = append(digests, index.Digest)
	}
	return digests, err
}

// referring returns the existing manifests that back links of a kind lead to.
func (s *blobSource) referring(
	ctx context.Context, repository, kind string, from digest.Digest,
) (found []v1.Descriptor, err error) {
	links := backLinkDir(repository, kind, from)
	candidates, read := links, s.readBackLink
	if !s.rebuilt.Load() {
		candidates, read = revisionsDir(repository), s.deriveBackLink
	}
	digests, err := s.listDigests(ctx, candidates)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	err = inParallel(ctx, digests, storageConcurrency, func(ctx context.Context, d digest.Digest) error {
		link, err := read(ctx, repository, links, d)
		if link == nil || err != nil {
			return err
		}
		var manifest v1.Descriptor
		if err := json.Unmarshal(link, &manifest); err != nil {
			return fmt.Errorf("back link from %s to %s: %w", links, d, err)
		}
		mu.Lock()
		defer mu.Unlock()
		found = append(found, manifest)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b v1.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
	return s.withoutTwins(ctx, repository, found)
}

// readBackLink returns the content of the back link to a manifest, or nil if the manifest does not exist.
func (s *blobSource) readBackLink(ctx context.Context, repository, links string, to digest.Digest) ([]byte, error) {
	if exists, err := s.exists(ctx, revisionPath(repository, to)); err != nil || !exists {
		return nil, err
	}
	content, err := s.driver.GetContent(ctx, backLinkPath(links, to))
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return nil, nil // the manifest was just deleted
	}
	return content, err
}

// deriveBackLink reads a manifest, and returns what the content of the back link to it would be, or nil if it would
// have none.
func (s *blobSource) deriveBackLink(ctx context.Context, repository, links string, to digest.Digest) ([]byte, error) {
	paths, link, err := s.backLinksOf(ctx, repository, to)
	if err != nil || !slices.Contains(paths, backLinkPath(links, to)) {
		return nil, err
	}
	return link, nil
}

// backLinksOf returns the back links of a stored manifest; none if it was deleted, or if it is not a manifest as this
// release understands it.
func (s *blobSource) backLinksOf(
	ctx context.Context, repository string, d digest.Digest,
) (paths []string, link []byte, err error) {
	content, err := s.manifestContent(ctx, repository, d)
	if errors.Is(err, errUnknownManifest) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	paths, link, err = backLinks(repository, v1.Descriptor{Digest: d}, content)
	if err != nil {
		s.log.Warn("manifest is not listed as a referrer", "repository", repository, "digest", d.String(), "error", err)
		return nil, nil, nil
	}
	return paths, link, nil
}

// withoutTwins removes SHA-256 digests of manifests that were pushed by another digest, which is also in the list.
func (s *blobSource) withoutTwins(
	ctx context.Context, repository string, manifests []v1.Descriptor,
) ([]v1.Descriptor, error) {
	twins := map[digest.Digest]bool{}
	for _, m := range manifests {
		if m.Digest.Algorithm() == digest.Canonical {
			continue
		}
		twin, err := s.readLink(ctx, revisionPath(repository, m.Digest))
		if errors.Is(err, distribution.ErrBlobUnknown) {
			continue // just deleted or garbage-collected
		}
		if err != nil {
			return nil, err
		}
		twins[twin] = true
	}
	return slices.DeleteFunc(manifests, func(m v1.Descriptor) bool { return twins[m.Digest] }), nil
}

// listDigests returns the digests that the directories ALGORITHM/HEX in dir stand for; none if it is missing.
func (s *blobSource) listDigests(ctx context.Context, dir string) (digests []digest.Digest, err error) {
	driver := ignoreMissing{s.driver}
	algorithms, err := driver.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, algorithm := range algorithms {
		names, err := driver.List(ctx, algorithm)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if d := pathDigest(path.Base(algorithm), path.Base(name)); d.Validate() == nil {
				digests = append(digests, d)
			}
		}
	}
	return digests, nil
}

// inParallel calls do for each item, for so many at once. It returns the first error.
func inParallel[T any](ctx context.Context, items []T, atOnce int, do func(context.Context, T) error) error {
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, item := range items {
		if running.Err() != nil {
			break
		}
		group.Go(func() error { return do(running, item) })
	}
	return cmp.Or(group.Wait(), ctx.Err())
}
