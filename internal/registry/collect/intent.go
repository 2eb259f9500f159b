package collect

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
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
	leases  *leaseClient
	path    string
	content []byte
	settle  time.Duration
	stop    context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	renewed time.Time // when the last successful write began
}

// Intend publishes that manifests are about to be deleted. Conditional means that the caller then checks a condition.
func (c *Collector) Intend(
	ctx context.Context, manifests []content.RepositoryDigest, conditional bool,
) (*Intent, error) {
	var b bytes.Buffer
	for _, m := range manifests {
		b.WriteString(m.Repository + "@" + string(m.Digest) + "\n")
	}
	i := &Intent{leases: c.leases, path: path.Join(intentsDir, rand.Text()), content: b.Bytes(), done: make(chan struct{})}
	if err := i.renew(ctx); err != nil {
		return nil, fmt.Errorf("announcing the deletion: %w", err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	i.stop = stop
	go func() {
		defer close(i.done)
		for poll.Sleep(background, c.Times.Heartbeat) == nil {
			_ = i.renew(background) // the next heartbeat retries; Err reports a missed deadline
		}
	}()
	if conditional {
		i.settle = 2 * c.leases.propagation
	}
	if err := poll.Sleep(ctx, i.settle); err != nil {
		i.End()
		return nil, err
	}
	return i, nil
}

func (i *Intent) renew(ctx context.Context) error {
	began := time.Now()
	err := storage.PutRecord(ctx, i.leases.driver, i.leases.root, i.path, i.content)
	if err == nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.renewed.IsZero() || began.Sub(i.renewed) < i.leases.times.RenewDeadline { // once missed, it stays lost
			i.renewed = began
		}
	}
	return err
}

// Delete deletes a path while pushes respect the intent. It reports whether the path existed.
func (i *Intent) Delete(ctx context.Context, name string) (existed bool, err error) {
	i.mu.Lock()
	left := i.leases.times.RenewDeadline - time.Since(i.renewed)
	i.mu.Unlock()
	if left <= 0 {
		return false, errors.New("the storage accepts no writes, so nothing more is deleted: repeat the deletion later")
	}
	return i.leases.delete(ctx, name)
}

// End removes the intent. The deletion is complete.
func (i *Intent) End() {
	_ = poll.Sleep(context.Background(), i.settle)
	i.stop()
	<-i.done
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
	manifests map[string]bool // REPOSITORY@DIGEST
	modified  time.Time       // by the storage's clock
	changed   time.Time       // when this was first seen
}

// AwaitDeletions waits while one of these manifests of a repository is about to be deleted.
func (c *Collector) AwaitDeletions(ctx context.Context, repository string, digests ...digest.Digest) error {
	deadline := time.Now().Add(c.Times.WaitTimeout)
	for {
		deleting, err := c.deleting(ctx, repository, digests)
		if err != nil {
			return request.Unavailable("%v", err)
		}
		if !deleting {
			return nil
		}
		if time.Now().After(deadline) {
			return request.Unavailable("parts of this image are being deleted: push it again later")
		}
		if err := poll.Sleep(ctx, min(c.Times.PollInterval, time.Second/10)); err != nil {
			return err
		}
	}
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
	now, previous := time.Now(), c.intents.seen
	c.intents.seen = map[string]*seenIntent{}
	found := false
	for _, name := range paths {
		info, err := c.leases.driver.Stat(ctx, name)
		if storage.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("reading a deletion: %w", err)
		}
		intent := previous[name]
		if intent == nil {
			list, err := c.leases.driver.GetContent(ctx, name)
			if storage.IsNotFound(err) {
				continue
			}
			if err != nil {
				return false, fmt.Errorf("reading a deletion: %w", err)
			}
			intent = &seenIntent{manifests: map[string]bool{}}
			for line := range strings.Lines(string(list)) {
				intent.manifests[strings.TrimSuffix(line, "\n")] = true
			}
		}
		if !info.ModTime().Equal(intent.modified) {
			intent.modified, intent.changed = info.ModTime(), now
		}
		if now.Sub(intent.changed) > c.Times.LeaseDuration+c.leases.propagation {
			_ = c.leases.driver.Delete(ctx, name) // its process is dead
			continue
		}
		c.intents.seen[name] = intent
		found = found || slices.ContainsFunc(digests, func(d digest.Digest) bool {
			return intent.manifests[repository+"@"+string(d)]
		})
	}
	return found, nil
}
