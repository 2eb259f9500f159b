package registry

import (
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

	"github.com/zarf-dev/zarf-registry/internal/gc"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
)

// leaseTimes are the durations of the lease that a garbage collector holds.
//
// No manifest may be written during a collection: it could refer to a blob that the collector has just
// found to be garbage. Everything else continues, including blob uploads. If a blob is removed before
// its manifest arrives, the manifest is refused; nothing that was reported as stored breaks.
//
// The lease is a record in the storage, the only thing that all replicas share, including replicas that
// start during a collection. No process needs to contact another:
//
//   - The collector writes the record and renews it at every heartbeat. It removes nothing before
//     drainPeriod has passed, and nothing once its last heartbeat is older than renewDeadline.
//   - A process reads the record before it writes a manifest. If the lease is held, it waits, and after
//     waitTimeout responds 503. Otherwise it writes the manifest, and moves the tag if the record has not
//     changed. If a step took longer than validity, which is less than drainPeriod, it reads the record
//     again before it responds: if a collection has begun since, it responds 503 and the manifest does
//     not count as stored.
//   - A record that has not changed for leaseDuration, which is more than renewDeadline, belongs to a
//     dead collector. Clocks are never compared: each process measures when it saw a record change.
//   - A collector that misses renewDeadline once, or finds another collector's record, stops for good:
//     other processes may no longer wait for it, and it cannot make them wait again.
type leaseTimes struct {
	// pollInterval is the maximum age of a reading for which a manifest is admitted, and the pause
	// between readings. A push of many small images reads once a second.
	pollInterval time.Duration
	// validity is how long after a reading a manifest may finish without another reading.
	validity time.Duration
	// drainPeriod is how long after acquiring the lease every manifest admitted before has finished or
	// will be refused. It is twice validity, for a storage that is slow to show one process what another
	// has written.
	drainPeriod time.Duration
	// waitTimeout is how long a manifest waits; no known client gives up earlier. It is longer than
	// drainPeriod, so that collecting a small registry refuses no push.
	waitTimeout   time.Duration
	heartbeat     time.Duration
	renewDeadline time.Duration
	leaseDuration time.Duration
}

var defaultLeaseTimes = leaseTimes{
	pollInterval: time.Second, validity: 10 * time.Second, drainPeriod: 20 * time.Second,
	waitTimeout: 40 * time.Second,
	heartbeat:   5 * time.Second, renewDeadline: 30 * time.Second, leaseDuration: time.Minute,
}

// leasePath is next to the directories that distribution reads, so that distribution neither lists nor
// serves it, and below the prefix that bucket policies allow.
const leasePath = "/docker/registry/v2/zarf-registry/garbage-collection.json"

// leaseRecord is the content of leasePath. It stays after a collection, with its result.
type leaseRecord struct {
	// ID is different for each collection.
	ID   string `json:"id"`
	Held bool   `json:"held"`
	// Heartbeat makes the record change while the collector lives.
	Heartbeat int `json:"beat"`
	// Succeeded is the Unix time of the last successful collection. Failure is the error of the last
	// collection, empty if it succeeded.
	Succeeded int64     `json:"succeeded,omitempty"`
	Failure   string    `json:"failure,omitempty"`
	Result    gc.Result `json:"result"`
}

// errLeaseHeld means that another process collects garbage in the same storage.
var errLeaseHeld = errors.New("garbage is already being collected, by another replica or by " +
	"registry garbage-collect: wait until it has finished")

// errLeaseLost means that a collector missed its renewDeadline, so that other processes may consider it
// dead. It must not remove anything after that.
var errLeaseLost = errors.New("lost the lease for garbage collection")

// leaseClient reads and acquires the lease. It is safe for concurrent use.
type leaseClient struct {
	driver storagedriver.StorageDriver
	root   string // of a filesystem, or ""
	times  leaseTimes

	// propagation is how much longer than drainPeriod it takes until every process sees what another has
	// written or removed.
	propagation time.Duration

	reading sync.Mutex // held while reading, so that concurrent callers share one reading
	last    atomic.Pointer[leaseReading]
}

// newLeaseClient returns a client for the storage of driver. Root is the directory of a filesystem, or "".
func newLeaseClient(driver storagedriver.StorageDriver, root string) *leaseClient {
	c := &leaseClient{driver: driver, root: root, times: defaultLeaseTimes, propagation: propagationDelay(root)}
	c.last.Store(&leaseReading{})
	return c
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
}

// held reports whether the lease was held when the reading began.
func (c *leaseClient) held(r *leaseReading) bool {
	return r.record.Held && r.at.Sub(r.changed) < c.times.leaseDuration+c.propagation
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
	case errors.As(err, new(storagedriver.PathNotFoundError)):
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
	c.last.Store(r)
	return r, nil
}

// follow reads the record at intervals until ctx ends, for metrics and reports, which do not wait for
// the storage.
func (c *leaseClient) follow(ctx context.Context, interval time.Duration) {
	for {
		_, _ = c.read(ctx, interval/2) // manifest uploads report the error
		if sleep(ctx, interval) != nil {
			return
		}
	}
}

// report returns the status of garbage collection in the last reading.
func (c *leaseClient) report() *reloadstatus.Collection {
	r := c.last.Load()
	report := &reloadstatus.Collection{ReadOnly: c.held(r), Problem: r.record.Failure}
	if r.record.Succeeded != 0 {
		at := time.Unix(r.record.Succeeded, 0).UTC()
		report.SucceededAt = &at
	}
	return report
}

// lease is held by a collector. No process writes manifests until it is released.
type lease struct {
	client *leaseClient

	mu      sync.Mutex
	record  leaseRecord
	renewed time.Time // when the last successful write began
	lost    error     // errLeaseLost, errLeaseHeld, or nil

	stop context.CancelFunc
	done chan struct{}
}

// acquire acquires the lease and waits until no process with this storage writes manifests any more. If
// another collector holds the lease, it returns errLeaseHeld.
func (c *leaseClient) acquire(ctx context.Context) (*lease, error) {
	r, err := c.waitUntilFree(ctx)
	if err != nil {
		return nil, err
	}
	record := r.record
	record.ID, record.Held, record.Heartbeat = rand.Text(), true, 0
	l := &lease{client: c, record: record, done: make(chan struct{})}
	if err := l.write(ctx); err != nil {
		return nil, err
	}
	_, _ = c.read(ctx, 0) // for metrics and reports of this process
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.heartbeats(background)
	err = sleep(ctx, c.times.drainPeriod+c.propagation)
	if err == nil {
		err = l.checkOwner(ctx)
	}
	if errors.Is(err, errLeaseHeld) {
		l.stopHeartbeats()
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

// waitUntilFree returns errLeaseHeld if another collector renews the lease, and waits until a dead
// collector's lease has expired.
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
		if err := sleep(ctx, c.times.pollInterval); err != nil {
			return nil, err
		}
		if r, err = c.read(ctx, 0); err != nil {
			return nil, err
		}
	}
}

// heartbeats renews the lease until ctx ends or another collector has taken it.
func (l *lease) heartbeats(ctx context.Context) {
	defer close(l.done)
	for sleep(ctx, l.client.times.heartbeat) == nil {
		if errors.Is(l.checkOwner(ctx), errLeaseHeld) {
			return
		}
		l.mu.Lock()
		l.record.Heartbeat++
		l.mu.Unlock()
		_ = l.write(ctx) // the next heartbeat retries; err reports a missed deadline
	}
}

func (l *lease) write(ctx context.Context) error {
	l.mu.Lock()
	record := l.record
	l.mu.Unlock()
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := putRecord(ctx, l.client.driver, l.client.root, leasePath, content); err != nil {
		return fmt.Errorf("writing the garbage-collection lease: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.renewed.IsZero() {
		l.checkDeadline() // other processes could not see this heartbeat earlier
	}
	l.renewed = at
	return nil
}

// checkOwner returns errLeaseHeld if the record is another collector's.
func (l *lease) checkOwner(ctx context.Context) error {
	r, err := l.client.read(ctx, 0)
	if err == nil && r.record.ID != l.record.ID {
		err = errLeaseHeld
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost = err
	}
	return err
}

// err returns nil while other processes see that the lease is held. Once it has returned an error, it
// always does.
func (l *lease) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkDeadline()
	return l.lost
}

// checkDeadline requires l.mu.
func (l *lease) checkDeadline() {
	if since := time.Since(l.renewed); since > l.client.times.renewDeadline && l.lost == nil {
		l.lost = fmt.Errorf("%w: the storage has accepted no heartbeat for %s, so pushes may have resumed",
			errLeaseLost, since.Round(time.Second))
	}
}

// releaseTimeout bounds the last write. Without that write, pushes wait until the lease expires.
const releaseTimeout = 10 * time.Second

// release lets manifests be written again and records the outcome.
func (l *lease) release(result gc.Result, failure error) {
	if result.Blobs > 0 || failure != nil {
		// A manifest must not rely on a blob that another process still sees but that was removed.
		_ = sleep(context.Background(), l.client.propagation)
	}
	l.stopHeartbeats()
	if l.err() != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = l.write(ctx) // if this fails, the lease expires
	_, _ = l.client.read(ctx, 0)
}

// stopHeartbeats leaves the record as it is.
func (l *lease) stopHeartbeats() {
	l.stop()
	<-l.done
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
