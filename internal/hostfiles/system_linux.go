package hostfiles

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nonblock keeps an open from waiting where a pipe has taken a file's place.
const nonblock = unix.O_NONBLOCK

// lock takes the lock on a directory that f is open at, without waiting.
func lock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// space is what a file system has for files.
type space struct {
	readOnly bool
	unknown  bool  // it does not say, as RAM disks do not
	bytes    int64 // free
	files    int64 // free; -1 where it has no limit
}

func spaceOf(f *os.File) (space, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return space{}, os.NewSyscallError("statfs", err)
	}
	out := space{readOnly: s.Flags&unix.ST_RDONLY != 0, unknown: s.Blocks == 0, bytes: int64(s.Bavail) * s.Bsize, files: -1}
	if s.Files > 0 {
		out.files = int64(s.Ffree)
	}
	return out, nil
}

// writable asks whether entries of the directory may be made and removed.
func writable(f *os.File) error {
	return os.NewSyscallError("access", unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, 0))
}

// device tells file systems apart.
func device(f *os.File) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return 0, os.NewSyscallError("stat", err)
	}
	return s.Dev, nil
}
