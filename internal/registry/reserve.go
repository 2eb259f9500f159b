package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"golang.org/x/sys/unix"
)

// Garbage collection must work when the file system is completely full, but it begins by writing its lease. Reserves
// are files next to the lease whose blocks are allocated while there is space. Without free space, a record is
// written into a reserve, which then changes places with the previous record: that needs neither a block nor an inode,
// readers see one record or the other, and the previous record is the next reserve.
const (
	// reserveSize is a block of most file systems. Records are padded to it, so that each of them can be a reserve.
	reserveSize = 4096
	reservesDir = storagePath + "/zarf-registry"
	// staleAge is when a temporary file of a write that failed is removed. No write takes so long.
	staleAge = time.Hour
)

// reserveNames are two, because the first record of a storage has no previous one to change places with. Its heartbeats
// need another.
var reserveNames = []string{"reserve-0", "reserve-1"}

// noSpace reports whether an error means that a file system has no space, no inodes, or that its quota is used up.
func noSpace(err error) bool {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, cause) || driverFailed(err, cause) {
			return true
		}
	}
	return false
}

// putRecord writes a small JSON record, also to a full file system. Root is the directory of the driver, or "" if it
// has none. The record is replaced as a whole.
func putRecord(ctx context.Context, driver storagedriver.StorageDriver, root, path string, content []byte) error {
	if root == "" {
		return driver.PutContent(ctx, path, content)
	}
	if short := reserveSize - len(content); short > 0 {
		content = append(bytes.Clone(content), bytes.Repeat([]byte("\n"), short)...)
	}
	err := driver.PutContent(ctx, path, content)
	switch {
	case err == nil:
		keepReserves(root)
		return nil
	case !noSpace(err):
		return err
	}
	if failure := putInReserve(root, path, content); failure != nil {
		return fmt.Errorf("the file system is full (%w), and so are its reserves (%w): delete an image, which frees a "+
			"block, or anything else on this file system, and retry", err, failure)
	}
	return nil
}

// putInReserve replaces a record without allocating anything.
func putInReserve(root, path string, content []byte) error {
	if len(content) > reserveSize {
		return fmt.Errorf("the record has %d bytes, more than a reserve", len(content))
	}
	target, failure := filepath.Join(root, path), error(nil)
	for _, name := range reserveNames {
		reserve := filepath.Join(root, reservesDir, name)
		// Another process cannot take the same one, nor consider it stale.
		taken := reserve + ".taken-" + rand.Text()
		_ = os.Chtimes(reserve, time.Time{}, time.Now())
		if failure = os.Rename(reserve, taken); failure != nil {
			continue
		}
		if failure = overwrite(taken, content); failure != nil {
			_ = os.Rename(taken, reserve)
			continue
		}
		err := unix.Renameat2(unix.AT_FDCWD, taken, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
		if err == nil {
			_ = os.Rename(taken, reserve)
			return nil
		}
		// There is no previous record, or the file system cannot exchange files, as NFS. What the previous record
		// occupied is free then, for a new reserve.
		if failure = os.Rename(taken, target); failure != nil {
			return failure
		}
		keepReserves(root)
		return nil
	}
	return failure
}

// overwrite writes content over the beginning of a file.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	return errors.Join(err, file.Sync(), file.Close())
}

// keepReserves creates missing reserves if there is space, and removes what failed writes have left.
func keepReserves(root string) {
	dir := filepath.Join(root, reservesDir)
	if os.MkdirAll(dir, 0o777) != nil { // minus the umask, like the driver's
		return
	}
	for _, name := range reserveNames {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		created := path + ".taken-" + rand.Text()
		err := os.WriteFile(created, nil, 0o666)
		if err == nil {
			err = overwrite(created, bytes.Repeat([]byte("\n"), reserveSize))
		}
		if err == nil {
			err = os.Rename(created, path)
		}
		if err != nil {
			_ = os.Remove(created)
			return
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".tmp") && !strings.Contains(entry.Name(), ".taken-") {
			continue
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > staleAge {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}
