// Package blobstore keeps blobs in a directory that is an OCI image layout: a store shared by several
// processes, or the layout that images are written to. It downloads nothing itself and does not parse blobs.
//
// oras-go's oci.Storage is no replacement: it deletes interrupted downloads, does not verify what it reads, and knows
// neither other processes nor a limit.
package blobstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// Options configure a [Store]. The zero value is ready for use.
type Options struct {
	// Cache makes [Store.Fetch] refuse blobs that do not fit: into MaxSize, or into half of what is free in the file
	// system.
	Cache bool
	// MaxSize is how many bytes a cache may hold. The least recently used blobs are evicted before it has more. Processes
	// that fill a cache at once may exceed it by an eighth each. 0 is unlimited.
	MaxSize int64
	// Log gets a line for each damaged blob and each eviction. Nil discards it.
	Log *slog.Logger
}

// Store is blobs in an OCI layout directory, each under its digest:
//
//	oci-layout
//	index.json
//	blobs/<algorithm>/<hex>    complete and verified; mode 0444
//	ingest/<algorithm>-<hex>   partial download of a blob; locked by the downloading process
//
// Blobs get their names by rename(2) or link(2), so a process may be killed at any time. Who adds or removes one, or
// changes index.json, holds the lock of the directory for that moment. Blobs are not
// synced to the disk: damage by a power failure is found at the next use, because every process
// verifies a blob before its first use. index.json can then name blobs that are missing.
//
// It is safe for concurrent use, also by several processes on one directory.
type Store struct {
	dir     string
	cache   bool
	maxSize int64
	log     *slog.Logger

	mu       sync.Mutex
	busy     map[digest.Digest]chan struct{} // closed when the goroutine that works on the digest is done
	verified map[digest.Digest]fs.FileInfo   // of blobs' files, as they were when they were verified

	room room

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
		dir: dir, cache: opts.Cache, maxSize: opts.MaxSize, log: opts.Log,
		busy:     map[digest.Digest]chan struct{}{},
		verified: map[digest.Digest]fs.FileInfo{},
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

// Close evicts blobs beyond [Options.MaxSize]. Open blobs can still be read.
func (s *Store) Close() error {
	err := s.room.shrink(context.Background(), s)
	_ = os.Remove(filepath.Join(s.dir, ingestDir)) // if it is empty; it is recreated on demand
	return err
}

// Open opens the blob of desc's digest. It verifies the blob, unless this Store has done so and the file is unchanged.
// The blob can be read to its end even if it is evicted. The error is [fs.ErrNotExist] if the blob does not exist, or
// was damaged and is now removed, and a [*blob.Error] if the size differs from desc's.
func (s *Store) Open(ctx context.Context, desc ocispec.Descriptor) (*os.File, error) {
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.check(ctx, desc)
}

// Link adds a blob of another store as a hard link or, if that is not possible, as a copy. It does nothing if this
// store has an intact copy, and replaces a damaged one. The error is [fs.ErrNotExist] if from does not have the
// blob or its copy is damaged.
func (s *Store) Link(ctx context.Context, desc ocispec.Descriptor, from *Store) error {
	source, err := from.Open(ctx, desc)
	if err != nil {
		return err
	}
	defer source.Close()
	release, err := s.acquire(ctx, desc)
	if err != nil {
		return err
	}
	defer release()
	for {
		f, err := s.check(ctx, desc)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if s.linkFile(source, desc.Digest, from) == nil {
			return nil
		}
		_, err = s.add(ctx, desc, func(_ context.Context, offset int64) (io.ReadCloser, error) {
			_, err := source.Seek(offset, io.SeekStart)
			return io.NopCloser(source), err
		})
		if err != nil {
			return err
		}
	}
}

// linkFile links a verified file of another store.
func (s *Store) linkFile(source *os.File, d digest.Digest, from *Store) error {
	err := s.locked(func(*os.File) error {
		if err := os.MkdirAll(filepath.Dir(s.path(d)), 0o755); err != nil {
			return err
		}
		return s.link(source.Name(), s.path(d))
	})
	if err == nil {
		s.remember(d, from.known(d))
	}
	return err
}
