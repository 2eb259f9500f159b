package blobstore

import (
	"context"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// ErrNoRoom means that a cache has no room for a blob.
var ErrNoRoom = errors.New("does not fit into the store")

// Fetch opens desc's blob as [Store.Open] does. If the store does not have it, it fetches it first, and returns how
// many bytes were fetched. In a cache, the error is [ErrNoRoom] if it does not fit; other blobs may have been evicted
// for it.
//
// One goroutine of one process at a time fetches a blob; the others wait. fetch returns the content
// from offset on. offset is positive if an earlier download was interrupted, and fetch is called again
// with 0 if that download had other content. Errors of fetch and its reader, which Fetch closes, are
// returned as they are; the next Fetch resumes the download. Content that is short or does not match
// is a [*blob.Error].
func (s *Store) Fetch(ctx context.Context, desc ocispec.Descriptor,
	fetch func(ctx context.Context, offset int64) (io.ReadCloser, error)) (f *os.File, fetched int64, err error) {
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return nil, 0, err
	}
	defer release()
	for {
		if f, err = s.check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
			return f, fetched, err
		}
		n, err := s.add(ctx, desc, fetch)
		fetched += n
		if s.cache && IsDiskFull(err) {
			err = ErrNoRoom // others filled the disk meanwhile
		}
		if err != nil {
			return nil, fetched, err
		}
	}
}

// add downloads a blob, unless another process has done so meanwhile.
func (s *Store) add(ctx context.Context, desc ocispec.Descriptor,
	fetch func(context.Context, int64) (io.ReadCloser, error)) (fetched int64, err error) {
	if s.cache {
		if err := s.room.reserve(ctx, s, desc.Size); err != nil {
			return 0, err
		}
		defer s.room.release(desc.Size)
	}
	partial, err := s.lock(ctx, filepath.Join(s.dir, ingestDir, partialName(desc.Digest)))
	if err != nil {
		return 0, err
	}
	if _, err := os.Lstat(s.path(desc.Digest)); err == nil {
		discard(partial) // a new file: another process has finished the download
		return 0, nil
	}
	return s.download(ctx, desc, partial, fetch)
}

// download completes a partial download and unlocks it.
func (s *Store) download(ctx context.Context, desc ocispec.Descriptor, partial *os.File,
	fetch func(context.Context, int64) (io.ReadCloser, error)) (fetched int64, err error) {
	defer func() {
		var wrong *blob.Error
		info, statErr := partial.Stat()
		switch {
		case errors.As(err, &wrong) && !errors.Is(err, io.ErrUnexpectedEOF), IsDiskFull(err), statErr == nil &&
			info.Size() == 0:
			discard(partial) // a complete blob has another name by now
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
			n, err := s.copy(ctx, partial, hash, body, desc.Size-offset)
			body.Close()
			fetched += n
			if err != nil {
				return fetched, err
			}
		}
		if digest.NewDigest(desc.Digest.Algorithm(), hash) == desc.Digest {
			return fetched, s.place(partial, desc.Digest)
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
func (s *Store) resume(ctx context.Context, desc ocispec.Descriptor, partial *os.File,
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

// place moves a complete file from ingest to its final name.
func (s *Store) place(f *os.File, d digest.Digest) error {
	path := s.path(d)
	// With nanoseconds, so that any later write changes the time.
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now)
	err := s.locked(func(*os.File) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if there, err := os.Lstat(path); err == nil && there.IsDir() {
			_ = os.RemoveAll(path)
		}
		return os.Rename(f.Name(), path)
	})
	if err != nil {
		return s.wrapDiskFull(err)
	}
	// Not earlier: a read-only partial download could not be resumed.
	_ = f.Chmod(0o444) // some file systems have no modes
	info, err := f.Stat()
	if err == nil {
		s.remember(d, info)
	}
	return err
}
