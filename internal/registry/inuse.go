package registry

import (
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// blobsInUse remembers when this process last told a client that a blob exists: a push then skips the
// upload and relies on the blob. Replicas do not share this. A push whose blob another replica removes
// is refused, and succeeds when it is retried. The zero value is empty. It is safe for concurrent use.
type blobsInUse struct {
	mu     sync.Mutex
	last   map[digest.Digest]time.Time
	pruned time.Time
}

// note must be called before the blob is looked up: then the blob is either kept or already gone.
func (u *blobsInUse) note(d digest.Digest) {
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
	u.last[d] = now
}

// removeUnused calls remove unless the blob was noted after cutoff, and reports whether it did. Calls
// of note wait meanwhile.
func (u *blobsInUse) removeUnused(d digest.Digest, cutoff time.Time, remove func()) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.last[d]; ok && at.After(cutoff) {
		return false
	}
	remove()
	return true
}
