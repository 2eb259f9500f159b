package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/gorilla/mux"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// While garbage is collected no manifest may be written: it could name a blob that was
// found to be garbage a moment before. Everything else goes on, uploads of blobs too: a
// blob that goes before its manifest comes makes the manifest be refused, and nothing
// that was reported is broken.
//
// What holds manifests up is a record in the storage itself, the only thing that all
// replicas share, those that start in between included. Nobody has to be asked or told:
//
//   - The collector writes the record, and writes it again every beat. It removes nothing
//     before settle has passed, and nothing when its last beat is longer ago than lost.
//   - Who writes a manifest reads the record first. Held, it waits; after patience it
//     answers 503. Otherwise it writes, and where that took longer than trust, which is
//     less than settle, it reads again before it answers: a manifest during which a
//     collection began is answered 503 and not reported as taken.
//   - A record that has not changed for stale, which is more than lost, is of a collector
//     that died. Clocks are never compared: each process takes the time of what it sees.
//   - A collector that was once later than lost, or finds the record of another, ends: by
//     then others may have stopped waiting for it, and it cannot make them wait again.
type holdTimes struct {
	// fresh is how old a reading may be that a manifest begins with: pushes of many small
	// images read once a second.
	fresh time.Duration
	// trust is how long after a reading a manifest may end without another.
	trust time.Duration
	// settle is the time after which every manifest that began before the hold has ended
	// or will be refused. It is trust and as much again for a storage that is slow to
	// show to one what another wrote.
	settle time.Duration
	// patience is how long a manifest waits; no client that is known gives up before. It
	// is longer than settle, so that a small registry collects without any refusal.
	patience time.Duration
	beat     time.Duration
	lost     time.Duration
	stale    time.Duration
}

var defaultHoldTimes = holdTimes{
	fresh: time.Second, trust: 10 * time.Second, settle: 20 * time.Second, patience: 40 * time.Second,
	beat: 5 * time.Second, lost: 30 * time.Second, stale: time.Minute,
}

// holdPath is beside the folders in which distribution looks, so that it neither lists
// nor serves it, and below the one that policies of buckets allow.
const holdPath = "/docker/registry/v2/zarf-registry/garbage-collection.json"

// holdRecord is the content of holdPath. It stays, for what it says about the last
// collection.
type holdRecord struct {
	// ID is another with each collection.
	ID   string `json:"id"`
	Held bool   `json:"held"`
	// Beat makes the record change as long as the collector lives.
	Beat int `json:"beat"`
	// Succeeded is when the last collection did that succeeded, in Unix time; Failure is
	// why the last one did not, empty where it did.
	Succeeded int64     `json:"succeeded,omitempty"`
	Failure   string    `json:"failure,omitempty"`
	Result    gc.Result `json:"result"`
}

// errLeaseLost says that a collector has not written its record for so long that other processes may
// take it for dead. It must not remove anything after that.
var errLeaseLost = errors.New("lost the lease for garbage collection")

// errHeld is of a storage whose garbage somebody else collects.
var errHeld = errors.New("garbage is being collected already, by another replica or by registry garbage-collect; wait for its end")

// gate is one process's view of the record. It is safe for concurrent use.
type gate struct {
	driver storagedriver.StorageDriver
	times  holdTimes

	// slow is how much longer than settle it takes until every process sees what one has
	// written or removed.
	slow time.Duration

	reading sync.Mutex // held by who reads: who comes meanwhile has use of the same reading
	seen    atomic.Pointer[reading]
}

// newGate is for the storage behind driver; root is of a filesystem, else "".
func newGate(driver storagedriver.StorageDriver, root string) *gate {
	g := &gate{driver: driver, times: defaultHoldTimes, slow: slowness(root)}
	g.seen.Store(&reading{})
	return g
}

// reading is the record at a time.
type reading struct {
	// record is the zero value where nothing was ever collected.
	record  holdRecord
	at      time.Time // when the reading began; zero before the first
	changed time.Time // when the record was first seen as it is
}

// held tells whether somebody collects, as far as a reading tells: nothing is known of the
// time since it began.
func (g *gate) held(r *reading) bool {
	return r.record.Held && r.at.Sub(r.changed) < g.times.stale+g.slow
}

// read returns a reading that is not older than age.
func (g *gate) read(ctx context.Context, age time.Duration) (*reading, error) {
	g.reading.Lock()
	defer g.reading.Unlock()
	before := g.seen.Load()
	if !before.at.IsZero() && time.Since(before.at) < age {
		return before, nil
	}
	r := &reading{at: time.Now(), changed: before.changed}
	content, err := g.driver.GetContent(ctx, holdPath)
	switch {
	case errors.As(err, new(storagedriver.PathNotFoundError)):
	case err != nil:
		return nil, fmt.Errorf("looking whether garbage is being collected: %w", err)
	default:
		if json.Unmarshal(content, &r.record) != nil {
			// Whoever lives writes another; of who does not nobody is to be in the way for ever.
			r.record = holdRecord{ID: digest.FromBytes(content).String(), Held: true}
		}
	}
	if before.at.IsZero() || r.record != before.record {
		r.changed = time.Now()
	}
	g.seen.Store(r)
	return r, nil
}

// follow reads at intervals until ctx ends, for those who ask how it is without waiting
// for a storage.
func (g *gate) follow(ctx context.Context, interval time.Duration) {
	for {
		_, _ = g.read(ctx, interval/2) // whoever writes is told
		if pause(ctx, interval) != nil {
			return
		}
	}
}

// admit waits until manifests may be written.
func (g *gate) admit(ctx context.Context) (*reading, error) {
	deadline := time.Now().Add(g.times.patience)
	for {
		r, err := g.read(ctx, g.times.fresh)
		if err != nil {
			return nil, unavailable("%v", err)
		}
		if !g.held(r) {
			return r, nil
		}
		if time.Now().After(deadline) {
			return nil, unavailable("garbage is being collected: until that is done images can be pulled, but not pushed; try again")
		}
		if err := pause(ctx, g.times.fresh); err != nil {
			return nil, err
		}
	}
}

// confirm tells whether a manifest that was admitted with a reading has ended before any
// collection could have removed what it needs.
func (g *gate) confirm(ctx context.Context, admitted *reading) error {
	if time.Since(admitted.at) <= g.times.trust {
		return nil
	}
	r, err := g.read(ctx, 0)
	if err != nil {
		return unavailable("%v", err)
	}
	if r.record.ID != admitted.record.ID {
		return unavailable("garbage was collected while this was written, so that parts of it may be missing: push it again")
	}
	return nil
}

func unavailable(format string, args ...any) error {
	return errcode.ErrorCodeUnavailable.WithMessage(fmt.Sprintf(format, args...))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// withGate holds up manifests that next would write while garbage is collected.
func withGate(g *gate, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var match mux.RouteMatch
		if r.Method != http.MethodPut || !routes.Match(r, &match) || match.Route == nil || match.Route.GetName() != v2.RouteNameManifest {
			next.ServeHTTP(w, r)
			return
		}
		// First, or a client that sends slowly would be late with what was admitted in time.
		manifest, err := io.ReadAll(io.LimitReader(r.Body, maxManifest))
		if err != nil {
			refuse(w, err)
			return
		}
		r.Body = readCloser{io.MultiReader(bytes.NewReader(manifest), r.Body), r.Body}
		admitted, err := g.admit(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		answer := &heldAnswer{ResponseWriter: w}
		next.ServeHTTP(answer, r)
		if answer.status < http.StatusMultipleChoices {
			if err := g.confirm(r.Context(), admitted); err != nil {
				clear(w.Header())
				refuse(w, err)
				return
			}
		}
		w.WriteHeader(answer.code())
		_, _ = w.Write(answer.body) // the client may have gone
	})
}

// maxManifest is what distribution takes for one.
const maxManifest = 4 << 20

// readCloser reads and closes different things.
type readCloser struct {
	io.Reader
	io.Closer
}

// heldAnswer keeps an answer back. Those to a PUT of a manifest are small.
type heldAnswer struct {
	http.ResponseWriter
	status int
	body   []byte
}

func (a *heldAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *heldAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.body = append(a.body, p...)
	return len(p), nil
}

func (a *heldAnswer) code() int {
	if a.status == 0 {
		return http.StatusOK
	}
	return a.status
}

// lease is what a collector has while manifests are held up.
type lease struct {
	gate *gate

	mu     sync.Mutex
	record holdRecord
	beaten time.Time // when the last write that succeeded began
	ended  error     // why others may believe that nobody collects any more, or nil

	stop context.CancelFunc
	done chan struct{}
}

// hold keeps manifests from being written, in all processes with this storage, until
// release. It returns when it does, or errHeld.
func (g *gate) hold(ctx context.Context) (*lease, error) {
	r, err := g.read(ctx, 0)
	if err != nil {
		return nil, err
	}
	for first := r; g.held(r); {
		if r.record != first.record {
			return nil, errHeld // it lives
		}
		if err := pause(ctx, g.times.fresh); err != nil {
			return nil, err
		}
		if r, err = g.read(ctx, 0); err != nil {
			return nil, err
		}
	}
	record := r.record
	record.ID, record.Held, record.Beat = rand.Text(), true, 0
	l := &lease{gate: g, record: record, done: make(chan struct{})}
	if err := l.write(ctx); err != nil {
		return nil, err
	}
	_, _ = g.read(ctx, 0) // for those who ask this process how it is
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.keep(background)
	err = pause(ctx, g.times.settle+g.slow)
	if err == nil {
		err = l.mine(ctx)
	}
	if errors.Is(err, errHeld) {
		l.abandon()
		return nil, err // both began at once, and the other wrote last
	}
	if err == nil {
		err = l.lives()
	}
	if err != nil {
		l.release(gc.Result{}, err)
		return nil, err
	}
	return l, nil
}

// slowTime is how long clients of a filesystem in the network may go on believing what
// they knew of it: that there is no such file, or still is (acregmax and acdirmax, see
// nfs(5); actimeo, see mount.cifs(8)).
const slowTime = time.Minute

// slowFilesystems are the types of those, as statfs(2) has them: NFS, SMB in its versions,
// and FUSE, behind which anything may be.
var slowFilesystems = []uint32{0x6969, 0xff534d42, 0xfe534d42, 0x517b, 0x65735546}

// slowness is that of the filesystem at root. S3 shows everything at once.
func slowness(root string) time.Duration {
	var stat unix.Statfs_t
	if root == "" || unix.Statfs(root, &stat) != nil || !slices.Contains(slowFilesystems, uint32(stat.Type)) {
		return 0
	}
	return slowTime
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
	if err := l.gate.driver.PutContent(ctx, holdPath, content); err != nil {
		return fmt.Errorf("writing to the storage that garbage is being collected: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.beaten.IsZero() {
		l.late(time.Since(l.beaten)) // only now can the others see this beat
	}
	l.beaten = at
	return nil
}

// late ends the lease if nothing was written for too long.
func (l *lease) late(since time.Duration) {
	if since > l.gate.times.lost && l.ended == nil {
		l.ended = fmt.Errorf("%w: the storage has accepted no heartbeat for %s, so pushes may have resumed", errLeaseLost, since.Round(time.Second))
	}
}

// mine returns errHeld where the record is another's.
func (l *lease) mine(ctx context.Context) error {
	r, err := l.gate.read(ctx, 0)
	if err == nil && r.record.ID != l.record.ID {
		err = errHeld
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = err
	}
	return err
}

// keep writes the record at every beat, as long as it is there to be written again.
func (l *lease) keep(ctx context.Context) {
	defer close(l.done)
	for pause(ctx, l.gate.times.beat) == nil {
		if errors.Is(l.mine(ctx), errHeld) {
			return
		}
		l.mu.Lock()
		l.record.Beat++
		l.mu.Unlock()
		_ = l.write(ctx) // lives tells, and the next beat tries again
	}
}

// lives returns nil while others see that somebody collects. After an error there are
// only errors.
func (l *lease) lives() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late(time.Since(l.beaten))
	return l.ended
}

// abandon ends the beats and leaves the record.
func (l *lease) abandon() {
	l.stop()
	<-l.done
}

// releaseTimeout bounds the last write: without it others wait until the record is stale.
const releaseTimeout = 10 * time.Second

// release lets manifests be written again and records how it went.
func (l *lease) release(result gc.Result, failure error) {
	if result.Blobs > 0 || failure != nil {
		// A manifest must not be taken for a blob that only seems to be there.
		_ = pause(context.Background(), l.gate.slow)
	}
	l.abandon()
	if l.lives() != nil {
		return // another may collect by now, whose record this would replace
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
	_ = l.write(ctx) // else it becomes stale
	_, _ = l.gate.read(ctx, 0)
}
