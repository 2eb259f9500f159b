package collect

import (
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

// blobsInUse remembers what clients of this process rely on: blobs that it told a client exist, so that a push
// skips the upload; and manifests that it is about to store, with all that they need. A collection in this
// process keeps that, even if it is already sweeping. Replicas do not share this: see the package comment. The zero
// value is empty. It is safe for concurrent use.
type blobsInUse struct {
	mu     sync.Mutex
	last   map[digest.Digest]time.Time
	pruned time.Time

	// The collection that is sweeping. Without one, marked is nil.
	marked *marking
	cutoff time.Time
	swept  map[digest.Digest]bool
	// removing is what is being removed. Each channel is closed at the end of that.
	removing map[digest.Digest]chan struct{}
}

// record must be called before digests are looked up: then each is either kept, with all that it needs, or already
// gone. It waits while one of them is being removed. It returns what the current collection has removed of them and
// of what they need; it may have been pushed again since.
func (u *blobsInUse) record(digests ...digest.Digest) (swept []digest.Digest) {
	for {
		swept, removed := u.tryNote(digests)
		if removed == nil {
			return swept
		}
		<-removed
	}
}

// tryNote returns a channel instead if something is being removed, which is closed at the end of that.
func (u *blobsInUse) tryNote(digests []digest.Digest) (swept []digest.Digest, removed <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if u.last == nil || now.Sub(u.pruned) > time.Hour {
		previous := u.last
		u.last, u.pruned = map[digest.Digest]time.Time{}, now
		for d, at := range previous {
			if now.Sub(at) < gc.DefaultGrace { // no push takes longer
				u.last[d] = at
			}
		}
	}
	for _, d := range digests {
		u.last[d] = now
	}
	if u.marked == nil {
		return nil, nil
	}
	u.marked.add(digests...)
	for _, d := range u.marked.closure(digests...) {
		stored := u.marked.Stored(d)
		if removed := u.removing[stored]; removed != nil {
			return nil, removed
		}
		if u.swept[stored] {
			swept = append(swept, d)
		}
	}
	return swept, nil
}

// sweep begins a sweep, which keeps what was noted after cutoff and what is noted from now on. The caller must not
// use m until it has called end.
func (u *blobsInUse) sweep(m *marking, cutoff time.Time) (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.marked, u.cutoff, u.swept = m, cutoff, map[digest.Digest]bool{}
	u.removing = map[digest.Digest]chan struct{}{}
	for d, at := range u.last {
		if at.After(cutoff) {
			m.add(d)
		}
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.marked, u.swept = nil, nil
	}
}

// remove calls do, which removes d, unless the current sweep must keep it, and reports whether it did. Only calls of
// record that need d wait meanwhile. It may be called for several digests at once, but not for one.
func (u *blobsInUse) remove(d digest.Digest, do func() error) (bool, error) {
	return u.removeUnless(d, func() bool { return u.marked.keep[d] }, do)
}

// removeStray does the same for what is left of a manifest that is not stored, unless it is being stored.
func (u *blobsInUse) removeStray(d digest.Digest, do func() error) (bool, error) {
	return u.removeUnless(d, func() bool { return u.last[d].After(u.cutoff) }, do)
}

func (u *blobsInUse) removeUnless(d digest.Digest, keep func() bool, do func() error) (bool, error) {
	u.mu.Lock()
	if keep() {
		u.mu.Unlock()
		return false, nil
	}
	removed := make(chan struct{})
	u.removing[d] = removed
	u.mu.Unlock()
	err := do()
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.removing, d)
	u.swept[d] = true
	close(removed)
	return true, err
}
