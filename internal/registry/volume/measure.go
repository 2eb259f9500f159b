package volume

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

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
