package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// scrubRun is one scrub.
type scrubRun struct {
	*Scrubber
	content.Inventory
	pace     *pace
	progress func(*scrub.Progress)
	report   func(scrub.Problem)

	record   scrubRecord
	result   scrub.Result
	problems []scrub.Problem

	mu sync.Mutex
	// parents are the manifests that need content, in each repository; missing is what lacks a link there.
	parents   map[content.RepositoryDigest][]digest.Digest
	revisions map[content.RepositoryDigest]bool // the manifests of repositories
	missing   map[content.RepositoryDigest]bool
	// checked are the manifests that were compared with their digest, and whether they have it.
	checked map[digest.Digest]bool
}

func (r *scrubRun) all(ctx context.Context) error {
	var damagedTags []content.RepositoryTag
	r.DamagedTag = func(tag content.RepositoryTag) { damagedTags = append(damagedTags, tag) }
	if err := r.Read(ctx); err != nil {
		return fmt.Errorf("reading the storage: %w", err)
	}
	for _, tag := range damagedTags {
		r.found(scrub.Problem{Kind: scrub.Damaged, Images: []scrub.Image{{Repository: tag.Repository, Tag: tag.Tag}}})
	}
	for _, m := range r.Manifests {
		r.revisions[m.RepositoryDigest] = true
	}
	if err := r.readManifests(ctx); err != nil {
		return err
	}
	if err := r.readBlobs(ctx); err != nil {
		return err
	}
	if err := r.reportMissing(ctx); err != nil {
		return err
	}
	r.record.Last, r.record.Finished, r.record.Problems = "", time.Now().UTC(), r.problems
	r.result.Problems = len(r.problems)
	if len(r.problems) > maxScrubProblems {
		r.record.Problems = r.problems[:maxScrubProblems]
	}
	r.last.Store(&r.record)
	return r.save(ctx)
}

// readManifests compares manifests with their digests, and finds out what they need.
func (r *scrubRun) readManifests(ctx context.Context) error {
	return storage.InParallel(ctx, r.Manifests, storage.ManifestConcurrency, r.readManifest)
}

func (r *scrubRun) readManifest(ctx context.Context, m content.StoredManifest) error {
	stored := r.Stored(m.Digest)
	_, err := r.source.ReadLink(ctx, storage.RevisionPath(m.Repository, m.Digest))
	switch {
	case r.Blobs[stored] == nil, content.IsDamaged(err):
		r.lacks(m.RepositoryDigest, m.Digest)
		return nil
	case err != nil && !errors.Is(err, distribution.ErrBlobUnknown):
		return err
	}
	data, err := r.source.ReadBlob(ctx, stored, oci.MaxManifestSize)
	if errors.Is(err, fs.ErrNotExist) {
		r.lacks(m.RepositoryDigest, m.Digest)
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.pace.wait(ctx, int64(len(data))); err != nil {
		return err
	}
	intact := stored.Algorithm().FromBytes(data) == stored
	r.mu.Lock()
	r.checked[stored] = intact
	r.mu.Unlock()
	if !intact {
		return nil
	}
	described, err := content.Describe(data)
	if err != nil {
		return nil //nolint:nilerr // not a manifest as this registry understands it
	}
	for _, blob := range described.Blobs {
		if err := r.needs(ctx, m.RepositoryDigest, blob, storage.LayerPath(m.Repository, blob.Digest)); err != nil {
			return err
		}
	}
	for _, child := range described.Children {
		if err := r.needs(ctx, m.RepositoryDigest, child, storage.RevisionPath(m.Repository, child.Digest)); err != nil {
			return err
		}
	}
	return nil
}

// needs records that a manifest needs content, to which the repository has a link.
func (r *scrubRun) needs(ctx context.Context, m content.RepositoryDigest, needed v1.Descriptor, link string) error {
	if oci.IsNonDistributable(needed.MediaType) {
		return nil
	}
	stored, err := r.source.ReadLink(ctx, link)
	switch {
	case errors.Is(err, distribution.ErrBlobUnknown), content.IsDamaged(err):
		r.lacks(content.RepositoryDigest{Repository: m.Repository, Digest: needed.Digest}, m.Digest)
		return nil
	case err != nil:
		return err
	}
	key := content.RepositoryDigest{Repository: m.Repository, Digest: stored}
	r.mu.Lock()
	r.parents[key] = append(r.parents[key], m.Digest)
	r.mu.Unlock()
	if r.Blobs[stored] == nil {
		r.lacks(key, m.Digest)
	}
	return nil
}

// lacks records that a repository does not have content that a manifest needs.
func (r *scrubRun) lacks(what content.RepositoryDigest, manifest digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing[what] = true
	if manifest != what.Digest {
		r.parents[what] = append(r.parents[what], manifest)
	}
}

// readBlobs reads the blobs that were not read before an interruption.
func (r *scrubRun) readBlobs(ctx context.Context) error {
	order := slices.Sorted(slices.Values(r.Order))
	progress := scrub.Progress{}
	for _, d := range order {
		progress.Total += r.Blobs[d].Size
	}
	saved := time.Now()
	for _, d := range order {
		intact, known := r.checked[d]
		var err error
		switch {
		case known:
		case d <= r.record.Last:
			_, _, err = r.source.Size(ctx, d)
			intact = err == nil
		default:
			intact, err = content.Examine(ctx, r.Driver, d, func(data io.Reader) io.Reader {
				return pacedReader{ctx, data, r.pace, func(n int) {
					progress.Bytes += int64(n)
					r.progress(new(progress))
				}}
			})
			progress.Bytes -= r.Blobs[d].Size // counted below
		}
		progress.Bytes += r.Blobs[d].Size
		r.progress(new(progress))
		if err == nil || errors.Is(err, distribution.ErrBlobUnknown) {
			if !intact && r.exists(ctx, d) {
				r.found(scrub.Problem{Kind: scrub.Damaged, Digest: d, Images: r.imagesNeeding(d)})
			}
		} else {
			return poll.Cause(ctx, errors.Join(fmt.Errorf("reading %s: %w", d, err), r.save(ctx)))
		}
		r.result.Blobs++
		r.result.Bytes += r.Blobs[d].Size
		if d > r.record.Last {
			r.record.Last = d
		}
		if time.Since(saved) > scrubSavePeriod {
			saved = time.Now()
			if err := r.save(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// exists reports whether a blob has not been removed since the inventory was read.
func (r *scrubRun) exists(ctx context.Context, d digest.Digest) bool {
	found, err := r.source.Exists(ctx, storage.BlobPath(d))
	return found || err != nil
}

// imagesNeeding returns the images that need stored content.
func (r *scrubRun) imagesNeeding(d digest.Digest) []scrub.Image {
	in := map[string]bool{}
	for key := range r.parents {
		if key.Digest == d {
			in[key.Repository] = true
		}
	}
	for _, m := range r.Manifests {
		if r.Stored(m.Digest) == d {
			in[m.Repository] = true
		}
	}
	images := []scrub.Image{}
	for repository := range in {
		images = append(images, r.images(content.RepositoryDigest{Repository: repository, Digest: d})...)
	}
	return sorted(images)
}

// sorted returns each image once.
func sorted(images []scrub.Image) []scrub.Image {
	slices.SortFunc(images, func(a, b scrub.Image) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(images)
}

// images returns the images of a repository that need content: tags, and manifests to which nothing refers.
func (r *scrubRun) images(what content.RepositoryDigest) []scrub.Image {
	images := []scrub.Image{}
	seen := map[digest.Digest]bool{}
	for queue := []digest.Digest{what.Digest}; len(queue) > 0; {
		d := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if seen[d] {
			continue
		}
		seen[d] = true
		key := content.RepositoryDigest{Repository: what.Repository, Digest: d}
		for _, tag := range r.Tagged[key] {
			images = append(images, scrub.Image{Repository: what.Repository, Tag: tag, Digest: d})
		}
		parents := r.parents[key]
		if len(parents) == 0 && len(r.Tagged[key]) == 0 && r.revisions[key] {
			images = append(images, scrub.Image{Repository: what.Repository, Digest: d})
		}
		queue = append(queue, parents...)
	}
	return images
}

// reportMissing reports what is still missing: meanwhile, images were deleted, and content was pushed.
func (r *scrubRun) reportMissing(ctx context.Context) error {
	problems := map[digest.Digest]*scrub.Problem{}
	for what := range r.missing {
		p := problems[what.Digest]
		if p == nil {
			p = &scrub.Problem{Kind: scrub.Missing, Digest: what.Digest}
			problems[what.Digest] = p
		}
		p.Images = append(p.Images, r.images(what)...)
	}
	for _, d := range slices.Sorted(maps.Keys(problems)) {
		p := problems[d]
		p.Images = sorted(p.Images)
		remaining, err := r.remains(ctx, *p)
		if err != nil {
			return err
		}
		if remaining {
			r.found(*p)
		}
	}
	return nil
}

func (r *scrubRun) found(p scrub.Problem) {
	r.problems = append(r.problems, p)
	r.report(p)
}

// save writes the record, also if the client has just disconnected.
func (r *scrubRun) save(ctx context.Context) error {
	data, err := json.Marshal(r.record)
	if err != nil {
		return err
	}
	return r.source.Driver.PutContent(context.WithoutCancel(ctx), scrubPath, data)
}
