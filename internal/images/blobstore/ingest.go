package blobstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// ingestDir holds incomplete blobs. containerd and ORAS use the same name.
const ingestDir = "ingest"

// acquire waits until no other goroutine of this Store works on desc's digest, and blocks others until
// release.
func (s *Store) acquire(ctx context.Context, desc ocispec.Descriptor) (release func(), err error) {
	if err := validate(desc); err != nil {
		return nil, err
	}
	d := desc.Digest
	for {
		s.mu.Lock()
		done, busy := s.busy[d]
		if !busy {
			done = make(chan struct{})
			s.busy[d] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, d)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// discard removes and unlocks a file, unless it was renamed.
func discard(f *os.File) {
	if stillNamed(f) {
		_ = os.Remove(f.Name())
	}
	f.Close()
}

// stillNamed reports whether an open file is still the one at its path.
func stillNamed(f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(open, named)
}

// errLocked is about a file that is locked by another process or by another open file of this one.
var errLocked = errors.New("is in use by another process")

// tryLock opens a file and locks it with flock(2), which the kernel releases when the process ends. flag is
// [os.O_CREATE] to create it. The error is errLocked if it is locked.
func tryLock(path string, flag int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flag, 0o644)
		if err != nil {
			return nil, err
		}
		err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && stillNamed(f) {
			return f, nil
		}
		// The previous owner may have renamed or removed it.
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// LockFile creates a file if necessary, and locks it until it is closed. It fails if another process has locked it.
func LockFile(path string) (*os.File, error) { return tryLock(path, os.O_CREATE) }

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		case err != nil:
			return fmt.Errorf("%s cannot be locked (choose a directory on another file system): %w", f.Name(), err)
		}
		return nil
	}
}

// Other processes' locks are polled at these intervals, increasing: small blobs arrive quickly, and
// long waits are cheap.
const minPoll, maxPoll = 2 * time.Millisecond, 200 * time.Millisecond

// lock creates a file in ingest if necessary, waits until it can be locked, and locks it.
func (s *Store) lock(ctx context.Context, path string) (*os.File, error) {
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, s.wrapDiskFull(err)
		}
		f, err := tryLock(path, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) {
			err = errLocked // another Store's Close has removed the directory again
		}
		if !errors.Is(err, errLocked) {
			return f, s.wrapDiskFull(err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// locked calls do while no other process adds or removes a file. It gets the locked directory.
func (s *Store) locked(do func(dir *os.File) error) error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := flock(dir, unix.LOCK_EX); err != nil {
		return err
	}
	return do(dir)
}

func partialName(d digest.Digest) string { return strings.Replace(d.String(), ":", "-", 1) }

// digestOf returns the digest of a partial download's name. It may be invalid.
func digestOf(name string) digest.Digest { return digest.Digest(strings.Replace(name, "-", ":", 1)) }
