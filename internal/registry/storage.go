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
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // drivers for the configuration
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/s3-aws"
	_ "golang.org/x/crypto/x509roots/fallback" // for S3 over public TLS, because the image contains no CA certificates

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
)

const (
	// defaultHealthInterval is distribution's default for health.storagedriver.interval.
	defaultHealthInterval = 10 * time.Second
	// defaultHealthThreshold is how many consecutive checks may fail before the registry reports not ready
	// (health.storagedriver.threshold). A single failed S3 request must not remove it from its Service.
	defaultHealthThreshold = 3
)

// openDriver returns the configured storage driver. It does not connect: while S3 is unavailable, the
// registry starts but is not ready.
func openDriver(ctx context.Context, storage configuration.Storage) (storagedriver.StorageDriver, error) {
	driver, err := factory.Create(ctx, storage.Type(), storage.Parameters())
	if err != nil {
		return nil, fmt.Errorf("storage.%s: %w", storage.Type(), err)
	}
	if root, ok := filesystemRoot(storage); ok {
		return durable(driver, root), nil
	}
	return driver, nil
}

// driverFailed reports whether a storage driver failed with cause. Distribution's error type does not
// implement Unwrap.
func driverFailed(err, cause error) bool {
	var driverError storagedriver.Error
	return errors.As(err, &driverError) && errors.Is(driverError.Detail, cause)
}

// prepareRoot creates the filesystem driver's directory and checks that it is writable, or readable if
// the registry is read-only. Distribution would only notice at the first push.
func prepareRoot(log *slog.Logger, root string, readOnly bool) error {
	if readOnly {
		if _, err := os.ReadDir(root); err != nil {
			return rootError(root, "read", err)
		}
		return nil
	}
	err := os.MkdirAll(root, 0o777) // minus the umask, like the directories that the driver creates in it
	if err == nil {
		var file *os.File
		if file, err = os.CreateTemp(root, ".write-check-"); err == nil {
			_ = file.Close()
			err = os.Remove(file.Name())
		} else if failed, ok := errors.AsType[*fs.PathError](err); ok {
			err = failed.Err // without the name, which is another one each time
		}
	}
	// A full volume must not prevent pulls.
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		log.Warn("volume is full, pushes will fail: delete images and run garbage-collect, or enlarge the volume",
			"rootdirectory", root, "error", err)
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
		advice = "let this user or group own it: a pod's securityContext.fsGroup does, unless the storage ignores it, as " +
			"NFS and host directories do"
	case errors.Is(err, syscall.EROFS):
		advice = "mount the volume writable, or set storage.maintenance.readonly.enabled"
	}
	return fmt.Errorf("storage.filesystem.rootdirectory %s: uid %d, gid %d cannot %s it: %w: %s",
		root, os.Getuid(), os.Getgid(), verb, err, advice)
}

// isEmpty reports whether the storage has none of the project's own images. It is false if the storage does not
// respond in two seconds.
func isEmpty(driver storagedriver.StorageDriver) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := driver.Stat(ctx, repositoriesPath+"/"+catalog.OwnRepositories)
	return errors.As(err, new(storagedriver.PathNotFoundError))
}

// storageHealth checks at intervals that the storage responds. Hanging counts as failing: the time since the last
// success decides.
//
// It does not write. A full volume calls for an alert; failing readiness would stop pulls too.
type storageHealth struct {
	driver   storagedriver.StorageDriver
	storage  configuration.Storage
	root     string // of the filesystem driver, or ""
	interval time.Duration
	tolerate time.Duration // failures for so long after the last success
	log      *slog.Logger

	success atomic.Pointer[time.Time] // the last
	failure atomic.Pointer[error]     // of the last check; nil if it succeeded
}

func newStorageHealth(
	config *configuration.Configuration, driver storagedriver.StorageDriver, log *slog.Logger,
) *storageHealth {
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
		storage:  config.Storage,
		root:     root,
		interval: interval,
		tolerate: time.Duration(threshold) * interval,
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
	// In an empty bucket, this path does not exist.
	if errors.As(err, new(storagedriver.PathNotFoundError)) && h.root == "" {
		err = nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the process is shutting down
	}

	previous := h.failure.Load()
	if err != nil {
		err = explain(h.storage, err)
		h.failure.Store(&err)
		if previous == nil {
			h.log.Error("storage check failed", "error", err.Error()) // a driver's error would be an object
		}
		return
	}
	now := time.Now()
	h.success.Store(&now)
	h.failure.Store(nil)
	if previous != nil {
		h.log.Info("storage check succeeded again")
	}
}

// err returns nil while the storage is healthy.
func (h *storageHealth) err(now time.Time) error {
	failure, success := h.failure.Load(), h.success.Load()
	switch {
	case success != nil && now.Sub(*success) < h.tolerate:
		return nil
	case failure != nil:
		return fmt.Errorf("storage: %w", *failure)
	case success == nil:
		return errors.New("storage: not checked yet")
	}
	return fmt.Errorf("storage: no response for %s", now.Sub(*success).Round(time.Second))
}
