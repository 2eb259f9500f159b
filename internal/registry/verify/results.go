package verify

import (
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	// keepAccepted is how long after a signature was deleted the image may still be accepted: by the other replicas, and
	// everywhere if garbage collection deleted it. The replica that deletes it forgets the image at once.
	keepAccepted = time.Minute
	// keepDenied is how long after an image was signed the other replicas may still deny it. It is shorter than a
	// kubelet's first retry.
	keepDenied = 2 * time.Second
	// maxResults bounds the memory of results: some 100 bytes each.
	maxResults = 20_000
)

// results remembers verdicts by repository and digest: a signature counts in its repository only. The zero value is
// empty.
type results struct {
	mu    sync.Mutex
	known map[string]*repositoryResults
	size  int
}

type repositoryResults struct {
	repository string
	known      map[digest.Digest]result
}

type result struct {
	verdict verdict
	until   time.Time
}

func (r *results) get(repository string, d digest.Digest, now time.Time) (verdict, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.known[repository]
	if in == nil {
		return verdict{}, false
	}
	found, ok := in.known[d]
	return found.verdict, ok && now.Before(found.until)
}

// forRepository returns where to put results about a repository. Those that are put there after a forget do not
// count: the change may have come after the verification had read the repository.
func (r *results) forRepository(repository string) *repositoryResults {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || r.size >= maxResults {
		r.known, r.size = map[string]*repositoryResults{}, 0
	}
	if r.known[repository] == nil {
		r.known[repository] = &repositoryResults{repository, map[digest.Digest]result{}}
	}
	return r.known[repository]
}

// put remembers a verdict about what was read at a time.
func (r *results) put(to *repositoryResults, d digest.Digest, found verdict, at time.Time) {
	keep := keepAccepted
	if found.outcome == outcomeUnsigned {
		keep = keepDenied
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[to.repository] != to {
		return // it was forgotten meanwhile
	}
	if _, replaced := to.known[d]; !replaced {
		r.size++
	}
	to.known[d] = result{found, at.Add(keep)}
}

func (r *results) forget(repository string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[repository]; known != nil {
		r.size -= len(known.known)
		delete(r.known, repository)
	}
}
