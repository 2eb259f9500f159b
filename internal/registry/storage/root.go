package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
)

// PrepareRoot creates the driver's directory and checks that it can be used. Distribution would notice at a push.
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
	if err != nil && NoSpace(err) {
		log.Warn("volume is full, pushes will fail: delete images and run zarf-registry images garbage-collect, or enlarge "+
			"the volume", "rootdirectory", root, "error", err)
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

// IsEmpty reports whether the storage has none of the project's own images. It is false after two seconds.
func IsEmpty(driver storagedriver.StorageDriver) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := driver.Stat(ctx, RepositoriesPath+"/"+catalog.OwnRepositories)
	return IsNotFound(err)
}

// Garbage collection must work when the file system is completely full, but it begins by writing its lease. So the
// registry keeps ballast next to the lease while there is space, and removes it when a lease does not fit.
const (
	ballastDir = RootPath + "/zarf-registry"
	// ballastSize is the size of a ballast file in bytes: a block of most file systems. No lease is larger.
	ballastSize = 4096
)

// ballastFiles returns the paths of the ballast files below the directory of a driver. They are two, because a file
// system may be out of inodes: the first record of a storage takes the inode of one, and the next record, until it has
// replaced the first, that of the other.
func ballastFiles(root string) []string {
	return []string{filepath.Join(root, ballastDir, "ballast-0"), filepath.Join(root, ballastDir, "ballast-1")}
}

// NoSpace reports whether an error means that a file system has no space, no inodes, or that its quota is used up.
func NoSpace(err error) bool {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, cause) || FailedWith(err, cause) {
			return true
		}
	}
	return false
}

// PutRecord replaces a small record, also on a full file system. Root is the directory of the driver, or "".
func PutRecord(ctx context.Context, driver storagedriver.StorageDriver, root, path string, content []byte) error {
	err := driver.PutContent(ctx, path, content)
	if root == "" {
		return err
	}
	for _, file := range ballastFiles(root) {
		if err != nil && NoSpace(err) && os.Remove(file) == nil {
			err = driver.PutContent(ctx, path, content)
		}
	}
	switch {
	case err == nil:
		KeepBallast(root)
	case NoSpace(err):
		return fmt.Errorf("the file system is full, and so is what was kept for this: %w: delete an image, which frees a "+
			"block, or anything else on this file system, and retry", err)
	}
	return err
}

// KeepBallast creates ballast that is missing or too small, as far as there is space.
func KeepBallast(root string) {
	if os.MkdirAll(filepath.Join(root, ballastDir), 0o777) != nil { // minus the umask, like the driver's
		return
	}
	for _, path := range ballastFiles(root) {
		if info, err := os.Stat(path); err == nil && info.Size() == ballastSize {
			continue
		}
		content := make([]byte, ballastSize)
		_, _ = rand.Read(content) // a file system that compresses needs no space for zeros
		_ = os.WriteFile(path, content, 0o666)
	}
}
