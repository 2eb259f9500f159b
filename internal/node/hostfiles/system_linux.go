package hostfiles

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nonblock keeps open from waiting if a pipe has replaced a file.
const nonblock = unix.O_NONBLOCK

// lock tries to lock the directory opened as f, without waiting.
func lock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// space is the free space of a file system.
type space struct {
	readOnly bool
	unknown  bool  // the file system does not report it, such as a RAM disk
	bytes    int64 // free
	files    int64 // free; -1 if unlimited
}

func spaceOf(f *os.File) (space, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return space{}, os.NewSyscallError("statfs", err)
	}
	out := space{
		readOnly: s.Flags&unix.ST_RDONLY != 0, unknown: s.Blocks == 0, bytes: int64(s.Bavail) * s.Bsize, files: -1,
	}
	if s.Files > 0 {
		out.files = int64(s.Ffree)
	}
	return out, nil
}

// writable checks that entries of the directory can be created and removed.
func writable(f *os.File) error {
	return os.NewSyscallError("access", unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, 0))
}

func device(f *os.File) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return 0, os.NewSyscallError("stat", err)
	}
	return s.Dev, nil
}
