package blobstore

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// check verifies the digest's blob, marks it as used, and opens it. The caller has acquired the digest.
func (s *Store) check(ctx context.Context, desc ocispec.Descriptor) (*os.File, error) {
	f, st, err := s.verify(ctx, desc.Digest, true)
	if err != nil {
		return nil, err
	}
	s.touch(f, desc.Digest, st)
	if _, err = f.Seek(0, io.SeekStart); err == nil && st.size != desc.Size {
		err = blob.SizeError(st.size, desc)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// verify opens the digest's file and hashes it, unless trust is set and it has not changed since. It
// removes a damaged file. The caller has acquired the digest.
func (s *Store) verify(ctx context.Context, d digest.Digest, trust bool) (*os.File, stamp, error) {
	f, st, err := s.open(d)
	if err != nil {
		return nil, stamp{}, err
	}
	s.mu.Lock()
	trust = trust && s.verified[d] == st
	s.mu.Unlock()
	if trust {
		return f, st, nil
	}
	hash := d.Algorithm().Hash()
	_, err = s.copy(ctx, nil, hash, f, st.size)
	if err := ctx.Err(); err != nil {
		f.Close()
		return nil, stamp{}, err
	}
	if err != nil || digest.NewDigest(d.Algorithm(), hash) != d {
		f.Close()
		why := "its content does not match its digest"
		if err != nil {
			why = err.Error() // such as a bad block of the disk
		}
		return nil, stamp{}, s.removeDamaged(d, st, why)
	}
	s.mu.Lock()
	s.verified[d] = st // the state before it was read, to notice concurrent changes
	s.mu.Unlock()
	return f, st, nil
}

// open opens the digest's file. A file that cannot be read is damaged.
func (s *Store) open(d digest.Digest) (*os.File, stamp, error) {
	path := s.path(d)
	st, err := stampOf(path)
	if err != nil {
		return nil, stamp{}, err
	}
	if !st.regular {
		return nil, stamp{}, s.removeDamaged(d, st, "it is not a regular file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, stamp{}, s.removeDamaged(d, st, "it is not readable")
	}
	if err != nil {
		return nil, stamp{}, err
	}
	if st, err = stampOfFile(f); err != nil {
		f.Close()
		return nil, stamp{}, err
	}
	return f, st, nil
}

// errDamaged is about a blob that was damaged and is removed, so it is an [fs.ErrNotExist].
var errDamaged = fmt.Errorf("was damaged and is removed: %w", fs.ErrNotExist)

// removeDamaged removes the digest's file, unless it has changed since it was st, and returns
// errDamaged.
func (s *Store) removeDamaged(d digest.Digest, st stamp, why string) error {
	path := s.path(d)
	err := s.locked(func() error {
		if now, err := stampOf(path); err != nil || !now.sameContent(st) {
			return ignore(err, fs.ErrNotExist) // another process has removed or replaced it
		}
		s.log.Warn("removed a damaged blob", "digest", d.String(), "dir", s.dir, "reason", why)
		return os.RemoveAll(path)
	})
	if err != nil {
		return fmt.Errorf("%s is damaged (%s) and cannot be removed: %w", path, why, err)
	}
	return fmt.Errorf("%s: %w", path, errDamaged)
}

// useGranularity is the precision of a blob's last use. More frequent updates would make other
// processes verify the changed file again.
const useGranularity = time.Minute

// touch marks the digest's file as used now. It was verified when it was st.
func (s *Store) touch(f *os.File, d digest.Digest, st stamp) {
	now := time.Now()
	if now.Sub(time.Unix(st.mtime.Unix())).Abs() < useGranularity {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same, err := stampOfFile(f); err != nil || same != st {
		return // it has changed and will be verified again
	}
	if os.Chtimes(f.Name(), now, now) != nil {
		return
	}
	if after, err := stampOfFile(f); err == nil && after.inode == st.inode && after.size == st.size {
		s.verified[d] = after
	}
}

// remember records that the digest's file is verified.
func (s *Store) remember(d digest.Digest, st stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[d] = st
}

// bufferSize makes system calls cheap compared to hashing, and fits into a core's cache.
const bufferSize = 1 << 20

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copy reads n bytes of r, hashes them and, unless f is nil, writes them to f. It returns how many
// were processed. An r that ends early is a [*blob.Error].
func (s *Store) copy(ctx context.Context, f *os.File, hash hash.Hash, r io.Reader, n int64) (done int64, err error) {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	for done < n {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		got, err := r.Read(buffer[:min(n-done, int64(len(buffer)))])
		if got > 0 && f != nil {
			if _, err := s.write(f, buffer[:got]); err != nil {
				return done, s.wrapDiskFull(err)
			}
		}
		hash.Write(buffer[:got])
		done += int64(got)
		if done == n {
			break
		}
		if errors.Is(err, io.EOF) {
			return done, blob.ShortError(n - done)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// path returns the path of the digest's file. The digest must be valid.
func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.dir, oci.BlobPath(d))
}

// ignore returns err unless it is the one to ignore.
func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// validate checks a descriptor's digest and size.
func validate(desc ocispec.Descriptor) error {
	if err := oci.CheckDigest(desc.Digest); err != nil {
		return fmt.Errorf("digest %q: %w", desc.Digest, blob.NewError(err))
	}
	if desc.Size < 0 {
		return blob.NewError(fmt.Errorf("has a descriptor with size %d", desc.Size))
	}
	return nil
}

// wrapDiskFull adds a remedy to errors about a full disk.
func (s *Store) wrapDiskFull(err error) error {
	if IsDiskFull(err) {
		return fmt.Errorf("the disk of %s is full: make room there, or choose another directory: %w", s.dir, err)
	}
	return err
}

// IsDiskFull reports whether an error is about a full disk or an exhausted quota.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// stamp is the state of a file that changes when it is written or replaced.
type stamp struct {
	inode        uint64
	regular      bool
	size         int64
	mtime, ctime unix.Timespec
}

func newStamp(st *unix.Stat_t, path string, err error) (stamp, error) {
	if err != nil {
		return stamp{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{inode: st.Ino, regular: st.Mode&unix.S_IFMT == unix.S_IFREG, size: st.Size, mtime: st.Mtim,
		ctime: st.Ctim}, nil
}

// stampOf returns the stamp of the file at path. It does not follow links.
func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, path, unix.Lstat(path, &st))
}

func stampOfFile(f *os.File) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, f.Name(), unix.Fstat(int(f.Fd()), &st))
}

// sameContent reports whether both are of the same file with the same content. It ignores ctime, which
// links and renames change.
func (s stamp) sameContent(other stamp) bool {
	s.ctime = other.ctime
	return s == other
}
