package collect

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// marking is what is needed of an inventory. All digests are those under which content is stored.
type marking struct {
	*content.Inventory
	references map[digest.Digest]content.References // of the manifests
	referrers  map[digest.Digest][]digest.Digest    // by subject
	keep       map[digest.Digest]bool
}

// mark keeps every manifest, or, if untagged manifests are removed, those pushed after cutoff, those that a tag or
// a kept index refers to, and those whose subject (in the OCI image specification) is kept; and everything that these
// refer to. It does not read manifests whose references are known.
func mark(
	ctx context.Context, i *content.Inventory, untagged bool, cutoff time.Time, known map[digest.Digest]content.References,
) (*marking, error) {
	m := &marking{
		Inventory: i, references: map[digest.Digest]content.References{}, referrers: map[digest.Digest][]digest.Digest{},
		keep: map[digest.Digest]bool{},
	}
	var unknown []digest.Digest
	for _, manifest := range i.Manifests {
		d := i.Stored(manifest.Digest)
		if _, done := m.references[d]; done || i.Blobs[d] == nil { // a missing manifest refers to nothing
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
		r, err := readReferences(ctx, i, d)
		mu.Lock()
		defer mu.Unlock()
		m.references[d] = r
		return err
	})
	if err != nil {
		return nil, err
	}
	for d, r := range m.references {
		if r.Subject != "" {
			subject := i.Stored(r.Subject)
			m.referrers[subject] = append(m.referrers[subject], d)
		}
	}
	for _, manifest := range i.Manifests {
		if !untagged || i.Tagged[manifest.RepositoryDigest] != nil || manifest.Pushed.After(cutoff) {
			m.add(manifest.Digest)
		}
	}
	return m, nil
}

func readReferences(ctx context.Context, i *content.Inventory, d digest.Digest) (content.References, error) {
	if ctx.Err() != nil {
		return content.References{}, context.Cause(ctx)
	}
	data, err := i.Driver.GetContent(ctx, path.Join(i.Blobs[d].Path, "data"))
	if err != nil {
		return content.References{}, fmt.Errorf("reading manifest %s: %w", d, err)
	}
	r, err := content.ParseReferences(data)
	if err != nil {
		return content.References{}, fmt.Errorf("manifest %s: %w: its references are unknown, so nothing is removed: "+
			"delete the manifest or push it again", d, err)
	}
	return r, nil
}

// add keeps content, everything that it needs, and what refers to it as its subject.
func (m *marking) add(digests ...digest.Digest) {
	queue := slices.Clone(digests)
	for len(queue) > 0 {
		d := m.Stored(queue[len(queue)-1])
		queue = queue[:len(queue)-1]
		if m.keep[d] {
			continue
		}
		m.keep[d] = true
		queue = append(queue, m.referrers[d]...)
		queue = append(queue, m.references[d].Needs...) // none of a layer, whatever its content
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
		queue = append(queue, m.references[m.Stored(d)].Needs...)
	}
	return all
}

// strayLinks returns the back links to manifests that their repository does not have.
func (m *marking) strayLinks() map[content.RepositoryDigest][]string {
	stray := maps.Clone(m.BackLinks)
	for _, manifest := range m.Manifests {
		delete(stray, manifest.RepositoryDigest)
	}
	return stray
}

// condemn returns what may be removed: what is not kept and was not written or linked after cutoff.
func (m *marking) condemn(cutoff time.Time) garbageSet {
	list := garbageSet{}
	for _, manifest := range m.Manifests {
		if d := m.Stored(manifest.Digest); !m.keep[d] {
			list[d] = struct{}{}
		}
	}
	for d, b := range m.Blobs {
		if !m.keep[d] && !b.Young(cutoff) {
			list[d] = struct{}{}
		}
	}
	for link := range m.strayLinks() {
		list[m.Stored(link.Digest)] = struct{}{}
	}
	for d, stored := range m.Canonical { // as manifests may name it
		if list.has(stored) {
			list[d] = struct{}{}
		}
	}
	return list
}
