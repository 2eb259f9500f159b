package collect

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
)

// maxInUse bounds the record of what clients rely on, which takes up to 100 bytes for each digest.
const maxInUse = 1_000_000

// errInUse is the error of a collection that does not know everything that clients rely on.
var errInUse = fmt.Errorf("clients have pushed or found more than %d digests within the grace period, more than the "+
	"registry remembers, so nothing is removed: collect garbage again later, or with a shorter grace period", maxInUse)

// blobsInUse remembers what clients of this process rely on: blobs that it told a client exist, so that a push skips
// the upload; and manifests that it is about to store, with all that they need. A collection in this process keeps
// that, even if it is already sweeping. The zero value is empty. It is safe for concurrent use.
type blobsInUse struct {
	mu      sync.Mutex
	pending map[content.Key]int   // being looked up or stored, by so many requests
	last    map[content.Key]int64 // when it was last known to exist, in nanoseconds (Unix)
	full    time.Time             // when something was last forgotten, because there was too much
	pruned  time.Time
	max     int // set by tests; 0 is maxInUse

	// The collection that is sweeping. Without one, marked is nil.
	marked *marks
	cutoff time.Time
	swept  map[digest.Digest]bool
	// removing is what is being removed. Each channel is closed at the end of that.
	removing map[digest.Digest]chan struct{}
}

// begin is for [Collector.Rely]. It returns what the current collection has removed of the digests and of what they
// need; it may have been pushed again since.
func (u *blobsInUse) begin(digests []digest.Digest) (swept []digest.Digest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending, u.last = map[content.Key]int{}, map[content.Key]int64{}
	}
	for _, d := range digests {
		u.pending[content.KeyOf(d)]++
	}
	for {
		swept, removed := u.needed(digests)
		if removed == nil {
			return swept
		}
		u.mu.Unlock()
		<-removed
		u.mu.Lock()
	}
}

// needed returns a channel instead, if something is being removed, that is closed after that. It requires u.mu.
func (u *blobsInUse) needed(digests []digest.Digest) (swept []digest.Digest, removed <-chan struct{}) {
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

// end is called when digests were looked up. Those that exist are remembered.
func (u *blobsInUse) end(digests []digest.Digest, exist bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if now.Sub(u.pruned) > time.Hour {
		u.pruned = now
		maps.DeleteFunc(u.last, func(_ content.Key, at int64) bool { // no push takes longer
			return now.Sub(time.Unix(0, at)) >= gc.DefaultGrace
		})
	}
	for _, d := range digests {
		name := content.KeyOf(d)
		if u.pending[name]--; u.pending[name] == 0 {
			delete(u.pending, name)
		}
		if !exist {
			continue
		}
		if _, known := u.last[name]; !known && len(u.last) >= cmp.Or(u.max, maxInUse) {
			u.full = now
			continue
		}
		u.last[name] = now.UnixNano()
	}
}

// has reports whether a client relies on d, or did after cutoff. The caller holds u.mu.
func (u *blobsInUse) has(d digest.Digest, cutoff time.Time) bool {
	name := content.KeyOf(d)
	return u.pending[name] > 0 || u.last[name] > cutoff.UnixNano()
}

// sweep begins a sweep, which keeps what is noted after cutoff. The caller must not use m until it has called end.
func (u *blobsInUse) sweep(m *marks, cutoff time.Time) (end func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.full.After(cutoff) {
		return nil, errInUse
	}
	u.marked, u.cutoff, u.swept = m, cutoff, map[digest.Digest]bool{}
	u.removing = map[digest.Digest]chan struct{}{}
	for k := range u.pending {
		m.addKey(k)
	}
	for k, at := range u.last {
		if at > cutoff.UnixNano() {
			m.addKey(k)
		}
	}
	for d := range m.Canonical {
		if u.has(d, cutoff) {
			m.add(d)
		}
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.marked, u.swept = nil, nil
	}, nil
}

// remove calls do, which removes d, unless the current sweep must keep it, and reports whether it did. Only calls of
// begin that need d wait meanwhile. It may be called for several digests at once, but not for one.
func (u *blobsInUse) remove(d digest.Digest, do func() error) (bool, error) {
	return u.removeUnless(d, func() bool { return u.marked.kept(d) }, do)
}

// removeStray does the same for what is left of a manifest that is not stored, unless it is being stored.
func (u *blobsInUse) removeStray(d digest.Digest, do func() error) (bool, error) {
	return u.removeUnless(d, func() bool { return u.has(d, u.cutoff) }, do)
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
