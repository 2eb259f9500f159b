package registry

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// withManifestLock delays manifest uploads to next that need what another process's collection may remove: see
// leaseTimes. The body must have been read before: a slow client would use up the time for which a reading is valid.
func withManifestLock(source *contentStore, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		to := request.TargetOf(r)
		if to.Manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		pushed, _ := r.Context().Value(pushKey{}).(push)
		a := &admission{source: source, repository: to.Repository, needs: slices.Concat(pushed.digests, pushed.needs)}
		var err error
		if a.reading, err = source.leases.admit(r.Context(), a.needs); err != nil {
			request.WriteError(w, err)
			return
		}
		response := request.Buffer(w)
		next.ServeHTTP(response, r.WithContext(context.WithValue(r.Context(), admissionKey{}, a)))
		if a.refused == nil && response.Status < http.StatusMultipleChoices {
			_ = a.confirm(r.Context(), source.leases.times.validity)
		}
		if a.refused != nil {
			request.ClearHeader(w.Header())
			request.WriteError(w, a.refused)
			return
		}
		response.Send(w)
	})
}

// withAnyMediaType serves manifests of every media type to clients that accept any or do not say what they accept.
// Distribution responds to them that the manifest is unknown.
func withAnyMediaType(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := strings.Join(r.Header["Accept"], ","); accept == "" || strings.Contains(accept, "*") {
			r.Header.Set("Accept", oci.Accept)
		}
		next.ServeHTTP(w, r)
	})
}

// admit waits until a manifest that needs these digests may be written.
func (c *leaseClient) admit(ctx context.Context, needs []digest.Digest) (*leaseReading, error) {
	return c.wait(ctx, func(r *leaseReading) bool { return c.mayRemove(r, needs) })
}

// wait waits while the lease is held in a way that blocks the caller.
func (c *leaseClient) wait(ctx context.Context, blocks func(*leaseReading) bool) (*leaseReading, error) {
	deadline := time.Now().Add(c.times.waitTimeout)
	for {
		r, err := c.read(ctx, c.times.pollInterval)
		if err != nil {
			return nil, request.Unavailable("%v", err)
		}
		if !c.held(r) || !blocks(r) {
			return r, nil
		}
		if time.Now().After(deadline) {
			return nil, request.Unavailable("garbage is being collected by another process, and may include content of this " +
				"image: retry later")
		}
		if err := poll.Sleep(ctx, c.times.pollInterval); err != nil {
			return nil, err
		}
	}
}

// admission is that of a manifest upload. It is in the upload's context.
type admission struct {
	source     *contentStore
	repository string
	needs      []digest.Digest
	reading    *leaseReading // the last one
	refused    error         // of confirm
}

type admissionKey struct{}

// confirm returns an error if a collection may have removed what the manifest needs since it was admitted.
// It reads the record again if the last reading is older than age.
func (a *admission) confirm(ctx context.Context, age time.Duration) error {
	if time.Since(a.reading.at) <= age {
		return nil
	}
	leases := a.source.leases
	r, err := leases.read(ctx, age)
	if err != nil {
		a.refused = request.Unavailable("%v", err)
		return a.refused
	}
	swept := removedBetween(a.reading.record, r.record)
	if swept == removedListed && !leases.mayRemove(r, a.needs) && a.source.need(ctx, a.repository, a.needs) == nil {
		swept = removedNothing
	}
	if swept != removedNothing {
		a.refused = request.Unavailable(
			"garbage was collected during this push and blobs of this image may be missing: push it again")
		return a.refused
	}
	a.reading = r
	return nil
}

// removedContent is what collections may have removed between two readings of the record.
type removedContent int

const (
	removedNothing  removedContent = iota
	removedListed                  // what is in the list of the second one
	removedAnything                // what is in a list that no longer exists
)

// removedBetween considers only lists that were not known at the first reading: that of the same collection was, unless
// it had ended.
func removedBetween(before, now leaseRecord) removedContent {
	switch {
	case now.ID == before.ID:
		return removedNothing
	case now.Previous != before.ID:
		return removedAnything
	case now.GarbageList == emptyList:
		return removedNothing
	case now.Held:
		return removedListed
	}
	return removedAnything
}

// need rescues what a manifest needs from a collection of this process. It returns a
// [distribution.ErrManifestVerification] if the collection has removed a part, and nobody has pushed that again.
func (s *contentStore) need(ctx context.Context, repository string, digests []digest.Digest) error {
	var missing distribution.ErrManifestVerification
	for _, d := range s.use.record(digests...) {
		found, err := s.Provides(ctx, repository, d)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, distribution.ErrManifestBlobUnknown{Digest: d})
		}
	}
	if missing != nil {
		return missing
	}
	return nil
}

// confirmingTags moves no tag to a manifest that will be refused: the previous one stays.
type confirmingTags struct{ distribution.TagService }

func (t confirmingTags) Tag(ctx context.Context, tag string, manifest v1.Descriptor) error {
	if a, ok := ctx.Value(admissionKey{}).(*admission); ok {
		if err := a.confirm(ctx, a.source.leases.times.pollInterval); err != nil {
			return err
		}
	}
	return t.TagService.Tag(ctx, tag, manifest)
}
