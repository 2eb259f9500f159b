// Package ready tells other processes of a pod whether its own server listens. A probe of a port on the node's network
// cannot: another pod may answer. It does not tell whether the server works.
package ready

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// File is a file that every server of a pod locks while it listens. The kernel releases the lock when the process ends,
// so what an earlier container left in the directory says nothing. Its content is why a server does not listen yet.
type File struct {
	fd int // not an os.File: collecting that as garbage would release the lock
}

// Open opens or creates a file in a directory that only this pod has. It stays open until the process ends.
func Open(path string) (*File, error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	f := &File{fd}
	return f, f.Waiting("it has not started to listen")
}

// Waiting says why the server does not listen yet.
func (f *File) Waiting(reason string) error {
	if err := syscall.Ftruncate(f.fd, 0); err != nil {
		return err
	}
	_, err := syscall.Pwrite(f.fd, []byte(reason), 0)
	return err
}

// Listening says that the server listens, until its process ends. The lock is shared with a successor in the same
// container.
func (f *File) Listening() error { return flock(f.fd, syscall.LOCK_SH) }

// Check returns nil if a server of this pod listens, and else why not.
func Check(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("not listening: it has not started yet")
	}
	if err != nil {
		return err
	}
	defer file.Close()
	switch err := flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil
	case err != nil:
		return fmt.Errorf("locking %s: %w", path, err)
	}
	reason, err := io.ReadAll(io.LimitReader(file, maxReason))
	if err != nil {
		return err
	}
	return fmt.Errorf("not listening: %s", cmp.Or(strings.TrimSpace(string(reason)), "it has ended"))
}

// maxReason bounds what a message quotes, in bytes.
const maxReason = 1000

func flock(fd, how int) error {
	for {
		if err := syscall.Flock(fd, how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
