package blobstore

import (
	"context"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
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
