package collect

import (
	"context"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// await waits for at most WaitTimeout until a push may go on. Refusal is the error after that.
func (c *leaseClient) await(ctx context.Context, pause time.Duration, refusal string, may func() (bool, error)) error {
	deadline := time.Now().Add(c.times.WaitTimeout)
	for {
		switch admitted, err := may(); {
		case err != nil:
			return request.Unavailable("%v", err)
		case admitted:
			return nil
		case time.Now().After(deadline):
			return request.Unavailable("%s", refusal)
		}
		if err := poll.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// wait waits while the lease is held in a way that blocks the caller.
func (c *leaseClient) wait(ctx context.Context, blocks func(*leaseReading) bool) (r *leaseReading, err error) {
	const refusal = "garbage is being collected by another process, and may include content of this image: retry later"
	err = c.await(ctx, c.times.PollInterval, refusal, func() (bool, error) {
		r, err = c.read(ctx, c.times.PollInterval)
		return err == nil && (!c.held(r) || !blocks(r)), err
	})
	return r, err
}

// Admission is that of a manifest upload.
type Admission struct {
	collector  *Collector
	repository string
	needs      []digest.Digest
	reading    *leaseReading // the last one
}

// Admit waits until a manifest of a repository that needs these digests may be written, its own included: see times.
// The manifest must have been received before: a slow client would use up the time for which a reading is valid.
func (c *Collector) Admit(ctx context.Context, repository string, needs []digest.Digest) (*Admission, error) {
	reading, err := c.leases.wait(ctx, func(r *leaseReading) bool { return c.leases.mayRemove(r, needs) })
	return &Admission{collector: c, repository: repository, needs: needs, reading: reading}, err
}

// ConfirmTag returns an error if a tag must not move to the manifest.
func (a *Admission) ConfirmTag(ctx context.Context) error {
	return a.confirm(ctx, a.collector.Times.PollInterval)
}

// Finish returns an error if the manifest must not count as stored.
func (a *Admission) Finish(ctx context.Context) error {
	return a.confirm(ctx, a.collector.Times.Validity)
}

// confirm returns an error if a collection may have removed what the manifest needs since it was admitted.
// It reads the record again if the last reading is older than age.
func (a *Admission) confirm(ctx context.Context, age time.Duration) error {
	if time.Since(a.reading.at) <= age {
		return nil
	}
	leases := a.collector.leases
	r, err := leases.read(ctx, age)
	if err != nil {
		return request.Unavailable("%v", err)
	}
	swept := removedBetween(a.reading.record, r.record)
	if swept == removedListed && !leases.mayRemove(r, a.needs) {
		use := a.collector.Rely(a.needs...)
		if use.Missing(ctx, a.repository) == nil {
			swept = removedNothing
		}
		use.Done(false) // those who store the manifest say whether it exists
	}
	if swept != removedNothing {
		return request.Unavailable(
			"garbage was collected during this push and blobs of this image may be missing: push it again")
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

// removedBetween considers lists that were not known at the first reading: that of a running collection was.
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

// Use is what a client of this process relies on.
type Use struct {
	collector *Collector
	digests   []digest.Digest
	swept     []digest.Digest // of them and of what they need, by the current collection
}

// Rely must be called before digests are looked up for a client: then each is either kept, with all that it needs, or
// already gone. It waits while one of them is being removed. The caller must call Done.
func (c *Collector) Rely(digests ...digest.Digest) *Use {
	return &Use{c, digests, c.use.begin(digests)}
}

// Done ends the request. Only what exists is kept from collections to come: clients invent digests.
func (u *Use) Done(exist bool) { u.collector.use.end(u.digests, exist) }

// Missing returns a [distribution.ErrManifestBlobUnknown] if this process has collected what a manifest needs.
func (u *Use) Missing(ctx context.Context, repository string) error {
	for _, d := range u.swept {
		if found, err := u.collector.store.Provides(ctx, repository, d); err != nil {
			return err
		} else if !found {
			return distribution.ErrManifestBlobUnknown{Digest: d}
		}
	}
	return nil
}

// Stored returns the SHA-256 digest of a stored blob, and notes that a client relies on it. What another process is
// about to remove does not count as stored. If the storage fails, ok is false, and the upload will report the error.
func (c *Collector) Stored(ctx context.Context, named digest.Digest) (d digest.Digest, ok bool) {
	d, err := c.store.Canonical(ctx, named)
	if err != nil {
		return "", false
	}
	if r := c.leases.last.Load(); c.leases.held(r) && c.leases.mayRemove(r, []digest.Digest{d}) {
		return "", false
	}
	use := c.Rely(d)
	_, _, err = c.store.Size(ctx, d)
	use.Done(err == nil)
	return d, err == nil
}
