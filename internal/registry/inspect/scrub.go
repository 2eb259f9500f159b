package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
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
	// scrubBatch is how many bytes of blobs are read at once, unless it is one blob.
	scrubBatch = 256 << 10
	// maxScrubProblems limits the record.
	maxScrubProblems = 1000
)

// scrubRecord is the content of scrubPath.
type scrubRecord struct {
	Began time.Time `json:"began"`
	// Last is the blob up to which all were read, in the order of their digests.
	Last digest.Digest `json:"last,omitempty"`
	// Finished is when the last complete scrub ended, and Problems are the first that it found.
	Finished time.Time       `json:"finished,omitzero"`
	Problems []scrub.Problem `json:"problems,omitempty"`
}

// Scrubber reads everything that is stored, and marks damaged blobs, so that clients push them again.
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
	return request.Methods("requests to read all content", func(w http.ResponseWriter, r *http.Request) {
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
	}, http.MethodPost)
}

// Run reads everything and reports problems.
func (s *Scrubber) Run(
	ctx context.Context, request scrub.Request, progress func(*scrub.Progress), report func(scrub.Problem),
) (scrub.Result, error) {
	pace := rate.NewLimiter(rate.Limit(request.Rate), oci.MaxManifestSize) // the most that is read at once
	pace.AllowN(time.Now(), pace.Burst())
	r := &scrubRun{
		Scrubber: s, Inventory: content.Inventory{Driver: s.source.Driver}, pace: pace, progress: progress,
		report: report, missing: map[content.RepositoryDigest]bool{}, checked: map[content.Key]bool{},
		revisions: map[content.RepositoryDigest]bool{},
	}
	var err error
	if r.record, err = storage.ReadJSON[scrubRecord](ctx, s.source.Driver, scrubPath); err != nil {
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
		if errors.Is(err, distribution.ErrBlobUnknown) {
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
	poll.Every(ctx, scrubFollowPeriod, func() { s.Refresh(ctx) })
}

// Refresh does that once.
func (s *Scrubber) Refresh(ctx context.Context) {
	record, err := storage.ReadJSON[scrubRecord](ctx, s.source.Driver, scrubPath)
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
func (s *Scrubber) Status() *loaded.Scrub {
	record := s.last.Load()
	if record == nil || record.Finished.IsZero() {
		return nil
	}
	status := &loaded.Scrub{FinishedAt: record.Finished, Problems: len(record.Problems)}
	for _, p := range record.Problems {
		for _, image := range p.Images {
			status.Images = append(status.Images, image.String())
		}
	}
	slices.Sort(status.Images)
	status.Images = slices.Compact(status.Images)
	status.Images = status.Images[:min(len(status.Images), loaded.MaxScrubImages)]
	return status
}
