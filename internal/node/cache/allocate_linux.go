package cache

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves space, so that a full file system is noticed before anything is sent. A file
// system that cannot reserve space fails at a write instead.
func allocate(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}
