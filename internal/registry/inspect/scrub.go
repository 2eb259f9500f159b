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
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// scrubPath is the record of the last scrub, next to the record of garbage collection.
const scrubPath = "/docker/registry/v2/zarf-registry/scrub.json"

const (
	// scrubSavePeriod is how often a scrub records how far it has come.
	scrubSavePeriod = 30 * time.Second
	// scrubResume is how old the beginning of a scrub may be that another one continues.
	scrubResume = 7 * 24 * time.Hour
	// scrubFollowPeriod is how often the record is read, and its problems checked again.
	scrubFollowPeriod = time.Minute
	// maxScrubProblems limits the record.
	maxScrubProblems = 1000
)

// scrubRecord is the content of scrubPath.
type scrubRecord struct {
	Began time.Time `json:"began"`
	// Last is the blob that was read last. They are read in the order of their digests.
	Last digest.Digest `json:"last,omitempty"`
	// Finished is when the last complete scrub ended, and Problems are the first that it found.
	Finished time.Time       `json:"finished,omitzero"`
	Problems []scrub.Problem `json:"problems,omitempty"`
}

// Scrubber reads everything that is stored. It removes nothing: damaged blobs are marked (intact.go), so that clients
// push them again.
type Scrubber struct {
	source  *content.Store
	running sync.Mutex // held during a scrub
	// last is the record, with the problems that remain; nil before it was read.
	last atomic.Pointer[scrubRecord]
}

// NewScrubber returns a scrubber of a store.
func NewScrubber(source *content.Store) *Scrubber { return &Scrubber{source: source} }

// Handler serves requests to read all content, one at a time.
func (s *Scrubber) Handler(draining *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			request.WriteError(w, errcode.ErrorCodeUnsupported.WithMessage("reading all content requires POST"))
			return
		}
		query, err := scrub.ParseQuery(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !s.running.TryLock() {
			http.Error(w, "the content is already being read: wait until that has finished", http.StatusConflict)
			return
		}
		defer s.running.Unlock()
		var progress atomic.Pointer[scrub.Progress]
		progress.Store(&scrub.Progress{})
		request.Stream(r.Context(), draining, w, func() any { return scrub.Event{Progress: progress.Load()} },
			func(ctx context.Context, send func(any)) {
				result, err := s.Run(ctx, query, progress.Store, func(p scrub.Problem) {
					s.source.Log.Warn("stored content is "+p.Kind, "digest", p.Digest.String(), "images", fmt.Sprint(p.Images))
					send(scrub.Event{Problem: &p})
				})
				last := scrub.Event{Result: &result}
				if err != nil {
					s.source.Log.Error("reading all content failed", "error", err)
					last = scrub.Event{Error: err.Error()}
				} else {
					s.source.Log.Info("read all content", "blobs", result.Blobs, "bytes", result.Bytes, "problems", result.Problems)
				}
				send(last)
			})
	})
}

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

// Run reads everything and reports problems.
func (s *Scrubber) Run(
	ctx context.Context, request scrub.Request, progress func(*scrub.Progress), report func(scrub.Problem),
) (scrub.Result, error) {
	r := &scrubRun{
		Scrubber: s, Inventory: content.Inventory{Driver: s.source.Driver}, pace: newPace(request.Rate), progress: progress,
		report: report, parents: map[content.RepositoryDigest][]digest.Digest{}, missing: map[content.RepositoryDigest]bool{},
		checked: map[digest.Digest]bool{}, revisions: map[content.RepositoryDigest]bool{},
	}
	var err error
	if r.record, err = s.read(ctx); err != nil {
		return scrub.Result{}, err
	}
	if r.record.Last == "" || time.Since(r.record.Began) > scrubResume {
		r.record.Began, r.record.Last = time.Now().UTC(), ""
	}
	if err := r.all(ctx); err != nil {
		return scrub.Result{}, poll.Cause(ctx, err)
	}
	return r.result, nil
}

func (r *scrubRun) all(ctx context.Context) error {
	var damagedTags []content.RepositoryTag
	r.DamagedTag = func(tag content.RepositoryTag) { damagedTags = append(damagedTags, tag) }
	if err := r.Inventory.Read(ctx); err != nil {
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
	b := r.Blobs[stored]
	if b == nil {
		r.lacks(m.RepositoryDigest, m.Digest)
		return nil
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
	case errors.Is(err, distribution.ErrBlobUnknown) && r.source.Sparse && oci.IsManifestOrIndex(needed.MediaType):
		return nil
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

// read returns the zero value if nothing was ever scrubbed, or if the record is damaged.
func (s *Scrubber) read(ctx context.Context) (record scrubRecord, err error) {
	data, err := s.source.Driver.GetContent(ctx, scrubPath)
	if storage.IsNotFound(err) {
		return scrubRecord{}, nil
	}
	if err == nil && json.Unmarshal(data, &record) != nil {
		record = scrubRecord{}
	}
	return record, err
}

// remains reports whether a problem was neither repaired by a push nor removed with its images. It reads no blobs.
func (s *Scrubber) remains(ctx context.Context, p scrub.Problem) (bool, error) {
	if p.Digest == "" {
		d, err := s.source.ReadLink(ctx, storage.TagPath(p.Images[0].Repository, p.Images[0].Tag))
		if d != "" || errors.Is(err, distribution.ErrBlobUnknown) {
			return false, nil
		}
		return true, nil
	}
	if len(p.Images) == 0 {
		_, _, err := s.source.Size(ctx, p.Digest)
		found, failed := s.source.Exists(ctx, storage.BlobPath(p.Digest))
		return err != nil && found, failed
	}
	for _, image := range p.Images {
		data, err := s.source.Manifest(ctx, image.Repository, image.Digest)
		if errors.Is(err, content.ErrUnknownManifest) {
			found, err := s.source.Exists(ctx, storage.RevisionPath(image.Repository, image.Digest))
			if err != nil || found {
				return found, err
			}
			continue // it was deleted
		}
		if content.IsDamaged(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		m, err := content.Describe(data)
		if err != nil {
			continue // not a manifest as this registry understands it
		}
		err = s.source.Lacking(ctx, image.Repository, m)
		if errors.As(err, new(distribution.ErrManifestBlobUnknown)) {
			return true, nil
		}
		if err != nil && !errors.As(err, new(errcode.Error)) {
			return false, err
		}
	}
	return false, nil
}

// Poll reads the record at intervals until ctx ends, and checks its problems again.
func (s *Scrubber) Poll(ctx context.Context) {
	for {
		s.Refresh(ctx)
		if poll.Sleep(ctx, scrubFollowPeriod) != nil {
			return
		}
	}
}

// Refresh does that once.
func (s *Scrubber) Refresh(ctx context.Context) {
	record, err := s.read(ctx)
	if err != nil {
		return // storage.Health reports it
	}
	record.Problems = slices.DeleteFunc(record.Problems, func(p scrub.Problem) bool {
		remaining, err := s.remains(ctx, p)
		return err == nil && !remaining
	})
	s.last.Store(&record)
}

// Status returns the result of the last complete scrub; nil if there was none.
func (s *Scrubber) Status() *reloadstatus.Scrub {
	record := s.last.Load()
	if record == nil || record.Finished.IsZero() {
		return nil
	}
	status := &reloadstatus.Scrub{FinishedAt: record.Finished, Problems: len(record.Problems)}
	for _, p := range record.Problems {
		for _, image := range p.Images {
			status.Images = append(status.Images, image.String())
		}
	}
	slices.Sort(status.Images)
	status.Images = slices.Compact(status.Images)
	if len(status.Images) > reloadstatus.MaxScrubImages {
		status.Images = status.Images[:reloadstatus.MaxScrubImages]
	}
	return status
}

// pace limits how fast something is read. It is safe for concurrent use.
type pace struct {
	rate int64 // bytes per second
	mu   sync.Mutex
	next time.Time // when what was read so far may have been read
}

func newPace(rate int64) *pace { return &pace{rate: rate, next: time.Now()} }

// wait waits after n bytes were read.
func (p *pace) wait(ctx context.Context, n int64) error {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	wait := p.next.Sub(now)
	p.mu.Unlock()
	return poll.Sleep(ctx, wait)
}

// pacedReader reads at a pace.
type pacedReader struct {
	ctx  context.Context
	data io.Reader
	pace *pace
	read func(n int)
}

func (r pacedReader) Read(p []byte) (int, error) {
	n, err := r.data.Read(p)
	r.read(n)
	if failed := r.pace.wait(r.ctx, int64(n)); failed != nil {
		return n, failed
	}
	return n, err
}
