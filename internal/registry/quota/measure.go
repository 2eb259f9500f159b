package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/registry/poll"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// walkChanges are what changes during a walk through the content.
type walkChanges struct {
	added   int64
	removed bool
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
