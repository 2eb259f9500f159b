package collect

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// references are what a manifest needs, and its subject, if that is not the zero value.
type references struct {
	needs   []content.Key
	subject content.Key
}

// marks are what is needed of an inventory. Content is what is stored under a SHA-256 digest: other digests stand for
// that, and those that stand for nothing are needed by nobody.
type marks struct {
	*content.Inventory
	references map[content.Key]references    // of the manifests
	referrers  map[content.Key][]content.Key // by subject
	// others are manifests whose content is missing, and whether they are kept.
	others map[content.Key]bool
}

// mark keeps every manifest, or, if untagged manifests are removed, those pushed after cutoff, those that a tag or
// a kept index refers to, and those whose subject (in the OCI image specification) is kept; and everything that these
// refer to. Where a tag is damaged, every manifest may have it. It does not read manifests whose references are known.
func mark(
	ctx context.Context, i *content.Inventory, untagged bool, cutoff time.Time, known map[content.Key]references,
) (*marks, error) {
	m := &marks{
		Inventory: i, references: map[content.Key]references{}, referrers: map[content.Key][]content.Key{},
		others: map[content.Key]bool{},
	}
	var unknown []*content.Blob
	for _, manifest := range i.Manifests {
		b := i.Blob(manifest.Digest)
		if b == nil { // a missing manifest refers to nothing
			m.others[content.KeyOf(i.Stored(manifest.Digest))] = false
			continue
		}
		if _, done := m.references[b.Key]; done {
			continue
		}
		r, ok := known[b.Key]
		if !ok {
			unknown = append(unknown, b)
		}
		m.references[b.Key] = r
	}
	for link := range i.BackLinks {
		if i.Blob(link.Digest) == nil {
			m.others[content.KeyOf(i.Stored(link.Digest))] = false
		}
	}
	var mu sync.Mutex
	err := storage.InParallel(ctx, unknown, storage.Concurrency, func(ctx context.Context, b *content.Blob) error {
		r, err := readReferences(ctx, i, b.Digest())
		mu.Lock()
		defer mu.Unlock()
		m.references[b.Key] = r
		return err
	})
	if err != nil {
		return nil, err
	}
	for k, r := range m.references {
		if r.subject != (content.Key{}) {
			m.referrers[r.subject] = append(m.referrers[r.subject], k)
		}
	}
	unclear := i.Unclear()
	for _, manifest := range i.Manifests {
		_, unknown := unclear[manifest.Repository]
		if !untagged || unknown || i.Tagged[manifest.RepositoryDigest] != nil || manifest.Pushed.After(cutoff) {
			m.add(manifest.Digest)
		}
	}
	return m, nil
}

func readReferences(ctx context.Context, i *content.Inventory, d digest.Digest) (references, error) {
	var parsed content.References
	err := i.Decode(ctx, d, func(data []byte) (err error) {
		if parsed, err = content.ParseReferences(data); err != nil {
			err = fmt.Errorf("%w: its references are unknown, so nothing is removed: delete the manifest or push it again", err)
		}
		return err
	})
	if err != nil {
		return references{}, fmt.Errorf("reading manifest %s: %w", d, err)
	}
	var r references
	for _, needed := range parsed.Needs {
		r.needs = append(r.needs, content.KeyOf(i.Stored(needed)))
	}
	if parsed.Subject != "" {
		r.subject = content.KeyOf(i.Stored(parsed.Subject))
	}
	return r, nil
}

// kept reports whether content is needed.
func (m *marks) kept(d digest.Digest) bool {
	if b := m.Blob(d); b != nil {
		return b.Keep
	}
	return m.others[content.KeyOf(m.Stored(d))]
}

// add keeps content, everything that it needs, and what refers to it as its subject.
func (m *marks) add(digests ...digest.Digest) {
	for _, d := range digests {
		m.addKey(content.KeyOf(m.Stored(d)))
	}
}

func (m *marks) addKey(k content.Key) {
	for queue := []content.Key{k}; len(queue) > 0; {
		k := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		b := m.Find(k)
		switch {
		case b == nil:
			if kept, exists := m.others[k]; !exists || kept {
				continue // nothing of it is stored
			}
			m.others[k] = true
		case b.Keep:
			continue
		default:
			b.Keep = true
		}
		queue = append(queue, m.referrers[k]...)
		queue = append(queue, m.references[k].needs...) // none of a layer, whatever its content
	}
}

// closure returns digests and all that they need.
func (m *marks) closure(digests ...digest.Digest) (all []digest.Digest) {
	seen := map[digest.Digest]bool{}
	queue := append([]digest.Digest{}, digests...)
	for len(queue) > 0 {
		d := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if seen[d] {
			continue
		}
		seen[d] = true
		all = append(all, d)
		for _, needed := range m.references[content.KeyOf(m.Stored(d))].needs {
			queue = append(queue, needed.Digest())
		}
	}
	return all
}

// strayLinks returns the back links to manifests that their repository does not have.
func (m *marks) strayLinks() map[content.RepositoryDigest][]string {
	stray := maps.Clone(m.BackLinks)
	for _, manifest := range m.Manifests {
		delete(stray, manifest.RepositoryDigest)
	}
	return stray
}

// condemn returns what may be removed: what is not kept and was not written or linked after cutoff.
func (m *marks) condemn(cutoff time.Time) garbageSet {
	list := garbageSet{}
	for _, manifest := range m.Manifests {
		if !m.kept(manifest.Digest) {
			list[m.Stored(manifest.Digest)] = struct{}{}
		}
	}
	for n := range m.Blobs {
		if b := &m.Blobs[n]; !b.Keep && !b.Young(cutoff) {
			list[b.Digest()] = struct{}{}
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
