package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
)

// PrepareRoot creates the filesystem driver's directory and checks that it is writable, or readable if
// the registry is read-only. Distribution would only notice at the first push.
func PrepareRoot(log *slog.Logger, root string, readOnly bool) error {
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
		log.Warn("volume is full, pushes will fail: delete images and run zarf-registry images garbage-collect, or enlarge "+
			"the volume",
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

// IsEmpty reports whether the storage has none of the project's own images. It is false if the storage does not
// respond in two seconds.
func IsEmpty(driver storagedriver.StorageDriver) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := driver.Stat(ctx, RepositoriesPath+"/"+catalog.OwnRepositories)
	return IsNotFound(err)
}
