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

// check opens the digest's blob, verifies it unless it is unchanged since this Store has done so, and marks it as used.
// It removes a damaged one, so that the error is an [fs.ErrNotExist]. The caller has acquired the digest.
func (s *Store) check(ctx context.Context, desc ocispec.Descriptor) (*os.File, error) {
	path := s.path(desc.Digest)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, s.removeDamaged(path, info, "it is not a regular file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, s.removeDamaged(path, info, "it is not readable")
	}
	if err != nil {
		return nil, err
	}
	if err := s.verify(ctx, f, desc); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// verify is check for an open file.
func (s *Store) verify(ctx context.Context, f *os.File, desc ocispec.Descriptor) error {
	info, err := f.Stat() // before it is read, to notice concurrent changes
	if err != nil {
		return err
	}
	if !unchanged(s.known(desc.Digest), info) {
		hash := desc.Digest.Algorithm().Hash()
		_, err := s.copy(ctx, nil, hash, f, info.Size())
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // such as a bad block of the disk
			return s.removeDamaged(f.Name(), info, err.Error())
		case digest.NewDigest(desc.Digest.Algorithm(), hash) != desc.Digest:
			return s.removeDamaged(f.Name(), info, "its content does not match its digest")
		}
		s.remember(desc.Digest, info)
	}
	s.touch(f, desc.Digest, info)
	if info.Size() != desc.Size {
		return blob.SizeError(info.Size(), desc)
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// unchanged reports whether both are of the same file with the same content.
func unchanged(before, now fs.FileInfo) bool {
	return before != nil && os.SameFile(before, now) && before.Size() == now.Size() &&
		before.ModTime().Equal(now.ModTime())
}

// removeDamaged removes a file that was found in a state, unless it has changed since.
func (s *Store) removeDamaged(path string, found fs.FileInfo, why string) error {
	err := s.locked(func(*os.File) error {
		if now, err := os.Lstat(path); err != nil || !unchanged(found, now) {
			return ignore(err, fs.ErrNotExist) // another process has removed or replaced it
		}
		s.log.Warn("removed a damaged blob", "path", path, "reason", why)
		return os.RemoveAll(path)
	})
	if err != nil {
		return fmt.Errorf("%s is damaged (%s) and cannot be removed: %w", path, why, err)
	}
	return fmt.Errorf("%s was damaged and is removed: %w", path, fs.ErrNotExist)
}

// useGranularity is the precision of a blob's last use. More frequent updates would make other
// processes verify the changed file again.
const useGranularity = time.Minute

// touch marks the digest's file as used now.
func (s *Store) touch(f *os.File, d digest.Digest, verified fs.FileInfo) {
	now := time.Now()
	if now.Sub(verified.ModTime()).Abs() < useGranularity {
		return
	}
	if info, err := f.Stat(); err != nil || !unchanged(verified, info) || os.Chtimes(f.Name(), now, now) != nil {
		return // it has changed, and will be verified again
	}
	if info, err := f.Stat(); err == nil && info.Size() == verified.Size() {
		s.remember(d, info)
	}
}

// known returns the state of the digest's file when it was verified, or nil.
func (s *Store) known(d digest.Digest) fs.FileInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified[d]
}

func (s *Store) remember(d digest.Digest, verified fs.FileInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[d] = verified
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

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

func validate(desc ocispec.Descriptor) error {
	if err := oci.CheckDigest(desc.Digest); err != nil {
		return fmt.Errorf("digest %q: %w", desc.Digest, blob.NewError(err))
	}
	if desc.Size < 0 {
		return blob.NewError(fmt.Errorf("has a descriptor with size %d", desc.Size))
	}
	return nil
}

func (s *Store) wrapDiskFull(err error) error {
	if IsDiskFull(err) {
		return fmt.Errorf("the disk of %s is full: make room there, or choose another directory: %w", s.dir, err)
	}
	return err
}

// IsDiskFull reports whether an error is about a full disk or an exhausted quota.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
