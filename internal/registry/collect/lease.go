package collect

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Times are the durations of the protocol in the package comment.
type Times struct {
	// PollInterval is the maximum age of a reading for which a manifest is admitted, and the pause between readings.
	PollInterval time.Duration
	// Validity is how long after a reading a manifest may finish without another reading.
	Validity time.Duration
	// DrainPeriod is how long after publishing the list every manifest admitted before has finished or will be refused.
	// It is twice Validity, for a storage that is slow to show one process what another has written.
	DrainPeriod time.Duration
	// WaitTimeout is how long a manifest or a blob waits; no known client gives up earlier. It is longer than
	// DrainPeriod, so that collecting a small registry refuses no push.
	WaitTimeout time.Duration
	// Heartbeat is how often a record is renewed. Otherwise it is lost after RenewDeadline, and dead after LeaseDuration.
	Heartbeat, RenewDeadline, LeaseDuration time.Duration
}

var defaultTimes = Times{
	PollInterval: time.Second, Validity: 10 * time.Second, DrainPeriod: 20 * time.Second,
	WaitTimeout: 40 * time.Second,
	Heartbeat:   5 * time.Second, RenewDeadline: 30 * time.Second, LeaseDuration: time.Minute,
}

// The paths of the record and of the list of garbage. They are next to the directories that distribution
// reads, so that distribution neither lists nor serves them, and below the prefix that bucket policies allow.
const (
	leasePath       = "/docker/registry/v2/zarf-registry/garbage-collection.json"
	garbageListPath = "/docker/registry/v2/zarf-registry/garbage-list"
)

// leaseRecord is the content of leasePath. It stays after a collection, with its result.
type leaseRecord struct {
	// ID is different for each collection.
	ID   string `json:"id"`
	Held bool   `json:"held"`
	// Heartbeat makes the record change while the collector lives.
	Heartbeat int `json:"heartbeat"`
	// Previous is the ID of the collection before.
	Previous string `json:"previous,omitempty"`
	// GarbageList is the digest of the list.
	GarbageList digest.Digest `json:"garbageList"`
	// Succeeded is the Unix time of the last successful collection. Failure is the error of the last one, if it failed.
	Succeeded int64     `json:"succeeded,omitempty"`
	Failure   string    `json:"failure,omitempty"`
	Result    gc.Result `json:"result"`
}

// errLeaseHeld means that another process collects garbage in the same storage.
var errLeaseHeld = errors.New("garbage is already being collected, by another replica or by " +
	"registry garbage-collect: wait until it has finished")

// leaseClient reads and acquires the lease. It is safe for concurrent use.
type leaseClient struct {
	driver storagedriver.StorageDriver
	root   string // of a filesystem, or ""
	times  *Times

	// propagation is how much longer than drainPeriod it takes until every process sees what another has changed.
	propagation time.Duration

	reading sync.Mutex // held while reading, so that concurrent callers share one reading
	last    atomic.Pointer[leaseReading]
	own     atomic.Value // the ID of this process's last collection, a string
}

// networkCacheTime is how long clients of a network filesystem may cache that a file exists or does not
// (acregmax and acdirmax in nfs(5), actimeo in mount.cifs(8)).
const networkCacheTime = time.Minute

// networkFilesystems are their types in statfs(2): NFS, versions of SMB, and FUSE, which may be anything.
var networkFilesystems = []uint32{0x6969, 0xff534d42, 0xfe534d42, 0x517b, 0x65735546}

// propagationDelay is that of the filesystem at root. S3 is strongly consistent.
func propagationDelay(root string) time.Duration {
	var stat unix.Statfs_t
	if root == "" || unix.Statfs(root, &stat) != nil || !slices.Contains(networkFilesystems, uint32(stat.Type)) {
		return 0
	}
	return networkCacheTime
}

// leaseReading is the record as it was read at a time.
type leaseReading struct {
	// record is the zero value if garbage was never collected.
	record  leaseRecord
	at      time.Time // when the reading began; zero before the first
	changed time.Time // when this record was first seen
	// garbage is the list of another process's collection; nil without such a collection, or without its list.
	garbage garbageSet
}

// held reports whether the lease was held when the reading began.
func (c *leaseClient) held(r *leaseReading) bool {
	return r.record.Held && r.at.Sub(r.changed) < c.times.LeaseDuration+c.propagation
}

// read returns a reading that is not older than age.
func (c *leaseClient) read(ctx context.Context, age time.Duration) (*leaseReading, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	previous := c.last.Load()
	if !previous.at.IsZero() && time.Since(previous.at) < age {
		return previous, nil
	}
	r := &leaseReading{at: time.Now(), changed: previous.changed}
	content, err := c.driver.GetContent(ctx, leasePath)
	switch {
	case storage.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("reading the garbage-collection lease: %w", err)
	default:
		if json.Unmarshal(content, &r.record) != nil {
			// A live collector overwrites an invalid record; a dead one's must not block pushes forever.
			r.record = leaseRecord{ID: digest.FromBytes(content).String(), Held: true}
		}
	}
	if previous.at.IsZero() || r.record != previous.record {
		r.changed = time.Now()
	}
	if c.otherCollects(r) {
		if r.garbage = previous.garbage; r.garbage == nil || r.record.GarbageList != previous.record.GarbageList {
			if r.garbage, err = c.readGarbageList(ctx, r.record.GarbageList); err != nil {
				return nil, err
			}
		}
	}
	c.last.Store(r)
	return r, nil
}

// lease is held by a collector.
type lease struct {
	renewal // which guards record

	record leaseRecord
	// behind is how far the storage's clock, which stamps files, lags; at least 0.
	behind time.Duration
}

// acquire acquires the lease to remove what is in the list, and waits until no process writes manifests without regard
// to the list. If another collector holds the lease, it returns errLeaseHeld.
func (c *leaseClient) acquire(ctx context.Context, list garbageSet) (*lease, error) {
	r, err := c.waitUntilFree(ctx)
	if err != nil {
		return nil, err
	}
	content := encode(list)
	// A full volume must not prevent the collection. Without the list, other processes block every manifest.
	_ = c.driver.PutContent(ctx, garbageListPath, content)
	if again, err := c.read(ctx, 0); err != nil || again.record != r.record {
		return nil, cmp.Or(err, errLeaseHeld) // the other collector's list is lost: manifests wait until it ends
	}
	record := r.record
	record.ID, record.Held, record.Heartbeat = rand.Text(), true, 0
	record.Previous, record.GarbageList = r.record.ID, digest.FromBytes(content)
	c.own.Store(record.ID)
	l := &lease{renewal: renewal{leases: c, path: leasePath}, record: record}
	if err := l.write(ctx); err != nil {
		return nil, err
	}
	if info, err := c.driver.Stat(ctx, leasePath); err == nil {
		l.behind = max(0, l.renewed.Sub(info.ModTime()))
		if info.ModTime().Nanosecond() == 0 {
			l.behind += time.Second // S3 stamps whole seconds, so each stamp may be that much too early
		}
	}
	_, _ = c.read(ctx, 0) // for metrics and reports of this process
	l.keep(ctx, l.heartbeat)
	if len(list) > 0 {
		// Others see the list late, and the collector sees late what they have written until then.
		err = poll.Sleep(ctx, c.times.DrainPeriod+2*c.propagation)
	}
	if err == nil {
		err = l.checkOwner(ctx)
	}
	if errors.Is(err, errLeaseHeld) {
		l.halt()
		return nil, err // both began at once, and the other wrote last
	}
	if err == nil {
		err = l.err()
	}
	if err != nil {
		l.release(gc.Result{}, err)
		return nil, err
	}
	return l, nil
}

// delete deletes a path, and reports whether it existed. It must not happen after a lease, or an intent, has expired.
func (c *leaseClient) delete(ctx context.Context, name string) (existed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.times.RenewDeadline)
	defer cancel()
	err = c.driver.Delete(ctx, name)
	if storage.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// recordFailure records that a collection has failed before it acquired the lease.
func (c *leaseClient) recordFailure(ctx context.Context, failure error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if l, err := c.acquire(ctx, nil); err == nil {
		l.release(gc.Result{}, failure)
	}
}

// waitUntilFree returns errLeaseHeld if another collector renews the lease, and waits until that of a dead one expires.
func (c *leaseClient) waitUntilFree(ctx context.Context) (*leaseReading, error) {
	first, err := c.read(ctx, 0)
	if err != nil {
		return nil, err
	}
	for r := first; ; {
		switch {
		case !c.held(r):
			return r, nil
		case r.record != first.record:
			return nil, errLeaseHeld
		}
		if err := poll.Sleep(ctx, c.times.PollInterval); err != nil {
			return nil, err
		}
		if r, err = c.read(ctx, 0); err != nil {
			return nil, err
		}
	}
}

// heartbeat renews the lease, unless another collector has taken it.
func (l *lease) heartbeat(ctx context.Context) bool {
	if errors.Is(l.checkOwner(ctx), errLeaseHeld) {
		return false
	}
	l.mu.Lock()
	l.record.Heartbeat++
	l.mu.Unlock()
	_ = l.write(ctx) // the next heartbeat retries; err reports a missed deadline
	return true
}

func (l *lease) write(ctx context.Context) error {
	l.mu.Lock()
	content, err := json.Marshal(l.record)
	l.mu.Unlock()
	if err == nil {
		err = l.put(ctx, content)
	}
	if err != nil {
		return fmt.Errorf("writing the garbage-collection lease: %w", err)
	}
	return nil
}

// checkOwner returns errLeaseHeld if the record is another collector's.
func (l *lease) checkOwner(ctx context.Context) error {
	r, err := l.leases.read(ctx, 0)
	if err == nil && r.record.ID != l.record.ID {
		err = errLeaseHeld
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost = err
	}
	return err
}

// err returns nil while other processes see that the lease is held. After an error, nothing may be removed.
func (l *lease) err() error {
	err := l.renewal.err()
	if err != nil && !errors.Is(err, errLeaseHeld) {
		err = fmt.Errorf("lost the lease for garbage collection: %w, so pushes may have resumed", err)
	}
	return err
}

// releaseTimeout bounds the last writes. Without them, other processes defer pushes until the lease expires.
const releaseTimeout = 10 * time.Second

// release ends the collection and records the outcome.
func (l *lease) release(result gc.Result, failure error) {
	if result.Blobs > 0 || failure != nil {
		// A manifest must not rely on a blob that another process still sees but that was removed.
		_ = poll.Sleep(context.Background(), l.leases.propagation)
	}
	l.halt()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if l.err() != nil || errors.Is(l.checkOwner(ctx), errLeaseHeld) {
		return // another collector may hold the lease by now; do not overwrite its record
	}
	l.mu.Lock()
	l.record.Held, l.record.Result, l.record.Failure = false, result, ""
	if failure != nil {
		l.record.Failure = failure.Error()
	} else {
		l.record.Succeeded = time.Now().Unix()
	}
	l.mu.Unlock()
	_ = l.leases.driver.Delete(ctx, garbageListPath) // the next collection overwrites it
	_ = l.write(ctx)                                 // if this fails, the lease expires
	_, _ = l.leases.read(ctx, 0)
}
