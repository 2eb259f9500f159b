package blobstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Info describes what a store holds.
type Info struct {
	Dir          string `json:"dir"`
	Blobs        int    `json:"blobs"`
	Bytes        int64  `json:"bytes"`            // of the blobs
	Partials     int    `json:"partialDownloads"` // that the next Fetch resumes
	PartialBytes int64  `json:"partialBytes"`     // downloaded so far
}

// Pruned is the result of [Store.Prune].
type Pruned struct {
	Blobs          int   `json:"blobs"`
	Bytes          int64 `json:"bytes"`
	Partials       int   `json:"partialDownloads"`
	PartialBytes   int64 `json:"partialBytes"`
	RemainingBytes int64 `json:"remainingBytes"` // of blobs and partial downloads that stay
}

type file struct {
	path    string
	digest  digest.Digest
	partial bool
	size    int64
	used    time.Time
}

// files returns all blobs and partial downloads, least recently used first. It skips other files.
func (s *Store) files(ctx context.Context) ([]file, error) {
	var found []file
	for pattern, partial := range map[string]bool{ocispec.ImageBlobsDir + "/*/*": false, ingestDir + "/*": true} {
		paths, err := fs.Glob(os.DirFS(s.dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			d := digestOf(filepath.Base(path))
			if !partial {
				d = digest.Digest(filepath.Base(filepath.Dir(path)) + ":" + filepath.Base(path))
			}
			path = filepath.Join(s.dir, path)
			info, err := os.Lstat(path)
			if errors.Is(err, fs.ErrNotExist) || oci.CheckDigest(d) != nil {
				continue
			}
			if err != nil {
				return nil, err
			}
			found = append(found, file{path, d, partial, info.Size(), info.ModTime()})
		}
	}
	slices.SortStableFunc(found, func(a, b file) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	return found, nil
}

// Info counts the store's blobs without verifying them.
func (s *Store) Info(ctx context.Context) (Info, error) {
	info := Info{Dir: s.dir}
	files, err := s.files(ctx)
	for _, f := range files {
		if f.partial {
			info.Partials++
			info.PartialBytes += f.size
		} else {
			info.Blobs++
			info.Bytes += f.size
		}
	}
	return info, err
}

// Prune removes blobs and partial downloads, least recently used first, until at most size bytes are left. It keeps
// what this Store is verifying or linking, and running downloads. Others fetch removed blobs again. It rejects a layout
// whose index.json lists images.
func (s *Store) Prune(ctx context.Context, size int64) (Pruned, error) {
	return s.prune(ctx, size, size)
}

// prune is Prune down to target, if there are more than limit bytes.
func (s *Store) prune(ctx context.Context, limit, target int64) (Pruned, error) {
	var pruned Pruned
	if err := s.checkNoImages(); err != nil {
		return pruned, fmt.Errorf("blob store %s: %w", s.dir, err)
	}
	files, err := s.files(ctx)
	if err != nil {
		return pruned, err
	}
	for _, f := range files {
		pruned.RemainingBytes += f.size
	}
	if limit > 0 && pruned.RemainingBytes <= limit {
		return pruned, nil
	}
	for _, f := range files {
		if target > 0 && pruned.RemainingBytes <= target { // without a target, empty files go as well
			break
		}
		if err := ctx.Err(); err != nil {
			return pruned, err
		}
		removed, err := s.remove(f)
		if err != nil {
			return pruned, err
		}
		if !removed {
			continue
		}
		pruned.RemainingBytes -= f.size
		if f.partial {
			pruned.Partials++
			pruned.PartialBytes += f.size
		} else {
			pruned.Blobs++
			pruned.Bytes += f.size
		}
	}
	return pruned, nil
}

// remove removes a file unless it is in use.
func (s *Store) remove(f file) (removed bool, err error) {
	err = s.locked(func(*os.File) error {
		s.mu.Lock()
		defer s.mu.Unlock() // until it is removed, so that no use can start
		if s.busy[f.digest] != nil {
			return nil
		}
		if f.partial {
			running, err := tryLock(f.path, 0)
			if err != nil {
				removed = errors.Is(err, fs.ErrNotExist)
				return ignore(ignore(err, fs.ErrNotExist), errLocked)
			}
			defer running.Close()
		} else if info, err := os.Lstat(f.path); err == nil && !info.ModTime().Equal(f.used) {
			return nil // another process may have used it since it was listed
		}
		removed = true
		return os.RemoveAll(f.path)
	})
	return removed, err
}

// room is the space that a cache has and may still take. The zero value knows nothing yet.
type room struct {
	mu       sync.Mutex
	taken    int64 // by blobs and partial downloads, at most
	reserved int64 // by running downloads; part of taken
	unseen   int64 // reserved since the files were last listed; starts with the first listing
	listed   bool
}

// relistFraction is the part of the limit after which a cache looks what other processes have added, and that it evicts
// in advance: listing the files costs more than adding a small one.
const relistFraction = 8

// reserve makes room for size bytes, or returns ErrNoRoom.
func (r *room) reserve(ctx context.Context, s *Store, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var stat unix.Statfs_t
	if unix.Statfs(s.dir, &stat) == nil {
		// Half of the free space is left to the output, which may be in the same file system, and to other programs.
		free := int64(stat.Bavail) * int64(stat.Bsize) //nolint:unconvert // macOS has another type
		if size > (free-r.reserved)/2 {
			return ErrNoRoom
		}
	}
	if s.maxSize > 0 {
		if size > s.maxSize {
			return ErrNoRoom
		}
		if !r.listed || r.taken+size > s.maxSize || r.unseen > s.maxSize/relistFraction {
			limit := s.maxSize - size - r.reserved
			if err := r.evict(ctx, s, limit, limit-s.maxSize/relistFraction); err != nil {
				return err
			}
		}
		if r.taken+size > s.maxSize {
			return ErrNoRoom
		}
	}
	r.taken += size
	r.reserved += size
	r.unseen += size
	return nil
}

// release ends a reservation. Its bytes stay taken: the download has used them, or the next listing corrects them.
func (r *room) release(size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved -= size
}

// shrink evicts what exceeds the limit, which may have been higher in earlier runs.
func (r *room) shrink(ctx context.Context, s *Store) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.maxSize == 0 {
		return nil
	}
	return r.evict(ctx, s, s.maxSize, s.maxSize)
}

// evict prunes the store. The caller holds r.mu.
func (r *room) evict(ctx context.Context, s *Store, limit, target int64) error {
	pruned, err := s.prune(ctx, limit, target)
	if err != nil {
		return err
	}
	r.taken, r.unseen, r.listed = pruned.RemainingBytes+r.reserved, 0, true
	if pruned.Blobs+pruned.Partials > 0 {
		s.log.Info("evicted the least recently used blobs", "dir", s.dir, "blobs", pruned.Blobs, "partialDownloads",
			pruned.Partials, "bytes", pruned.Bytes+pruned.PartialBytes)
	}
	return nil
}
