// Package blobstore keeps blobs in a directory that is an OCI image layout: a store shared by several
// processes, a temporary store, or the layout that images are written to. It downloads nothing itself
// and does not parse blobs.
package blobstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
)

// Options configure a [Store]. The zero value is ready for use.
type Options struct {
	// MaxSize is how many bytes the store may hold before the least recently used blobs are evicted. 0 is
	// unlimited.
	MaxSize int64
	// Log gets a line for each damaged blob and each eviction. Nil discards it.
	Log *slog.Logger
}

// Store is blobs in an OCI layout directory, each under its digest:
//
//	oci-layout
//	index.json                 created empty if missing
//	blobs/<algorithm>/<hex>    complete and verified; mode 0444
//	ingest/<algorithm>-<hex>   partial download of a blob; locked by the downloading process
//	ingest/tmp-<random>        copy of another store's blob, or a damaged one; locked as well
//
// Blobs get their names by rename(2) or link(2), so a process may be killed at any time. They are not
// synced to the disk: damage by a power failure is found at the next use, because every process
// verifies a blob before its first use. index.json can then name blobs that are missing.
//
// It is safe for concurrent use, also by several processes on one directory.
type Store struct {
	dir     string
	maxSize int64
	log     *slog.Logger
	temp    *os.File // the locked directory, if Close removes it

	mu       sync.Mutex
	busy     map[digest.Digest]chan struct{} // closed when the goroutine that works on the digest is done
	verified map[digest.Digest]stamp         // the state of blobs' files when they were verified
	used     map[digest.Digest]bool          // not to be evicted
	added    int64                           // bytes since the last eviction

	link  func(from, to string) error             // os.Link, unless a test replaces it
	write func(f *os.File, b []byte) (int, error) // (*os.File).Write, unless a test replaces it
}

// Open opens the store in dir and creates it if necessary. It rejects a directory that is not
// writable, or neither empty nor an OCI layout. If opts limits the size, it also rejects a layout
// whose index.json lists images, because blobs of images must not be evicted.
func Open(dir string, opts Options) (*Store, error) {
	s, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("blob store %s: %w", dir, err)
	}
	return s, nil
}

func open(dir string, opts Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, maxSize: opts.MaxSize, log: opts.Log,
		busy:     map[digest.Digest]chan struct{}{},
		verified: map[digest.Digest]stamp{},
		used:     map[digest.Digest]bool{},
		link:     os.Link,
		write:    (*os.File).Write,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.init(); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("cannot be written: %w: choose another directory (--store-dir for the local store, or --no-store)",
				err)
		}
		return nil, err
	}
	return s, nil
}

// Dir returns the absolute path of the store's directory.
func (s *Store) Dir() string { return s.dir }

// Close evicts blobs beyond [Options.MaxSize], those used by this Store last, or removes a store of
// [OpenTemp]. Open blobs can still be read.
func (s *Store) Close() error {
	if s.temp != nil {
		defer s.temp.Close()
		return os.RemoveAll(s.dir)
	}
	left, err := s.evict()
	if err == nil && s.maxSize > 0 && left > s.maxSize {
		// This run alone used more than MaxSize. It needs the blobs no longer.
		s.mu.Lock()
		clear(s.used)
		s.mu.Unlock()
		_, err = s.evict()
	}
	_ = os.Remove(filepath.Join(s.dir, ingestDir)) // if it is empty; it is recreated on demand
	return err
}

// Has reports whether a blob of desc's digest and size exists, without verifying it. This Store will
// not evict it.
func (s *Store) Has(desc ocispec.Descriptor) bool {
	if validate(desc) != nil {
		return false
	}
	info, err := os.Lstat(s.path(desc.Digest))
	if err != nil || !info.Mode().IsRegular() || info.Size() != desc.Size {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[desc.Digest] = true
	return true
}

// Get returns the blob of desc's digest, and keeps this Store from evicting it. It verifies the blob,
// unless this Store has done so and the file is unchanged. The blob opens as an [io.Seeker]. The error
// is [fs.ErrNotExist] if the blob does not exist, or was damaged and is now removed, and a
// [*blob.Error] if the size differs from desc's.
func (s *Store) Get(ctx context.Context, desc ocispec.Descriptor) (blob.Blob, error) {
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return blob.Blob{}, err
	}
	defer release()
	if err := s.check(ctx, desc); err != nil {
		return blob.Blob{}, err
	}
	return blob.Blob{Size: desc.Size, Open: func() (io.ReadCloser, error) {
		f, st, err := s.open(desc.Digest)
		if err != nil {
			return nil, err
		}
		if st.size != desc.Size {
			f.Close()
			return nil, blob.SizeError(st.size, desc)
		}
		return f, nil
	}}, nil
}

// Put stores raw, which must match desc, unless it exists.
func (s *Store) Put(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	_, err := s.Ensure(ctx, desc, func(_ context.Context, offset int64) (io.ReadCloser, error) {
		if size := int64(len(raw)); size != desc.Size {
			return nil, blob.SizeError(size, desc)
		}
		return io.NopCloser(bytes.NewReader(raw[offset:])), nil
	})
	return err
}

// Link adds a blob of another store as a hard link or, if that is not possible, as a copy. It does
// nothing if this store has an intact copy, and replaces a damaged one. The error is [fs.ErrNotExist]
// if from does not have the blob or its copy is damaged.
func (s *Store) Link(ctx context.Context, desc ocispec.Descriptor, from *Store) error {
	for {
		if _, err := from.Get(ctx, desc); err != nil {
			return err
		}
		err := s.linkFrom(ctx, desc, from)
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

// errChanged is about a file that another process has changed since it was verified, or only touched.
var errChanged = errors.New("was changed by another process")

// linkFrom links or copies a verified blob of another store.
func (s *Store) linkFrom(ctx context.Context, desc ocispec.Descriptor, from *Store) error {
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return err
	}
	defer release()
	if from.shares(s, desc.Digest) {
		return nil
	}
	if err := s.check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = from.linkTo(s, desc.Digest)
	if err == nil || errors.Is(err, errChanged) {
		return err
	}
	if errors.Is(err, fs.ErrExist) {
		return errChanged
	}
	return s.copyFrom(ctx, desc.Digest, from)
}

// shares reports whether the digest's verified file is also another store's.
func (s *Store) shares(other *Store, d digest.Digest) bool {
	st, err := stampOf(other.path(d))
	if err != nil {
		return false
	}
	s.mu.Lock()
	shared := s.verified[d] == st
	s.mu.Unlock()
	if shared {
		other.remember(d, st)
	}
	return shared
}

// linkTo links the digest's file into another store, unless it has changed since it was verified.
func (s *Store) linkTo(to *Store, d digest.Digest) error {
	if err := os.MkdirAll(filepath.Dir(to.path(d)), 0o755); err != nil {
		return err
	}
	s.mu.Lock() // a link changes its file's ctime, which must be recorded first
	defer s.mu.Unlock()
	before, err := stampOf(s.path(d))
	if err != nil || before != s.verified[d] {
		return errChanged
	}
	if err := to.link(s.path(d), to.path(d)); err != nil {
		return err
	}
	if after, err := stampOf(to.path(d)); err == nil && after.sameContent(before) {
		s.verified[d] = after
		to.remember(d, after)
	}
	return nil
}

// copyPiece is how many bytes are copied between checks of the context.
const copyPiece = 64 << 20

// copyFrom copies the digest's verified file from another store with copy_file_range(2).
func (s *Store) copyFrom(ctx context.Context, d digest.Digest, from *Store) error {
	src, st, err := from.open(d)
	if err != nil {
		return err
	}
	defer src.Close()
	from.mu.Lock()
	verified := from.verified[d]
	from.mu.Unlock()
	if !st.sameContent(verified) {
		return errChanged
	}
	t, err := s.createTemp()
	if err != nil {
		return err
	}
	defer t.discard()
	for left := st.size; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(t, src, min(left, copyPiece))
		if err != nil {
			return s.wrapDiskFull(err)
		}
		left -= n
	}
	if now, err := stampOfFile(src); err != nil || !now.sameContent(st) {
		return errChanged
	}
	return s.place(t.File, d)
}

// tempStorePrefix is the prefix of the directories of [OpenTemp].
const tempStorePrefix = "zarf-registry-blobs-"

// OpenTemp creates a temporary store in parent, or in the system's temporary directory if parent is
// empty. [Store.Close] removes it. OpenTemp also removes stores of processes that were killed.
func OpenTemp(parent string) (*Store, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("temporary blob store: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), tempStorePrefix) {
			continue
		}
		if f, err := lockDir(filepath.Join(parent, e.Name())); err == nil {
			_ = os.RemoveAll(f.Name())
			f.Close()
		}
	}
	for {
		dir, err := os.MkdirTemp(parent, tempStorePrefix)
		if err != nil {
			return nil, fmt.Errorf("temporary blob store: %w", err)
		}
		lock, err := lockDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errLocked) {
			continue // another OpenTemp removed it before it was locked
		}
		var s *Store
		if err == nil {
			s, err = Open(dir, Options{})
		}
		if err != nil {
			_ = os.RemoveAll(dir)
			lock.Close()
			return nil, err
		}
		s.temp = lock
		return s, nil
	}
}

// lockDir locks a directory.
func lockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		f.Close()
		return nil, err
	}
	if !stillNamed(f) {
		f.Close()
		return nil, fs.ErrNotExist
	}
	return f, nil
}
