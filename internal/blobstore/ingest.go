package blobstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

const (
	// ingestDir holds incomplete blobs. containerd and ORAS use the same name.
	ingestDir = "ingest"
	// tempPrefix is the prefix of files in it that cannot be resumed.
	tempPrefix = "tmp-"
)

// Ensure makes sure that the store has desc's blob, and returns how many bytes were fetched. It
// verifies an existing blob as [Store.Get] does.
//
// One goroutine of one process at a time fetches a blob; the others wait. fetch returns the content
// from offset on. offset is positive if an earlier download was interrupted, and fetch is called again
// with 0 if that download had other content. Errors of fetch and its reader, which Ensure closes, are
// returned as they are; the next Ensure resumes the download. Content that is short or does not match
// is a [*blob.Error].
func (s *Store) Ensure(ctx context.Context, desc ocispec.Descriptor,
	fetch func(ctx context.Context, offset int64) (io.ReadCloser, error)) (fetched int64, err error) {
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return 0, err
	}
	defer release()
	for {
		if err := s.check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		partial, err := s.lock(ctx, filepath.Join(s.dir, ingestDir, partialName(desc.Digest)))
		if err != nil {
			return 0, err
		}
		if _, err := os.Lstat(s.path(desc.Digest)); err == nil {
			// Another process has finished the download, so this is a new file.
			partial.discard()
			continue
		}
		fetched, err := s.download(ctx, desc, partial, fetch)
		s.grown(fetched)
		return fetched, err
	}
}

// download completes a partial download and unlocks it.
func (s *Store) download(ctx context.Context, desc ocispec.Descriptor, partial *lockedFile,
	fetch func(context.Context, int64) (io.ReadCloser, error)) (fetched int64, err error) {
	defer func() {
		var wrong *blob.Error
		info, statErr := partial.Stat()
		switch {
		case errors.As(err, &wrong) && !errors.Is(err, io.ErrUnexpectedEOF), IsDiskFull(err), statErr == nil &&
			info.Size() == 0:
			partial.discard() // a complete blob has another name by now
		default:
			partial.Close()
		}
	}()
	for {
		hash := desc.Digest.Algorithm().Hash()
		offset, err := s.resume(ctx, desc, partial, hash)
		if err != nil {
			return fetched, err
		}
		if offset < desc.Size {
			body, err := fetch(ctx, offset)
			if err != nil {
				return fetched, err
			}
			n, err := s.copy(ctx, partial.File, hash, body, desc.Size-offset)
			body.Close()
			fetched += n
			if err != nil {
				return fetched, err
			}
		}
		if digest.NewDigest(desc.Digest.Algorithm(), hash) == desc.Digest {
			return fetched, s.place(partial.File, desc.Digest)
		}
		if offset == 0 {
			return fetched, blob.MismatchError()
		}
		if err := partial.Truncate(0); err != nil {
			return fetched, err
		}
	}
}

// resume hashes the partial download and returns its size.
func (s *Store) resume(ctx context.Context, desc ocispec.Descriptor, partial *lockedFile,
	hash hash.Hash) (int64, error) {
	info, err := partial.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if size > desc.Size {
		if err := partial.Truncate(0); err != nil {
			return 0, err
		}
		size = 0
	}
	if _, err := partial.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return s.copy(ctx, nil, hash, partial, size)
}

// IsDiskFull reports whether an error is about a full disk or an exhausted quota.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

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

// place moves a complete file from ingest to its final name.
func (s *Store) place(f *os.File, d digest.Digest) error {
	path := s.path(d)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return s.wrapDiskFull(err)
	}
	s.mu.Lock()
	s.used[d] = true
	s.mu.Unlock()
	// With nanoseconds, so that any later write changes the stamp.
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now)
	err := os.Rename(f.Name(), path)
	if there, statErr := stampOf(path); err != nil && statErr == nil && !there.regular {
		_ = s.removeDamaged(d, there, "it is a directory")
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return s.wrapDiskFull(err)
	}
	// Not earlier: a read-only partial download could not be resumed.
	_ = f.Chmod(0o444) // some file systems have no modes
	st, err := stampOfFile(f)
	if err != nil {
		return err
	}
	s.remember(d, st)
	return nil
}

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

// lockedFile is a file with an flock(2), which the kernel releases when the process ends.
type lockedFile struct{ *os.File }

// discard removes and unlocks a file, unless it was renamed.
func (f *lockedFile) discard() {
	if stillNamed(f.File) {
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

// tryLock opens and locks a file. flag is [os.O_CREATE] to create it. The error is errLocked if it is
// locked.
func tryLock(path string, flag int) (*lockedFile, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flag, 0o644)
		if err != nil {
			return nil, err
		}
		err = flock(f)
		if err == nil && stillNamed(f) {
			return &lockedFile{f}, nil
		}
		// The previous owner may have renamed or removed it.
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
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
func (s *Store) lock(ctx context.Context, path string) (*lockedFile, error) {
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		f, err := tryLock(path, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) {
			if err = s.makeIngest(); err == nil {
				err = errLocked // another Store's Close may have removed it again
			}
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

// makeIngest creates the directory that [Store.Close] removes when it is empty.
func (s *Store) makeIngest() error {
	err := os.Mkdir(filepath.Join(s.dir, ingestDir), 0o755)
	return ignore(err, fs.ErrExist)
}

func (s *Store) tempName() string {
	return filepath.Join(s.dir, ingestDir, tempPrefix+rand.Text())
}

// createTemp creates and locks a file in ingest for content of unknown digest.
func (s *Store) createTemp() (*lockedFile, error) {
	return s.lock(context.Background(), s.tempName()) // the name is unique
}

// removeStale removes temporary files of processes that have ended, and partial downloads of blobs
// that exist.
func (s *Store) removeStale() {
	dir := filepath.Join(s.dir, ingestDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			d := digestOf(e.Name())
			if validDigest(d) != nil {
				continue
			}
			if _, err := os.Lstat(s.path(d)); err != nil {
				continue
			}
		}
		if !e.Type().IsRegular() {
			_ = os.RemoveAll(path) // a damaged blob that was moved away
		} else if f, err := tryLock(path, 0); err == nil {
			f.discard()
		}
	}
}

// partialName returns the file name of a digest's partial download.
func partialName(d digest.Digest) string { return strings.Replace(d.String(), ":", "-", 1) }

// digestOf returns the digest of a partial download's name. It may be invalid.
func digestOf(name string) digest.Digest { return digest.Digest(strings.Replace(name, "-", ":", 1)) }
