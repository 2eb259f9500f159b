package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/time/rate"

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
	pace     *rate.Limiter // of bytes
	progress func(*scrub.Progress)
	report   func(scrub.Problem)

	record   scrubRecord
	result   scrub.Result
	problems []scrub.Problem

	mu sync.Mutex
	// parents are the manifests that need content, ordered by that. Missing is what a repository does not have.
	parents   []parent
	revisions map[content.RepositoryDigest]bool // the manifests of repositories
	missing   map[content.RepositoryDigest]bool
	// checked are the manifests that were compared with their digest, and whether they have it.
	checked map[content.Key]bool
}

// pacedReader reads at a pace.
type pacedReader struct {
	io.Reader
	ctx  context.Context
	pace *rate.Limiter
	read func(n int)
}

func (r pacedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read(n)
	return n, cmp.Or(r.pace.WaitN(r.ctx, n), err)
}

// parent is a manifest that needs content.
type parent struct {
	child    content.Key
	manifest int32 // its number
}

func (r *scrubRun) all(ctx context.Context) error {
	if err := r.Read(ctx); err != nil {
		return fmt.Errorf("reading the storage: %w", err)
	}
	for _, d := range r.Damaged { // images name what a damaged link hides
		if d.Tag != "" {
			image := scrub.Image{Repository: d.Repository, Tag: d.Tag}
			if err := r.found(ctx, scrub.Problem{Kind: scrub.Damaged, Images: []scrub.Image{image}}); err != nil {
				return err
			}
		}
	}
	for _, m := range r.Manifests {
		r.revisions[m.RepositoryDigest] = true
	}
	for _, step := range []func(context.Context) error{r.readManifests, r.readBlobs, r.reportMissing} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.record.Last, r.record.Finished = "", time.Now().UTC()
	r.record.Problems = r.problems[:min(len(r.problems), maxScrubProblems)]
	r.result.Problems = len(r.problems)
	r.last.Store(&r.record)
	return r.save(ctx)
}

// readManifests compares manifests with their digests, and finds out what they need.
func (r *scrubRun) readManifests(ctx context.Context) error {
	err := storage.Each(ctx, len(r.Manifests), storage.ManifestConcurrency, r.readManifest)
	slices.SortFunc(r.parents, func(a, b parent) int {
		return cmp.Or(a.child.Compare(b.child), cmp.Compare(a.manifest, b.manifest))
	})
	return err
}

func (r *scrubRun) readManifest(ctx context.Context, number int) error {
	m := r.Manifests[number]
	data, err := r.source.Unverified(ctx, m.Repository, m.Digest)
	if content.IsMissing(err) {
		r.lacks(number, m.Digest)
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.pace.WaitN(ctx, len(data)); err != nil {
		return err
	}
	stored := r.Stored(m.Digest)
	intact := stored.Algorithm().FromBytes(data) == stored
	r.mu.Lock()
	r.checked[content.KeyOf(stored)] = intact
	r.mu.Unlock()
	if !intact {
		return nil
	}
	described, err := content.Describe(data)
	if err != nil {
		return nil //nolint:nilerr // not a manifest as this registry understands it
	}
	for _, blob := range described.Blobs() {
		if err := r.needs(ctx, number, blob, storage.LayerPath(m.Repository, blob.Digest)); err != nil {
			return err
		}
	}
	for _, child := range described.Manifests {
		if err := r.needs(ctx, number, child, storage.RevisionPath(m.Repository, child.Digest)); err != nil {
			return err
		}
	}
	return nil
}

// needs records that a manifest needs content, to which the repository has a link.
func (r *scrubRun) needs(ctx context.Context, number int, needed v1.Descriptor, link string) error {
	if oci.IsNonDistributable(needed.MediaType) {
		return nil
	}
	stored, err := r.source.ReadLink(ctx, link)
	switch {
	case content.IsMissing(err):
		r.lacks(number, needed.Digest)
		return nil
	case err != nil:
		return err
	case r.Blob(stored) == nil:
		r.lacks(number, stored)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parents = append(r.parents, parent{content.KeyOf(stored), int32(number)})
	return nil
}

// lacks records that a manifest's repository does not have what the manifest needs, or itself.
func (r *scrubRun) lacks(number int, d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.Manifests[number]
	r.missing[content.RepositoryDigest{Repository: m.Repository, Digest: d}] = true
	if d != m.Digest {
		r.parents = append(r.parents, parent{content.KeyOf(r.Stored(d)), int32(number)})
	}
}

// needing returns the manifests that need content.
func (r *scrubRun) needing(d digest.Digest) iter.Seq[content.RepositoryDigest] {
	return func(yield func(content.RepositoryDigest) bool) {
		key := content.KeyOf(r.Stored(d))
		first, _ := slices.BinarySearchFunc(r.parents, key, func(p parent, k content.Key) int {
			return p.child.Compare(k)
		})
		for _, p := range r.parents[first:] {
			if p.child != key || !yield(r.Manifests[p.manifest].RepositoryDigest) {
				return
			}
		}
	}
}

// readBlobs reads the blobs that were not read before an interruption.
func (r *scrubRun) readBlobs(ctx context.Context) error {
	var progress scrub.Progress
	for _, b := range r.Blobs {
		progress.Total += b.Size
	}
	read := func(bytes int64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		progress.Bytes += bytes
		r.progress(new(progress))
	}
	saved := time.Now()
	for rest := r.Blobs; len(rest) > 0; {
		batch := firstBatch(rest)
		rest = rest[len(batch):]
		results, err := storage.InOrder(ctx, batch, storage.Concurrency,
			func(ctx context.Context, b content.Blob) (intact *bool, err error) { return r.readBlob(ctx, b, read) })
		for n, b := range batch {
			if results[n] == nil {
				break // with an error
			}
			d := b.Digest()
			if !*results[n] {
				err = cmp.Or(err, r.found(ctx, scrub.Problem{Kind: scrub.Damaged, Digest: d, Images: r.imagesNeeding(d)}))
			}
			r.result.Blobs++
			r.result.Bytes += b.Size
			r.record.Last = max(r.record.Last, d)
		}
		if err != nil {
			return poll.Cause(ctx, errors.Join(err, r.save(ctx)))
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

// firstBatch returns the first blobs, which are read at once if they are small: requests take longer than their data.
func firstBatch(blobs []content.Blob) []content.Blob {
	bytes := int64(0)
	for n, b := range blobs {
		if bytes += b.Size; n == storage.Concurrency || n > 0 && bytes > scrubBatch {
			return blobs[:n]
		}
	}
	return blobs
}

// readBlob compares a blob with its digest, unless that was done before. It calls read for what it has read.
func (r *scrubRun) readBlob(ctx context.Context, b content.Blob, read func(bytes int64)) (intact *bool, err error) {
	d, rest := b.Digest(), b.Size
	ok, known := r.checked[b.Key]
	switch {
	case known:
	case d <= r.record.Last:
		_, _, err = r.source.Size(ctx, d)
		ok = err == nil
	default:
		ok, err = r.source.Examine(ctx, d, func(data io.Reader) io.Reader {
			return pacedReader{data, ctx, r.pace, func(n int) {
				rest -= int64(n)
				read(int64(n))
			}}
		})
	}
	if err != nil && !errors.Is(err, distribution.ErrBlobUnknown) {
		return nil, fmt.Errorf("reading %s: %w", d, err)
	}
	read(rest)
	return &ok, nil
}

// imagesNeeding returns the images that need stored content.
func (r *scrubRun) imagesNeeding(d digest.Digest) []scrub.Image {
	in := map[string]bool{}
	for m := range r.needing(d) {
		in[m.Repository] = true
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
		var parents []digest.Digest
		for m := range r.needing(d) {
			if m.Repository == what.Repository {
				parents = append(parents, m.Digest)
			}
		}
		if len(parents) == 0 && len(r.Tagged[key]) == 0 && r.revisions[key] {
			images = append(images, scrub.Image{Repository: what.Repository, Digest: d})
		}
		queue = append(queue, parents...)
	}
	return images
}

// reportMissing reports what is missing.
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
		if err := r.found(ctx, *p); err != nil {
			return err
		}
	}
	return nil
}

// found reports a problem that remains: meanwhile, images were deleted, and content was pushed.
func (r *scrubRun) found(ctx context.Context, p scrub.Problem) error {
	remaining, err := r.remains(ctx, p)
	if remaining {
		r.problems = append(r.problems, p)
		r.report(p)
	}
	return err
}

// save writes the record, also if the client has just disconnected.
func (r *scrubRun) save(ctx context.Context) error {
	return storage.WriteJSON(context.WithoutCancel(ctx), r.source.Driver, scrubPath, r.record)
}
