package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the drivers that a configuration may name
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/s3-aws"
	_ "golang.org/x/crypto/x509roots/fallback" // S3 over public TLS, from an image that holds nothing but this program
	"golang.org/x/sys/unix"
)

const (
	// defaultHealthInterval is distribution's default for
	// health.storagedriver.interval.
	defaultHealthInterval = 10 * time.Second
	// defaultHealthThreshold is how many checks in a row may fail before the
	// registry says that it is not ready (health.storagedriver.threshold): one
	// lost request to S3 must not take it out of its Service.
	defaultHealthThreshold = 3
)

// openDriver makes the configured storage driver. It connects to nothing, so
// that an S3 that is not there yet delays readiness and not the start.
func openDriver(ctx context.Context, storage configuration.Storage) (storagedriver.StorageDriver, error) {
	driver, err := factory.Create(ctx, storage.Type(), storage.Parameters())
	if err != nil {
		return nil, fmt.Errorf("storage.%s: %w", storage.Type(), err)
	}
	return driver, nil
}

// prepareRoot makes the filesystem driver's directory and proves that it can be
// written to, or read where the registry is read-only: distribution would find
// out at the first push.
func prepareRoot(log *slog.Logger, root string, readOnly bool) error {
	if readOnly {
		if _, err := os.ReadDir(root); err != nil {
			return rootError(root, "read", err)
		}
		return nil
	}
	err := os.MkdirAll(root, 0o777) // less the umask, as the driver makes the directories in it
	if err == nil {
		var file *os.File
		if file, err = os.CreateTemp(root, ".write-check-"); err == nil {
			_ = file.Close()
			err = os.Remove(file.Name())
		}
	}
	// A full volume must not stop those who only read.
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		log.Warn("the volume is full, pushes will fail: delete images and run garbage-collect, or enlarge it", "rootdirectory", root, "error", err)
		return nil
	}
	if err != nil {
		return rootError(root, "write to", err)
	}
	return nil
}

func rootError(root, verb string, err error) error {
	advice := "check that a volume is mounted there"
	switch {
	case errors.Is(err, fs.ErrPermission):
		advice = "let that user or group own the volume: in a pod, set securityContext.fsGroup"
	case errors.Is(err, syscall.EROFS):
		advice = "mount the volume writable, or set storage.maintenance.readonly.enabled"
	}
	return fmt.Errorf("storage.filesystem.rootdirectory %s: uid %d, gid %d cannot %s it: %w: %s",
		root, os.Getuid(), os.Getgid(), verb, err, advice)
}

// storageHealth asks the storage at intervals whether it answers, and knows how
// large a filesystem is. A storage that hangs counts as one that fails: what
// decides is how long ago it was last well.
//
// It does not write. A full volume is a matter for an alert, not for readiness,
// which would stop the pulls too.
type storageHealth struct {
	driver   storagedriver.StorageDriver
	root     string // of the filesystem driver, or ""
	interval time.Duration
	patience time.Duration // after the last success
	log      *slog.Logger

	good    atomic.Pointer[time.Time]
	failure atomic.Pointer[error] // of the last check; nil after a success
	volume  atomic.Pointer[volume]
}

// volume is the size of a filesystem, in bytes.
type volume struct{ size, free uint64 }

func newStorageHealth(config *configuration.Configuration, driver storagedriver.StorageDriver, log *slog.Logger) *storageHealth {
	interval, threshold := config.Health.StorageDriver.Interval, config.Health.StorageDriver.Threshold
	if interval <= 0 {
		interval = defaultHealthInterval
	}
	if threshold <= 0 {
		threshold = defaultHealthThreshold
	}
	root, _ := filesystemRoot(config.Storage)
	return &storageHealth{
		driver:   driver,
		root:     root,
		interval: interval,
		patience: time.Duration(threshold) * interval,
		log:      log,
	}
}

// run checks at once and then at each interval until ctx ends.
func (h *storageHealth) run(ctx context.Context) {
	ticker := time.NewTicker(h.interval)
	defer ticker.Stop()
	for {
		h.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *storageHealth) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.interval)
	defer cancel()
	_, err := h.driver.Stat(ctx, "/")
	// An empty bucket has no such path; an empty directory has.
	if errors.As(err, new(storagedriver.PathNotFoundError)) && h.root == "" {
		err = nil
	}
	if h.root != "" && err == nil {
		var stat unix.Statfs_t
		if err = unix.Statfs(h.root, &stat); err == nil {
			unit := uint64(stat.Bsize)
			h.volume.Store(&volume{size: stat.Blocks * unit, free: stat.Bavail * unit})
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the program ends; that says nothing about the storage
	}

	before := h.failure.Load()
	if err != nil {
		h.failure.Store(&err)
		if before == nil {
			h.log.Error("the storage does not answer", "error", err)
		}
		return
	}
	now := time.Now()
	h.good.Store(&now)
	h.failure.Store(nil)
	if before != nil {
		h.log.Info("the storage answers again")
	}
}

// err returns nil while the storage is well.
func (h *storageHealth) err(now time.Time) error {
	failure, good := h.failure.Load(), h.good.Load()
	switch {
	case good != nil && now.Sub(*good) < h.patience:
		return nil
	case failure != nil:
		return fmt.Errorf("storage: %w", *failure)
	case good == nil:
		return errors.New("storage: not checked yet")
	}
	return fmt.Errorf("storage: no answer for %s", now.Sub(*good).Round(time.Second))
}
