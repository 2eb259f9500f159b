package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/storage"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
)

// CollectOptions are how GarbageCollect works.
type CollectOptions struct {
	// DryRun removes nothing and reports what would be removed.
	DryRun bool
	// DeleteUntagged removes manifests that neither a tag nor an image index
	// leads to, besides blobs without a manifest.
	DeleteUntagged bool
	// Report receives a line for each thing removed. Required.
	Report io.Writer
}

// Collected is what GarbageCollect removed, or would have.
type Collected struct {
	Manifests int
	Blobs     int
	// Bytes are those of the blobs, manifests included.
	Bytes int64
}

// GarbageCollect removes the blobs that no manifest leads to.
//
// It marks and then sweeps without a lock that a registry would know: a blob
// that is pushed in between, and not yet named by a manifest, is lost. Run it
// while nobody pushes: with the registry stopped or in
// storage.maintenance.readonly. Pulls may go on.
func GarbageCollect(ctx context.Context, config *configuration.Configuration, options CollectOptions) (Collected, error) {
	if config.Storage.Type() == driverInMemory {
		return Collected{}, errors.New("storage.inmemory is in the memory of the running registry: there is nothing to collect; restart it to empty it")
	}
	driver, err := openDriver(ctx, config.Storage)
	if err != nil {
		return Collected{}, err
	}
	_, err = driver.Stat(ctx, repositoriesPath)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return Collected{}, nil // nothing was ever pushed
	}
	if err != nil {
		return Collected{}, fmt.Errorf("reading the storage: %w", err)
	}
	sweeper := &sweeper{StorageDriver: driver, options: options}
	namespace, err := storage.NewRegistry(ctx, sweeper)
	if err != nil {
		return Collected{}, fmt.Errorf("opening the storage: %w", err)
	}
	// The sweeper knows about dry runs, so that both kinds find the same things.
	err = storage.MarkAndSweep(ctx, sweeper, namespace, storage.GCOpts{RemoveUntagged: options.DeleteUntagged, Quiet: true})
	if err != nil {
		return sweeper.collected, fmt.Errorf("collecting garbage: %w", err)
	}
	return sweeper.collected, nil
}

// sweeper is a storage driver that reports and counts what is removed.
type sweeper struct {
	storagedriver.StorageDriver
	options   CollectOptions
	collected Collected
}

func (s *sweeper) Delete(ctx context.Context, name string) error {
	var size int64
	blob, revision := blobDirectory.FindStringSubmatch(name), revisionDirectory.FindStringSubmatch(name)
	if blob != nil {
		// Without its data the directory is of no use either, and goes as well.
		if info, err := s.Stat(ctx, path.Join(name, "data")); err == nil {
			size = info.Size()
		}
	}
	if !s.options.DryRun {
		if err := s.StorageDriver.Delete(ctx, name); err != nil {
			return err
		}
	}
	switch {
	case blob != nil:
		s.collected.Blobs++
		s.collected.Bytes += size
		_, err := fmt.Fprintf(s.options.Report, "blob %s:%s %d bytes\n", blob[1], blob[2], size)
		return err
	case revision != nil:
		s.collected.Manifests++
		_, err := fmt.Fprintf(s.options.Report, "manifest %s@%s:%s\n", revision[1], revision[2], revision[3])
		return err
	}
	return nil
}
