// Package volume knows how full the volume of the storage is, and refuses pushes before it is full.
//
// It removes nothing but the upload that does not fit. It knows nothing about the space of an object store.
package volume

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

const (
	// period is how often the volume is measured, by one system call. What is received in between is added.
	period = 2 * time.Second
	// warnPeriod is how often the log repeats that the volume is nearly full.
	warnPeriod = time.Hour
	// warnAgain is how many percent must be freed before the log warns of the same level again within warnPeriod.
	warnAgain = 2
)

// Space knows how full the volume is, and refuses pushes before it is full. It is safe for concurrent use.
//
// Everything that begins or continues a push is refused when the volume is used up to space.Full percent: uploads,
// mounts and manifests. Mounts and manifests are small, but an image that cannot be completed helps nobody, and the
// rest is for deletions and garbage collection. The project's own repositories are excepted: an upgrade, which may
// bring a larger volume, pushes its own images, which take about 100 MB.
type Space struct {
	// Measure returns the use of the volume. It may be changed before Poll.
	Measure func() space.Usage

	root string // of the filesystem driver, or ""
	log  *slog.Logger
	now  func() time.Time

	measuring sync.Mutex // so that no measurement replaces one that began later

	mu       sync.Mutex
	usage    space.Usage // as last measured; zero before, without a root, and if the file system does not tell its size
	received int64       // by uploads since then
	expected int64       // what is still to come of requests in progress

	warned   int // the level of the last warning: 0, space.NearlyFull or space.Full
	warnedAt time.Time
}

// New returns the space of a volume that is mounted at the filesystem driver's root; root is empty without one.
func New(root string, log *slog.Logger) *Space {
	return &Space{root: root, log: log, now: time.Now, Measure: func() space.Usage { return measure(root) }}
}

// Usage returns how full the volume is, with what has been received since it was measured.
func (s *Space) Usage() space.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usageLocked()
}

func (s *Space) usageLocked() space.Usage {
	return space.Usage{Used: min(s.usage.Used+s.received, s.usage.Limit), Limit: s.usage.Limit}
}

// warn logs that the volume is nearly full or full: when it becomes so, and every warnPeriod.
func (s *Space) warn() {
	usage := s.Usage()
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
	message := "the volume is nearly full"
	if level == space.Full {
		message = "the volume is full, pushes are refused"
	}
	s.log.Warn(message, "usedBytes", usage.Used, "limitBytes", usage.Limit, "percent", int(percent),
		"remedy", space.Remedy)
}

// admit returns the error to respond with if a push of bytes more does not fit, unless it is into the project's
// own repositories. Otherwise it keeps that much for the push: Arrived gives it up again. Negative is unknown.
func (s *Space) admit(own bool, bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = max(bytes, 0)
	usage := s.usageLocked()
	switch {
	case own:
	case usage.Lacks(0):
		return errorCodeFull.WithMessage(fmt.Sprintf("the storage is full: %s, and pushes are refused from %d %%: %s",
			usage, space.Full, space.Remedy))
	case bytes > 0 && usage.Lacks(s.expected+bytes):
		others := ""
		if s.expected > 0 {
			others = fmt.Sprintf(", and uploads in progress need %s", space.FormatBytes(s.expected))
		}
		return errorCodeFull.WithMessage(fmt.Sprintf("%s do not fit into the storage: %s%s, and pushes may use %d %%: %s",
			space.FormatBytes(bytes), usage, others, space.Full, space.Remedy))
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
}

// ExpectedBytes returns how many bytes of requests in progress are still to come.
func (s *Space) ExpectedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expected
}

// Update measures the volume. It may hang with it.
func (s *Space) Update() {
	s.measuring.Lock()
	defer s.measuring.Unlock()
	s.mu.Lock()
	before := s.received // has been written
	s.mu.Unlock()
	usage := s.Measure()
	if usage.Limit == 0 {
		return // storage.Health reports the error
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usage = usage
	s.received -= before
}

func measure(root string) space.Usage {
	var stat unix.Statfs_t
	if root == "" || unix.Statfs(root, &stat) != nil || stat.Blocks == 0 {
		return space.Usage{}
	}
	unit := stat.Bsize
	// As df does: what is reserved for root is not part of the limit.
	used := int64(stat.Blocks-stat.Bfree) * unit
	return space.Usage{Used: used, Limit: used + int64(stat.Bavail)*unit}
}

// Poll measures the volume at intervals until ctx ends, keeps ballast for garbage collection, and warns.
func (s *Space) Poll(ctx context.Context, writable bool) {
	poll.Every(ctx, period, func() {
		s.Update()
		if s.root != "" && writable {
			storage.KeepBallast(s.root)
		}
		s.warn()
	})
}
