package registry

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// sweeper removes manifests and blobs.
type sweeper struct {
	driver   storagedriver.StorageDriver
	dryRun   bool
	report   func(gc.Event)
	leaseErr func() error // an error if the lease is lost
	// deleteTimeout bounds one deletion: the storage must not carry it out after the lease has expired.
	deleteTimeout time.Duration
	result        *gc.Result
}

// manifest removes a manifest from its repository. Its blob is removed like other blobs.
func (s *sweeper) manifest(ctx context.Context, m storedManifest, history []string) error {
	if err := s.remove(ctx, append(slices.Clone(history), m.path)...); err != nil {
		return err
	}
	s.result.Manifests++
	s.report(gc.Event{Removed: &gc.Removed{Repository: m.repository, Digest: m.digest.String()}})
	return nil
}

// blob removes a blob, its repository links first: while its data exists, the next collection finds it.
func (s *sweeper) blob(ctx context.Context, d digest.Digest, b *storedBlob) error {
	if err := s.remove(ctx, append(slices.Clone(b.links), b.path)...); err != nil {
		return err
	}
	s.result.Blobs++
	s.result.Bytes += b.size
	s.report(gc.Event{Removed: &gc.Removed{Digest: d.String(), Bytes: b.size}})
	return nil
}

// errConcurrentWrite means that a push wrote to a directory while it was being removed. The blob's data
// still exists.
var errConcurrentWrite = errors.New("a push wrote to it while it was being removed")

func (s *sweeper) remove(ctx context.Context, paths ...string) error {
	for _, name := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.leaseErr(); err != nil {
			return err
		}
		if s.dryRun {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, s.deleteTimeout)
		err := s.driver.Delete(bounded, name)
		cancel()
		switch {
		case err == nil, errors.As(err, new(storagedriver.PathNotFoundError)):
		case driverFailed(err, syscall.ENOTEMPTY):
			return errConcurrentWrite
		default:
			return err
		}
	}
	return nil
}
