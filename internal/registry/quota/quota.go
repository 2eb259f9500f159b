// Package quota knows how full the storage is, and refuses pushes before it is full.
//
// It removes nothing but the upload that does not fit.
package quota

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
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

// Removed subtracts content that was removed.
func (s *Space) Removed(bytes int64) {
	if s.quota == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = max(0, s.content-bytes)
	s.walk.removed = s.walk.removed || bytes > 0
}

func (s *Space) HasQuota() bool { return s.quota > 0 }

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
