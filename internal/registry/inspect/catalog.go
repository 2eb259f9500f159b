// Package inspect answers what zarf-registry asks about the whole storage: its catalog, how full it is, which blobs it
// lacks, and whether everything in it is intact.
//
// It removes nothing: damage is marked, so that clients push again.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// batchBytes is how much of a catalog is sent at once.
const batchBytes = 4 << 10

// Catalog serves the catalog of a store, one request at a time. Root is the directory of a filesystem, or "".
func Catalog(store *content.Store, root string, draining *atomic.Bool) http.Handler {
	reading := make(chan struct{}, 1)
	return request.Methods("requests for the catalog", func(w http.ResponseWriter, r *http.Request) {
		if caller := request.CallerOf(r.Context()); caller == nil || !slices.Contains(caller.Roles, pki.OrganizationPush) {
			request.WriteError(w,
				request.Denied("the catalog needs a client certificate with the role %q", pki.OrganizationPush))
			return
		}
		request.Stream(r.Context(), draining, w, nil, func(ctx context.Context, send func(any)) {
			select {
			case reading <- struct{}{}:
				defer func() { <-reading }()
			case <-ctx.Done():
				return
			}
			sendCatalog(ctx, store, root, send)
		})
	}, http.MethodGet)
}

func sendCatalog(ctx context.Context, store *content.Store, root string, send func(any)) {
	var lines bytes.Buffer // whole ones, because empty lines may come in between
	encoder := json.NewEncoder(&lines)
	flush := func() {
		send(bytes.Clone(lines.Bytes()))
		lines.Reset()
	}
	began, err := storage.Now(ctx, store.Driver, root)
	if err != nil { // the storage is full or read-only
		began = time.Now()
	}
	last := catalog.Event{End: &began}
	var invalid error
	err = readCatalog(ctx, &content.Inventory{Driver: store.Driver}, func(e catalog.Event) {
		invalid = cmp.Or(invalid, encoder.Encode(e))
		if lines.Len() >= batchBytes {
			flush()
		}
	})
	if err = cmp.Or(err, invalid); err != nil {
		store.Log.Error("reading the catalog failed", "error", err)
		last = catalog.Event{Error: err.Error()}
	}
	_ = encoder.Encode(last) // a buffer does not fail
	flush()
}

// readCatalog calls report for damage, all blobs and then all manifests, ordered by repository and digest.
func readCatalog(ctx context.Context, stored *content.Inventory, report func(catalog.Event)) error {
	if err := stored.Read(ctx); err != nil {
		return fmt.Errorf("reading the storage: %w", err)
	}
	for _, d := range stored.Damaged {
		report(catalog.Event{Problem: d.String()})
	}
	for n := range stored.Blobs {
		b := &stored.Blobs[n]
		report(catalog.Event{Blob: &catalog.Blob{Digest: b.Digest(), Size: b.Size, Written: b.Newest()}})
	}
	manifests := map[content.RepositoryDigest]*catalog.Manifest{} // by the SHA-256 digest
	for _, m := range stored.Manifests {
		key := content.RepositoryDigest{Repository: m.Repository, Digest: stored.Stored(m.Digest)}
		listed := manifests[key]
		if listed == nil {
			listed = &catalog.Manifest{Repository: m.Repository, Digest: key.Digest}
			manifests[key] = listed
		}
		if m.Digest != key.Digest {
			listed.Aliases = append(listed.Aliases, m.Digest)
		}
		if m.Pushed.After(listed.Pushed) {
			listed.Pushed = m.Pushed
		}
		listed.Tags = append(listed.Tags, stored.Tagged[m.RepositoryDigest]...)
	}
	list := slices.SortedFunc(maps.Values(manifests), func(a, b *catalog.Manifest) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Digest, b.Digest))
	})
	clear(manifests)
	unclear := stored.Unclear()
	// What manifests say is in memory for a few of them.
	for batch := range slices.Chunk(list, 16*storage.Concurrency) {
		err := storage.InParallel(ctx, batch, storage.Concurrency, func(ctx context.Context, m *catalog.Manifest) error {
			described := *m
			if err := describeManifest(ctx, stored, &described); err != nil {
				m.Problem = err.Error()
			} else {
				*m = described
			}
			return context.Cause(ctx)
		})
		if err != nil {
			return err
		}
		for _, m := range batch {
			slices.Sort(m.Tags)
			if d, unknown := unclear[m.Repository]; unknown && len(m.Tags) == 0 {
				m.Problem = cmp.Or(m.Problem, "it may have a tag: "+d.String())
			}
			report(catalog.Event{Manifest: m})
			*m = catalog.Manifest{}
		}
	}
	return nil
}

// predicateAnnotations name the type of an in-toto statement: BuildKit's at a layer, Sigstore's at the manifest.
// https://github.com/moby/buildkit/blob/v0.20.0/docs/attestations/attestation-storage.md
// https://github.com/sigstore/cosign/blob/v2.4.3/specs/BUNDLE_SPEC.md
var predicateAnnotations = []string{"in-toto.io/predicate-type", "predicateType", "dev.sigstore.bundle.predicateType"}

// describeManifest adds what the content of a manifest says.
func describeManifest(ctx context.Context, i *content.Inventory, m *catalog.Manifest) error {
	var described content.Described
	err := i.Decode(ctx, m.Digest, func(data []byte) (err error) {
		described, err = content.Describe(data)
		return err
	})
	if err != nil {
		return err
	}
	m.MediaType, m.ArtifactType = described.MediaType, described.ArtifactType
	if described.Subject != nil {
		m.Subject = i.Stored(described.Subject.Digest)
	}
	for _, needed := range described.Needs {
		m.Needs = append(m.Needs, i.Stored(needed))
	}
	slices.Sort(m.Needs)
	m.Needs = slices.Compact(m.Needs)
	addPredicate := func(annotations map[string]string) {
		for _, key := range predicateAnnotations {
			if p := annotations[key]; p != "" && !slices.Contains(m.Predicates, p) {
				m.Predicates = append(m.Predicates, p)
			}
		}
	}
	addPredicate(described.Annotations)
	for _, layer := range described.Layers {
		addPredicate(layer.Annotations)
	}
	all := []v1.Platform{{}}
	if c := described.Config; c != nil && oci.IsConfig(c.MediaType) {
		err := i.Decode(ctx, c.Digest, func(data []byte) error { return json.Unmarshal(data, &all[0]) })
		if err != nil {
			return fmt.Errorf("its configuration: %w", err)
		}
	}
	for _, child := range described.Manifests {
		if child.Platform != nil {
			all = append(all, *child.Platform)
		}
	}
	for _, p := range all {
		if p.OS == "" || p.OS == "unknown" { // that of an attestation
			continue
		}
		if text := platforms.Format(platforms.Normalize(p)); !slices.Contains(m.Platforms, text) {
			m.Platforms = append(m.Platforms, text)
		}
	}
	return nil
}
