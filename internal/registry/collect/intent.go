package collect

import (
	"context"
	"crypto/rand"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Deletions of manifests that clients ask for are an exception to the package comment: they need no lease, and do not
// wait until pushes have seen what they intend. Each side writes first, and then looks at what the other has written,
// so that at least one of them sees the other, whatever the processes:
//
//   - A deletion writes its intent, a list of manifests. Then it checks that none of them was pushed since, and that no
//     back link leads from it to an index, stored or not. It deletes manifests, their back links and their tags, and
//     removes its intent.
//   - A push writes back links, and then the manifest. Then it waits while an intent lists the manifest or one that it
//     needs. Then it checks that all of this exists: what was deleted meanwhile is written again, and a missing part is
//     an error. Only then it moves a tag, with the same steps.
//
// An intent is renewed at every heartbeat, and expires like a lease. Clients of a network file system may see changes
// late, so that there deletions with a condition do wait, before they check and before they remove their intent.
const intentsDir = "/docker/registry/v2/zarf-registry/deletions"

// Intent is that of a deletion.
type Intent struct {
	renewal
	settle time.Duration
}

// Intend publishes that manifests are about to be deleted. Conditional means that the caller then checks a condition.
func (c *Collector) Intend(
	ctx context.Context, manifests []content.RepositoryDigest, conditional bool,
) (*Intent, error) {
	names := map[string]struct{}{}
	for _, m := range manifests {
		names[m.Repository+"@"+string(m.Digest)] = struct{}{}
	}
	list := encode(names)
	i := &Intent{renewal: renewal{leases: c.leases, path: path.Join(intentsDir, rand.Text())}}
	if err := i.put(ctx, list); err != nil {
		return nil, fmt.Errorf("announcing the deletion: %w", err)
	}
	i.keep(ctx, func(ctx context.Context) bool {
		_ = i.put(ctx, list) // the next heartbeat retries; Delete reports a missed deadline
		return true
	})
	if conditional {
		i.settle = 2 * c.leases.propagation
	}
	if err := poll.Sleep(ctx, i.settle); err != nil {
		i.End()
		return nil, err
	}
	return i, nil
}

// Delete deletes a path while pushes respect the intent. It reports whether the path existed.
func (i *Intent) Delete(ctx context.Context, name string) (existed bool, err error) {
	if err := i.err(); err != nil {
		return false, fmt.Errorf("nothing more is deleted: %w: repeat the deletion later", err)
	}
	return i.leases.delete(ctx, name)
}

// End removes the intent. The deletion is complete.
func (i *Intent) End() {
	_ = poll.Sleep(context.Background(), i.settle)
	i.halt()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = i.leases.driver.Delete(ctx, i.path) // otherwise it expires
	if i.leases.root != "" {
		storage.KeepBallast(i.leases.root)
	}
}

// seenIntents are the intents that this process has seen in the storage, by path. The zero value is empty.
type seenIntents struct {
	mu   sync.Mutex
	seen map[string]*seenIntent
}

type seenIntent struct {
	manifests map[string]struct{} // REPOSITORY@DIGEST
	modified  time.Time           // by the storage's clock
	changed   time.Time           // when this was first seen
}

// AwaitDeletions waits while one of these manifests of a repository is about to be deleted.
func (c *Collector) AwaitDeletions(ctx context.Context, repository string, digests ...digest.Digest) error {
	const refusal = "parts of this image are being deleted: push it again later"
	return c.leases.await(ctx, min(c.Times.PollInterval, time.Second/10), refusal, func() (bool, error) {
		deleting, err := c.deleting(ctx, repository, digests)
		return !deleting, err
	})
}

func (c *Collector) deleting(ctx context.Context, repository string, digests []digest.Digest) (bool, error) {
	paths, err := storage.List(ctx, c.leases.driver, intentsDir)
	if err != nil {
		return false, fmt.Errorf("listing deletions: %w", err)
	}
	if len(paths) == 0 {
		return false, nil
	}
	c.intents.mu.Lock()
	defer c.intents.mu.Unlock()
	previous := c.intents.seen
	c.intents.seen = map[string]*seenIntent{}
	found := false
	for _, name := range paths {
		intent, err := c.readIntent(ctx, name, previous[name])
		if err != nil {
			return false, fmt.Errorf("reading a deletion: %w", err)
		}
		if intent == nil {
			continue
		}
		if time.Since(intent.changed) > c.Times.LeaseDuration+c.leases.propagation {
			_ = c.leases.driver.Delete(ctx, name) // its process is dead
			continue
		}
		c.intents.seen[name] = intent
		found = found || slices.ContainsFunc(digests, func(d digest.Digest) bool {
			_, listed := intent.manifests[repository+"@"+string(d)]
			return listed
		})
	}
	return found, nil
}

// readIntent returns an intent, which may have been seen before, or nil if it has just ended.
func (c *Collector) readIntent(ctx context.Context, name string, intent *seenIntent) (*seenIntent, error) {
	info, err := c.leases.driver.Stat(ctx, name)
	if err == nil && intent == nil {
		var list []byte
		list, err = c.leases.driver.GetContent(ctx, name)
		intent = &seenIntent{manifests: decode[string](list)}
	}
	if storage.IsNotFound(err) {
		return nil, nil
	}
	if err == nil && !info.ModTime().Equal(intent.modified) {
		intent.modified, intent.changed = info.ModTime(), time.Now()
	}
	return intent, err
}
