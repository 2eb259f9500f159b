// Package collect removes what no image needs, while the registry runs.
//
// It neither decides which images to delete, nor serves pushes: they ask it. For deletions, see intent.go.
//
// Manifests are written during a collection. None that is reported as stored may refer to a blob that the collection
// removes. Everything that another process needs to know is in a record in the storage, the only thing that all
// replicas share, including replicas that start during a collection. No process needs to contact another:
//
//  1. The collector marks what is needed. What is not, and is older than the grace period, is garbage.
//  2. It writes the list of garbage, and then the record, which names the list. It renews the record at every
//     heartbeat. There is one collector at a time.
//  3. From then on, a process does not write a manifest that needs garbage, its own included: see
//     below. It reads the record before it writes a manifest. If a step took longer than Validity, which is
//     less than DrainPeriod, it reads the record again before it moves a tag and before it responds: if a list
//     was published since, and the manifest needs something in it, or the list is gone with its collection, it
//     responds 503 and the manifest does not count as stored.
//  4. The collector waits for DrainPeriod. All manifests that were written without knowledge of the list are
//     complete then, or will be refused.
//  5. It marks again. What is needed by now, or was written or linked meanwhile, is no longer garbage. The
//     rest is needed by nothing, and by no manifest to come, until the record is released. It sweeps the rest.
//
// Why nothing is lost: let a manifest be reported as stored, and d be what it needs, be it through an index.
// If its process knew the list, d is not in it, and only what is in it is removed. If not, the manifest was
// complete before the second marking, which found it. Otherwise the process has refused it.
//
// A manifest that needs garbage:
//
//   - in the process that collects, rescues it, with all that it needs, from the sweep: see blobsInUse. Nothing
//     waits, apart from a manifest whose very blob is being removed. If a part has been removed, the client
//     learns that it is unknown and pushes it again. Uploads, mounts and HEAD requests rescue, too.
//   - in another process, waits until the record is released, and after WaitTimeout responds 503. So does an upload or
//     a mount of such a blob, before the content is sent if its digest is known. HEAD requests tell the truth, because
//     pulls send them, too: if the blob is removed then, the manifest is refused.
//
// A record whose list is missing or another one, or that cannot be read, blocks every manifest.
//
// A record that has not changed for LeaseDuration, which is more than RenewDeadline, belongs to a dead collector.
// Clocks are never compared: each process measures when it saw a record change. A collector removes nothing once
// its last heartbeat is older than RenewDeadline. One that misses RenewDeadline once, or finds another collector's
// record, stops for good: other processes may no longer respect its list, and it cannot make them respect it again.
package collect

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/registry/content"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
)

// Collector collects garbage, and keeps what pushes rely on from all collections. It is safe for concurrent use.
type Collector struct {
	// Times may be changed before the first use.
	Times Times

	store      *content.Store
	leases     *leaseClient
	use        blobsInUse
	intents    seenIntents
	removals   int        // how many at once, set by tests; 0 is storage.Concurrency
	collecting sync.Mutex // held while this process serves a collection
}

// New returns a collector for a store. Root is the directory of a filesystem, or "".
func New(store *content.Store, root string) *Collector {
	c := &Collector{Times: defaultTimes, store: store}
	c.leases = &leaseClient{driver: store.Driver, root: root, times: &c.Times, propagation: propagationDelay(root)}
	c.leases.last.Store(&leaseReading{})
	return c
}

// AdmitBlob waits while another process's collection may remove a blob that is about to be stored, like Admit. A digest
// other than SHA-256 says nothing about what it is stored as, so that it waits for every list.
func (c *Collector) AdmitBlob(ctx context.Context, d digest.Digest) error {
	_, err := c.leases.wait(ctx, func(r *leaseReading) bool {
		return c.leases.mayRemove(r, []digest.Digest{d}) || c.leases.otherCollects(r) && d.Algorithm() != digest.Canonical
	})
	return err
}

// Poll reads the state of collections at intervals, for metrics and reports, which do not wait for the storage.
func (c *Collector) Poll(ctx context.Context, interval time.Duration) {
	poll.Every(ctx, interval, func() { _, _ = c.leases.read(ctx, interval/2) }) // manifest uploads report the error
}

// Status returns the record of collections by all processes, as last read. It is held while one runs.
func (c *Collector) Status() (record leaseRecord) {
	r := c.leases.last.Load()
	record = r.record
	record.Held = c.leases.held(r)
	return record
}

// Loaded describes the state of collections.
func (c *Collector) Loaded() *loaded.GarbageCollection {
	last := c.Status()
	report := &loaded.GarbageCollection{Running: last.Held, Problem: last.Failure}
	if last.Succeeded != 0 {
		at := time.Unix(last.Succeeded, 0).UTC()
		report.SucceededAt = &at
	}
	return report
}
