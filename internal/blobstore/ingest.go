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
	// ingestDir holds what is no blob yet. containerd and ORAS name it so, too.
	ingestDir = "ingest"
	// tempPrefix begins the names of files in it that nobody can continue.
	tempPrefix = "tmp-"
)

// Ensure makes sure that desc's blob is in the store and right, and returns how
// many bytes had to be fetched for that. What is there already is verified as by
// [Store.Get].
//
// A blob is fetched by one goroutine of one process at a time; the others wait for
// it. fetch is asked for the content from an offset on. It is more than 0 where an
// earlier download was interrupted, and fetch may be called a second time, with 0,
// where that turns out to have been another content. Its errors and those of the
// reader, which Ensure closes, are returned as they are, and what came until then
// stays for the next Ensure to continue. Content that ends early or does not match
// is a [*blob.Error].
func (s *Store) Ensure(ctx context.Context, desc ocispec.Descriptor, fetch func(ctx context.Context, offset int64) (io.ReadCloser, error)) (fetched int64, err error) {
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
			// Another process was quicker: by then, this file was a new one.
			partial.discard()
			continue
		}
		fetched, err := s.download(ctx, desc, partial, fetch)
		s.grown(fetched)
		return fetched, err
	}
}

// download completes a partial download, and unlocks it.
func (s *Store) download(ctx context.Context, desc ocispec.Descriptor, partial *lockedFile, fetch func(context.Context, int64) (io.ReadCloser, error)) (fetched int64, err error) {
	defer func() {
		var wrong *blob.Error
		info, statErr := partial.Stat()
		switch {
		case errors.As(err, &wrong) && !errors.Is(err, io.ErrUnexpectedEOF), IsDiskFull(err), statErr == nil && info.Size() == 0:
			partial.discard() // but a blob, which has another name by now
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

// resume hashes what is there of a download, and returns how much that is.
func (s *Store) resume(ctx context.Context, desc ocispec.Descriptor, partial *lockedFile, hash hash.Hash) (int64, error) {
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

// bufferSize is large enough for the kernel's calls not to count beside the hash,
// and fits into a core's cache.
const bufferSize = 1 << 20

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copy reads n bytes of r, hashes them, and writes them to f if it is not nil. It
// returns how many it did that with. An r that ends early is a [*blob.Error].
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
				return done, s.writing(err)
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

// place gives a file in ingest, whose content is the digest's, the digest's name.
func (s *Store) place(f *os.File, d digest.Digest) error {
	path := s.path(d)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return s.writing(err)
	}
	s.mu.Lock()
	s.used[d] = true
	s.mu.Unlock()
	// To the nanosecond, so that no write to the file can leave its stamp as it is.
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now)
	err := os.Rename(f.Name(), path)
	if there, statErr := stampOf(path); err != nil && statErr == nil && !there.regular {
		_ = s.damaged(d, there, "it is a directory")
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return s.writing(err)
	}
	// Not before: a partial download that cannot be written could not be continued.
	_ = f.Chmod(0o444) // some file systems have no modes
	st, err := stampOfFile(f)
	if err != nil {
		return err
	}
	s.remember(d, st)
	return nil
}

// acquire waits until no other goroutine works on desc's digest through this
// Store, and keeps them from it until release is called.
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

// lockedFile is a file that is locked by flock(2) until it is closed. The lock is
// the open file's, so that it ends with the process, however that ends.
type lockedFile struct{ *os.File }

// discard removes and unlocks a file, unless it has got another name meanwhile.
func (f *lockedFile) discard() {
	if same(f.File) {
		_ = os.Remove(f.Name())
	}
	f.Close()
}

// same is whether an open file is still the one of its name.
func same(f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(open, named)
}

// errLocked is about a file that another process, or another open file of this
// one, has locked.
var errLocked = errors.New("is in use by another process")

// tryLock opens and locks a file. flag is [os.O_CREATE] where it may be made. The
// error of one that is locked is errLocked.
func tryLock(path string, flag int) (*lockedFile, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flag, 0o644)
		if err != nil {
			return nil, err
		}
		err = flock(f)
		if err == nil && same(f) {
			return &lockedFile{f}, nil
		}
		// Who had it locked before may have renamed or removed it.
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

// Another process's lock is asked for at these intervals: first quickly, for small
// blobs; then so that waiting costs nothing.
const minPoll, maxPoll = 2 * time.Millisecond, 200 * time.Millisecond

// lock makes, if need be, and locks a file in ingest, and waits until it can.
func (s *Store) lock(ctx context.Context, path string) (*lockedFile, error) {
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		f, err := tryLock(path, os.O_CREATE)
		if errors.Is(err, fs.ErrNotExist) {
			if err = s.makeIngest(); err == nil {
				err = errLocked // or removed again, by the Close of another
			}
		}
		if !errors.Is(err, errLocked) {
			return f, s.writing(err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// makeIngest makes the directory that [Store.Close] removes when it is empty.
func (s *Store) makeIngest() error {
	err := os.Mkdir(filepath.Join(s.dir, ingestDir), 0o755)
	return ignore(err, fs.ErrExist)
}

func (s *Store) tempName() string {
	return filepath.Join(s.dir, ingestDir, tempPrefix+rand.Text())
}

// createTemp makes and locks a file in ingest for content of unknown digest.
func (s *Store) createTemp() (*lockedFile, error) {
	return s.lock(context.Background(), s.tempName()) // nobody else has that name
}

// removeDead removes the temporary files of processes that are no more, and partial
// downloads of blobs that came in another way.
func (s *Store) removeDead() {
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

// partialName is the name of a digest's partial download.
func partialName(d digest.Digest) string { return strings.Replace(d.String(), ":", "-", 1) }

// digestOf is the digest of a partial download's name; it need not be valid.
func digestOf(name string) digest.Digest { return digest.Digest(strings.Replace(name, "-", ":", 1)) }
