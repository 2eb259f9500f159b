package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
)

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

// PutRecord writes a small JSON record, also to a full file system. Root is the directory of the driver, or "" if it
// has none. The record is replaced as a whole.
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
