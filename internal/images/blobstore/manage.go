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

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Info describes what a store holds.
type Info struct {
	Dir          string     `json:"dir"`
	Blobs        int        `json:"blobs"`
	Bytes        int64      `json:"bytes"`              // of the blobs
	Partials     int        `json:"partialDownloads"`   // that the next Ensure resumes
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

// Prune removes blobs and partial downloads, least recently used first. It keeps what this Store has
// used since it was opened, and running downloads. Other processes fetch removed blobs again. It
// rejects a layout whose index.json lists images.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
	var pruned Pruned
	if err := s.checkNoImages(); err != nil {
		return pruned, fmt.Errorf("blob store %s: %w", s.dir, err)
	}
	if !opts.DryRun {
		s.removeStale()
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
func (s *Store) remove(f file, dry bool) (bool, error) {
	if f.partial {
		locked, err := tryLock(f.path, 0)
		switch {
		case errors.Is(err, errLocked):
			return false, nil
		case err != nil:
			return errors.Is(err, fs.ErrNotExist), ignore(err, fs.ErrNotExist)
		case dry:
			return true, locked.Close()
		}
		locked.discard()
		return true, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock() // until it is removed, so that no use can start
	if s.used[f.digest] {
		return false, nil
	}
	// Another process may have used it since it was listed.
	if info, err := os.Lstat(f.path); err == nil && !info.ModTime().Equal(f.used) {
		return false, nil
	}
	if dry {
		return true, nil
	}
	return true, os.RemoveAll(f.path)
}

// evictAfterFraction is the part of the limit that a store may grow before it checks its size: small enough
// not to fill the disk in a long run, large enough for listing the blobs not to matter.
const evictAfterFraction = 8

// grown evicts if the store has grown considerably since the last eviction.
func (s *Store) grown(added int64) {
	s.mu.Lock()
	s.added += added
	enough := s.maxSize > 0 && s.added > s.maxSize/evictAfterFraction
	if enough {
		s.added = 0
	}
	s.mu.Unlock()
	if !enough {
		return
	}
	if _, err := s.evict(); err != nil {
		s.log.Warn("cannot evict old blobs", "dir", s.dir, "error", err)
	}
}

// evict removes what exceeds the store's limit, and returns how many bytes are left.
func (s *Store) evict() (left int64, err error) {
	if s.maxSize == 0 {
		return 0, nil
	}
	pruned, err := s.Prune(context.Background(), PruneOptions{})
	if pruned.Blobs+pruned.Partials > 0 {
		s.log.Info("evicted the least recently used blobs", "dir", s.dir, "blobs", pruned.Blobs, "partialDownloads",
			pruned.Partials, "bytes", pruned.Bytes+pruned.PartialBytes)
	}
	return pruned.RemainingBytes, err
}
