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
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Info describes what a store holds.
type Info struct {
	Dir          string     `json:"dir"`
	Blobs        int        `json:"blobs"`
	Bytes        int64      `json:"bytes"`              // of the blobs
	Partials     int        `json:"partialDownloads"`   // that the next Fetch resumes
	PartialBytes int64      `json:"partialBytes"`       // downloaded so far
	MaxBytes     int64      `json:"maxBytes,omitempty"` // the limit in Options; 0: unlimited
	OldestUse    *time.Time `json:"oldestUse,omitempty"`
	NewestUse    *time.Time `json:"newestUse,omitempty"` // nil if there is no blob
}

// Report is the result of [Store.Verify].
type Report struct {
	Blobs   int             `json:"blobs"`   // that are intact
	Bytes   int64           `json:"bytes"`   // of the intact blobs
	Corrupt []digest.Digest `json:"corrupt"` // removed, sorted
}

// PruneOptions select what [Store.Prune] removes.
type PruneOptions struct {
	// MaxSize is how many bytes may stay. 0 is the store's own [Options.MaxSize].
	MaxSize int64
	// OlderThan removes what was not used for this long, even if there is room. 0 removes nothing.
	OlderThan time.Duration
	// All removes everything that is not in use.
	All bool
	// DryRun only reports what would be removed.
	DryRun bool
}

// Pruned is the result of [Store.Prune].
type Pruned struct {
	Blobs          int   `json:"blobs"`
	Bytes          int64 `json:"bytes"`
	Partials       int   `json:"partialDownloads"`
	PartialBytes   int64 `json:"partialBytes"`
	RemainingBytes int64 `json:"remainingBytes"` // of blobs and partial downloads that stay
}

// file is a blob or a partial download.
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
	list := func(dir string, partial bool, toDigest func(name string) digest.Digest) error {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			d := toDigest(e.Name())
			if oci.CheckDigest(d) != nil {
				continue
			}
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			found = append(found, file{
				path: filepath.Join(dir, e.Name()), digest: d, partial: partial,
				size: info.Size(), used: info.ModTime(),
			})
		}
		return nil
	}
	var errs []error
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA512} {
		errs = append(errs, list(filepath.Join(s.dir, ocispec.ImageBlobsDir, algorithm.String()), false,
			func(name string) digest.Digest { return digest.NewDigestFromEncoded(algorithm, name) }))
	}
	errs = append(errs, list(filepath.Join(s.dir, ingestDir), true, digestOf))
	slices.SortStableFunc(found, func(a, b file) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	return found, errors.Join(errs...)
}

// Info counts the store's blobs without verifying them.
func (s *Store) Info(ctx context.Context) (Info, error) {
	info := Info{Dir: s.dir, MaxBytes: s.maxSize}
	files, err := s.files(ctx)
	for _, f := range files {
		if f.partial {
			info.Partials++
			info.PartialBytes += f.size
			continue
		}
		info.Blobs++
		info.Bytes += f.size
		if info.OldestUse == nil {
			info.OldestUse = &f.used
		}
		info.NewestUse = &f.used
	}
	return info, err
}

// verifyAtOnce is how many blobs are hashed at once: enough to read one while hashing another, and few
// enough to leave CPU to others.
const verifyAtOnce = 2

// Verify hashes every blob and removes those that do not match their digests. progress, unless nil, is
// called with the bytes that were checked, not concurrently.
func (s *Store) Verify(ctx context.Context, progress func(done, total int64)) (Report, error) {
	files, err := s.files(ctx)
	if err != nil {
		return Report{}, err
	}
	files = slices.DeleteFunc(files, func(f file) bool { return f.partial })
	var done, total int64
	for _, f := range files {
		total += f.size
	}
	report := Report{Corrupt: []digest.Digest{}}
	var mu sync.Mutex // guards report, done and progress
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(verifyAtOnce)
	for _, f := range files {
		group.Go(func() error {
			release, err := s.acquire(ctx, ocispec.Descriptor{Digest: f.digest})
			if err != nil {
				return err
			}
			defer release()
			opened, st, err := s.verify(ctx, f.digest, false)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				opened.Close()
				report.Blobs++
				report.Bytes += st.size
			case !errors.Is(err, fs.ErrNotExist):
				return err
			case errors.Is(err, errDamaged):
				report.Corrupt = append(report.Corrupt, f.digest)
			}
			done += f.size
			if progress != nil {
				progress(done, total)
			}
			return nil
		})
	}
	err = group.Wait()
	slices.Sort(report.Corrupt)
	return report, err
}

// Prune removes blobs and partial downloads, least recently used first. It keeps what this Store is verifying or
// linking, and running downloads. Others fetch removed blobs again. It rejects a layout whose index.json lists images.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
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
	maxSize := cmp.Or(opts.MaxSize, s.maxSize)
	now := time.Now()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return pruned, err
		}
		old := opts.OlderThan > 0 && now.Sub(f.used) > opts.OlderThan
		overLimit := maxSize > 0 && pruned.RemainingBytes > maxSize
		if !opts.All && !old && !overLimit {
			continue
		}
		removed, err := s.remove(f, opts.DryRun)
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

// remove removes a file unless it is in use. With dry, it only reports.
func (s *Store) remove(f file, dry bool) (removed bool, err error) {
	err = s.locked(func() error {
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
		if dry {
			return nil
		}
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
			if r.listed && r.taken+size > s.maxSize {
				limit -= s.maxSize / relistFraction
			}
			if err := r.evict(ctx, s, max(1, limit)); err != nil {
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
	return r.evict(ctx, s, s.maxSize)
}

// evict prunes the store to a size. The caller holds r.mu.
func (r *room) evict(ctx context.Context, s *Store, size int64) error {
	pruned, err := s.Prune(ctx, PruneOptions{MaxSize: size})
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
