// Package quota knows how full the storage is, and refuses pushes before it is full.
//
// It removes nothing but the upload that does not fit.
package quota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

const (
	// volumePeriod is how often the file system is measured, which is one system call. What this process receives in
	// between is added.
	volumePeriod = 2 * time.Second
	// contentPeriod is the least time between the end of a walk through the content and the next one, which corrects
	// for what other replicas have stored. A walk also takes at most a tenth of the time.
	contentPeriod = 10 * time.Minute
	// contentRetry is the same after a walk that failed, or during which content was removed.
	contentRetry = time.Minute
	// contentTimeout bounds a walk.
	contentTimeout = time.Hour
	// warnPeriod is how often the log repeats that the storage is nearly full.
	warnPeriod = time.Hour
	// warnAgain is how many percent must be freed before the log warns of the same level again within warnPeriod.
	warnAgain = 2
)

// errorCodeFull is not in the OCI distribution specification, which has no code for this. Of its codes, DENIED makes
// clients ask for another credential, TOOMANYREQUESTS and distribution's UNAVAILABLE make them retry, and SIZE_INVALID
// is about a wrong length. Clients show an unknown code with its message.
var errorCodeFull = errcode.Register("zarf-registry", errcode.ErrorDescriptor{
	Value:          "INSUFFICIENT_STORAGE",
	Message:        "the storage is full",
	Description:    "Returned when a push does not fit into the storage",
	HTTPStatusCode: http.StatusInsufficientStorage,
})

// errNoSpace is the response if a file system is full although that was not expected, errNoQuota if an upload of
// unknown size exceeds the quota.
var (
	errNoSpace = errorCodeFull.WithMessage("the file system of the storage has no space left: " +
		space.Remedy(space.ScopeVolume))
	errNoQuota = errorCodeFull.WithMessage("the upload exceeds the quota of the storage: " +
		space.Remedy(space.ScopeQuota))
)

// Space knows how full the storage is, and refuses pushes before it is full. It is safe for concurrent use.
//
// The limits are the file system's size, and the quota, if there is one. Everything that begins or continues a push is
// refused when one of them is used up to space.Full percent: uploads, mounts and manifests. Mounts and manifests are
// small, but an image that cannot be completed helps nobody, and the rest of the file system is for deletions and
// garbage collection. The project's own repositories are excepted: an upgrade, which may bring a larger quota or
// volume, pushes its own images, which take about 100 MB.
type Space struct {
	root  string // of the filesystem driver, or ""
	quota int64  // in bytes, or 0
	log   *slog.Logger
	now   func() time.Time

	mu       sync.Mutex
	volume   *space.Usage // as last measured; nil before, without a root, and if the file system does not tell its size
	received int64        // by uploads since then
	expected int64        // what is still to come of requests in progress
	content  int64        // with a quota: its use
	measured bool         // content is known
	walk     walkChanges

	warned   int // the level of the last warning: 0, space.NearlyFull or space.Full
	warnedAt time.Time
}

// walkChanges are what changes during a walk through the content.
type walkChanges struct {
	added   int64
	removed bool
}

func New(root string, quota int64, log *slog.Logger) *Space {
	return &Space{root: root, quota: quota, log: log, now: time.Now}
}

// Report returns how full the storage is, with what has been received since it was measured.
func (s *Space) Report() space.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reportLocked()
}

func (s *Space) reportLocked() (report space.Report) {
	if s.volume != nil {
		report.Volume = &space.Usage{Used: min(s.volume.Used+s.received, s.volume.Limit), Limit: s.volume.Limit}
	}
	if s.measured {
		report.Quota = &space.Usage{Used: s.content, Limit: s.quota}
	}
	return report
}

// MeasureVolume reads the size of the file system. It may hang with it.
func (s *Space) MeasureVolume() {
	if s.root == "" {
		return
	}
	s.mu.Lock()
	before := s.received // has been written
	s.mu.Unlock()
	var stat unix.Statfs_t
	if err := unix.Statfs(s.root, &stat); err != nil || stat.Blocks == 0 {
		return // storage.Health reports the error
	}
	unit := stat.Bsize
	// As df does: what is reserved for root is not part of the limit.
	used := int64(stat.Blocks-stat.Bfree) * unit
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volume = &space.Usage{Used: used, Limit: used + int64(stat.Bavail)*unit}
	s.received -= before
}

// PollVolume measures the file system at intervals until ctx ends, keeps ballast for garbage collection, and warns.
func (s *Space) PollVolume(ctx context.Context, writable bool) {
	for {
		s.MeasureVolume()
		if s.root != "" && writable {
			storage.KeepBallast(s.root)
		}
		s.warn()
		if poll.Sleep(ctx, volumePeriod) != nil {
			return
		}
	}
}

// PollContent measures the content at intervals until ctx ends. Without a quota it does nothing.
func (s *Space) PollContent(ctx context.Context, driver storagedriver.StorageDriver) {
	for s.quota > 0 {
		began := s.now()
		again, err := s.measureContent(ctx, driver)
		wait := max(contentPeriod, 9*s.now().Sub(began))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("measuring the content for the quota failed, retrying", "error", err)
			wait = contentRetry
		case again:
			wait = contentRetry
		}
		if poll.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// measureContent adds up the sizes of all files. What is stored meanwhile counts, perhaps twice. If something was
// removed, again is set, because it may have been counted.
func (s *Space) measureContent(ctx context.Context, driver storagedriver.StorageDriver) (again bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, contentTimeout, fmt.Errorf("not finished within %s", contentTimeout))
	defer cancel()
	s.mu.Lock()
	s.walk = walkChanges{}
	s.mu.Unlock()
	var sum int64
	if s.root != "" {
		sum, err = directorySize(ctx, filepath.Join(s.root, storage.RootPath))
	} else {
		err = driver.Walk(ctx, storage.RootPath, func(info storagedriver.FileInfo) error {
			if !info.IsDir() {
				sum += info.Size()
			}
			return ctx.Err()
		})
		if storage.IsNotFound(err) {
			err = nil // nothing was ever pushed
		}
	}
	if err != nil {
		return false, poll.Cause(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content, s.measured = sum+s.walk.added, true
	return s.walk.removed, nil
}

// directorySize adds up the sizes of the files below a directory, some of which may be removed meanwhile.
func directorySize(ctx context.Context, root string) (sum int64, err error) {
	err = filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && entry.Type().IsRegular() {
			info, err = entry.Info()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case info != nil:
			sum += info.Size()
		}
		return nil
	})
	return sum, err
}

// Removed subtracts content that was removed. It may be called on nil.
func (s *Space) Removed(bytes int64) {
	if s == nil || s.quota == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = max(0, s.content-bytes)
	s.walk.removed = s.walk.removed || bytes > 0
}

// HasQuota may be called on nil.
func (s *Space) HasQuota() bool { return s != nil && s.quota > 0 }

// warn logs that the storage is nearly full or full: when it becomes so, and every warnPeriod.
func (s *Space) warn() {
	scope, usage := s.Report().Tightest()
	percent, level := usage.Percent(), 0
	for _, l := range []int{space.NearlyFull, space.Full} {
		if percent >= float64(l) {
			level = l
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if level == 0 {
		if percent < space.NearlyFull-warnAgain {
			s.warned = 0
		}
		return
	}
	now := s.now()
	if level <= s.warned && now.Sub(s.warnedAt) < warnPeriod {
		return
	}
	s.warned, s.warnedAt = level, now
	message := "the storage is nearly full"
	if level == space.Full {
		message = "the storage is full, pushes are refused"
	}
	s.log.Warn(message, "limit", scope, "usedBytes", usage.Used, "limitBytes", usage.Limit, "percent", int(percent),
		"remedy", space.Remedy(scope))
}

// admit returns the error to respond with if a push of bytes more does not fit, unless it is into the project's
// own repositories. Otherwise it keeps that much for the push: arrived gives it up again. Negative is unknown.
func (s *Space) admit(own bool, bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = max(bytes, 0)
	report := s.reportLocked()
	if scope, usage := report.Lacks(0); scope != "" && !own {
		return errorCodeFull.WithMessage(fmt.Sprintf("the storage is full: %s, and pushes are refused from %d %%: %s",
			space.Describe(scope, usage), space.Full, space.Remedy(scope)))
	}
	if scope, usage := report.Lacks(s.expected + bytes); scope != "" && bytes > 0 && !own {
		others := ""
		if s.expected > 0 {
			others = fmt.Sprintf(", and uploads in progress need %s", space.FormatBytes(s.expected))
		}
		return errorCodeFull.WithMessage(fmt.Sprintf("%s do not fit into the storage: %s%s, and pushes may use %d %%: %s",
			space.FormatBytes(bytes), space.Describe(scope, usage), others, space.Full, space.Remedy(scope)))
	}
	s.expected += bytes
	return nil
}

// Arrived counts bytes of a push, which expected to send that many.
func (s *Space) Arrived(bytes, expected int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received += bytes
	s.expected -= expected
	if s.quota > 0 {
		s.content += bytes
		s.walk.added += bytes
	}
}

// ExpectedBytes returns how many bytes of requests in progress are still to come.
func (s *Space) ExpectedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expected
}

// Limit refuses pushes to next that do not fit, and responds 507 to those that the file system refuses.
func (s *Space) Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := request.TargetOf(r)
		switch r.Method {
		case http.MethodPost, http.MethodPatch, http.MethodPut:
		default:
			to = request.Target{}
		}
		if !to.Upload && to.Manifest == "" {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.admit(catalog.Own(to.Repository), r.ContentLength); err != nil {
			if to.Upload && r.Method != http.MethodPost {
				cancelUpload(next, w, r)
			}
			request.WriteError(w, err)
			return
		}
		body := &Body{ReadCloser: r.Body, space: s, own: catalog.Own(to.Repository),
			expected: max(r.ContentLength, 0), stream: to.Upload && r.ContentLength < 0}
		defer body.finish()
		failed := new(atomic.Pointer[error])
		r = r.WithContext(context.WithValue(r.Context(), noSpaceKey{}, failed))
		r.Body = body
		next.ServeHTTP(&noSpaceResponse{ResponseWriter: w, failed: failed}, r)
	})
}

// cancelUpload removes the upload that a request continues. Otherwise it would occupy full storage until it is purged,
// because few clients cancel it, and garbage collection keeps it.
func cancelUpload(next http.Handler, w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	r.Method, r.Body, r.ContentLength = http.MethodDelete, http.NoBody, 0
	next.ServeHTTP(request.Detach(w), r)
}

// exceeded returns whether more than the quota is used.
func (s *Space) exceeded() bool {
	quota := s.Report().Quota
	return quota != nil && quota.Used > quota.Limit
}

// Body counts the body of a push. net/http does not read it concurrently.
type Body struct {
	io.ReadCloser
	space    *Space
	own      bool // the repository is the project's
	expected int64
	// stream means an upload whose client does not say how large it is, as docker and skopeo. It may use the quota up,
	// but not exceed it, and then fails as on a full file system.
	stream bool
}

func (b *Body) Read(p []byte) (int, error) {
	if b.stream && b.space.exceeded() {
		return 0, errQuotaExceeded
	}
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		expected := min(int64(n), b.expected)
		b.expected -= expected
		b.space.Arrived(int64(n), expected)
	}
	return n, err
}

// Reserve admits what the push makes the registry write in addition. It is called after the body was read.
func (b *Body) Reserve(bytes int64) error {
	err := b.space.admit(b.own, bytes)
	if err == nil {
		b.expected += bytes
	}
	return err
}

// Wrote counts what the push has made the registry write in addition.
func (b *Body) Wrote(bytes int64) { b.space.Arrived(bytes, 0) }

// finish gives up what has not come.
func (b *Body) finish() {
	b.space.Arrived(0, b.expected)
	b.expected = 0
}

// errQuotaExceeded is the error of the body of an upload that exceeds the quota.
var errQuotaExceeded = fmt.Errorf("the quota is exceeded: %w", syscall.EDQUOT)

type noSpaceKey struct{}

// RecordNoSpace makes the response to a push 507, if err says that the file system is full. It reports whether it does.
func RecordNoSpace(ctx context.Context, err error) bool {
	if err == nil || !storage.NoSpace(err) {
		return false
	}
	if failed, ok := ctx.Value(noSpaceKey{}).(*atomic.Pointer[error]); ok {
		response := error(errNoSpace)
		if errors.Is(err, errQuotaExceeded) {
			response = errNoQuota
		}
		failed.Store(&response)
	}
	return true
}

// noSpaceResponse replaces an error response if the file system, or the quota, is full.
type noSpaceResponse struct {
	http.ResponseWriter
	failed   *atomic.Pointer[error] // what to respond with, or nil
	replaced bool
}

func (r *noSpaceResponse) WriteHeader(status int) {
	failed := r.failed.Load()
	if status < http.StatusInternalServerError || failed == nil {
		r.ResponseWriter.WriteHeader(status)
		return
	}
	if !r.replaced {
		r.replaced = true
		request.ClearHeader(r.Header())
		request.WriteError(r.ResponseWriter, *failed)
	}
}

func (r *noSpaceResponse) Write(p []byte) (int, error) {
	if r.replaced {
		return len(p), nil
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *noSpaceResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }
