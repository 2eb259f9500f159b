// Package blobstore keeps blobs in a directory that is an OCI image layout: a
// cache that several processes share, a store for the length of one command, the
// layout that an image is written into. It fetches nothing by itself, knows
// nothing of what is in a blob, and writes no image's name into index.json.
package blobstore

import (
	"bytes"
	"context"
	_ "crypto/sha256" // for digest.SHA256
	_ "crypto/sha512" // for digest.SHA512
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/oci"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/blob"
)

// Options are how a [Store] is opened. The zero value is good.
type Options struct {
	// MaxSize is how many bytes the store may hold before the blobs that were
	// longest not used are removed. 0: there is no bound.
	MaxSize int64
	// Trust is how long a blob that was verified is taken for right without being
	// read again, by later processes too, if nothing about its file has changed since:
	// neither inode, nor size, nor times. What a bad disk does to it shows later, then,
	// or by [Store.Verify]. 0: each process verifies each blob before its first use.
	Trust time.Duration
	// Log is told of blobs that were damaged, and of those evicted. Nil: nobody is.
	Log *slog.Logger
}

// Store is blobs in an OCI layout directory, each under its digest:
//
//	oci-layout
//	index.json                 made as an empty list if it is not there, else left alone
//	verified.json              what was verified, and when, with [Options.Trust]
//	blobs/<algorithm>/<hex>    whole and verified, or it would not have this name; mode 0444
//	ingest/<algorithm>-<hex>   what was downloaded of a blob so far; locked by who downloads it
//	ingest/tmp-<random>        what is being written whose digest is not known yet; locked, too
//
// A blob gets its name by rename(2) or link(2), so that a process may be killed at
// any moment. Nothing is synced to the disk: what a power cut damages is found when
// the blob is used next, because every process verifies a blob before its first use
// (see [Options.Trust] for the exception).
//
// It is safe for concurrent use, also by several processes on one directory.
type Store struct {
	dir     string
	maxSize int64
	trust   time.Duration
	log     *slog.Logger
	temp    *os.File // the directory, locked, where Close removes it

	mu       sync.Mutex
	busy     map[digest.Digest]chan struct{} // closed when the goroutine that works on the digest is done
	verified map[digest.Digest]stamp         // what blobs' files were when they were right
	proven   map[digest.Digest]int64         // when they were, in nanoseconds since 1970
	used     map[digest.Digest]bool          // not to be evicted
	added    int64                           // bytes since the last eviction

	link  func(from, to string) error             // os.Link
	write func(f *os.File, b []byte) (int, error) // (*os.File).Write
}

// Open opens the store in dir and makes it where there is none yet. A directory
// that has something in it but is no OCI layout, and one that cannot be written,
// are refused; so is, where opts bounds the size, a layout whose index.json names
// images, for what belongs to an image is not to be evicted.
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
		dir: dir, maxSize: opts.MaxSize, trust: opts.Trust, log: opts.Log,
		busy:     map[digest.Digest]chan struct{}{},
		verified: map[digest.Digest]stamp{},
		proven:   map[digest.Digest]int64{},
		used:     map[digest.Digest]bool{},
		link:     os.Link,
		write:    (*os.File).Write,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.init(); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("cannot be written: %w: choose another directory (for the cache with --cache-dir; --no-cache goes without one)", err)
		}
		return nil, err
	}
	s.recall()
	return s, nil
}

// Dir is the store's directory, as an absolute path.
func (s *Store) Dir() string { return s.dir }

// Close evicts what is more than [Options.MaxSize], what this Store has used last of
// all, or removes the store if it is of [OpenTemp]. Blobs that are still open can be
// read to their end.
func (s *Store) Close() error {
	if s.temp != nil {
		defer s.temp.Close()
		return os.RemoveAll(s.dir)
	}
	left, err := s.evict()
	if err == nil && s.maxSize > 0 && left > s.maxSize {
		// What was used in this run alone is too much, and nobody uses it any more.
		s.mu.Lock()
		clear(s.used)
		s.mu.Unlock()
		_, err = s.evict()
	}
	if err := s.note(); err != nil { // it only costs time
		s.log.Warn("cannot write down what was verified, so it is verified again", "file", filepath.Join(s.dir, verifiedFile), "error", err)
	}
	_ = os.Remove(filepath.Join(s.dir, ingestDir)) // if it is empty; it is made when it is needed
	return err
}

// Has is whether a blob of desc's digest and size is there. It is not verified,
// but it will not be evicted by this Store any more.
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

// Get returns the blob of desc's digest, marks it as used, and keeps it from being
// evicted by this Store. All of it was verified: now, or earlier through this
// Store if its file is what it was then. What it opens is an [io.Seeker]. One that
// is not there is [fs.ErrNotExist]; so is one that was damaged, and is removed. A
// desc that gives a right blob another size is a [*blob.Error].
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

// Add stores size bytes of r, not one of which need be known before, and returns
// their digest (SHA-256) and size. It reads no further. An r that ends earlier is a
// [*blob.Error]; its other errors are returned as they are.
func (s *Store) Add(ctx context.Context, r io.Reader, size int64) (ocispec.Descriptor, error) {
	if size < 0 {
		return ocispec.Descriptor{}, fmt.Errorf("a blob of %d bytes", size)
	}
	t, err := s.createTemp()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer t.discard()
	hash := digest.SHA256.Hash()
	if _, err := s.copy(ctx, t.File, hash, r, size); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{Digest: digest.NewDigest(digest.SHA256, hash), Size: size}
	return desc, s.place(t.File, desc.Digest)
}

// Put stores raw, which must match desc, if it is not there.
func (s *Store) Put(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	_, err := s.Ensure(ctx, desc, func(_ context.Context, offset int64) (io.ReadCloser, error) {
		if size := int64(len(raw)); size != desc.Size {
			return nil, blob.SizeError(size, desc)
		}
		return io.NopCloser(bytes.NewReader(raw[offset:])), nil
	})
	return err
}

// Link makes a blob of another store one of this store, too: as a link to the same
// file or, where that is not possible, as a copy. It does nothing if this store has
// it and it is right, and replaces it if it is not. One that from does not have, or
// that is damaged there, is [fs.ErrNotExist].
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

// errChanged is about a file of which another process has just made something
// else than was verified or looked for, be it only by using it.
var errChanged = errors.New("was changed by another process in this moment")

// linkFrom links or copies a blob that was verified in another store.
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

// shares is whether the digest's file, as it was verified, is that of another
// store, too.
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

// linkTo links the digest's file, if it still is the one that was verified, into
// another store.
func (s *Store) linkTo(to *Store, d digest.Digest) error {
	if err := os.MkdirAll(filepath.Dir(to.path(d)), 0o755); err != nil {
		return err
	}
	s.mu.Lock() // a link changes its file's ctime: nobody may look before that is noted
	defer s.mu.Unlock()
	before, err := stampOf(s.path(d))
	if err != nil || before != s.verified[d] {
		return errChanged
	}
	if err := to.link(s.path(d), to.path(d)); err != nil {
		return err
	}
	if after, err := stampOf(to.path(d)); err == nil && after.like(before) {
		s.verified[d] = after
		to.remember(d, after)
	}
	return nil
}

// copyPiece is how many bytes are copied before the context is asked again.
const copyPiece = 64 << 20

// copyFrom copies the digest's file, if it is the one that was verified, from
// another store; the kernel does it (copy_file_range(2)).
func (s *Store) copyFrom(ctx context.Context, d digest.Digest, from *Store) error {
	src, st, err := from.open(d)
	if err != nil {
		return err
	}
	defer src.Close()
	from.mu.Lock()
	verified := from.verified[d]
	from.mu.Unlock()
	if !st.like(verified) {
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
			return s.writing(err)
		}
		left -= n
	}
	if now, err := stampOfFile(src); err != nil || !now.like(st) {
		return errChanged
	}
	return s.place(t.File, d)
}

// check verifies the digest's blob and marks it as used. The caller has acquired
// the digest.
func (s *Store) check(ctx context.Context, desc ocispec.Descriptor) error {
	s.mu.Lock()
	s.used[desc.Digest] = true
	s.mu.Unlock()
	f, st, err := s.verify(ctx, desc.Digest, true)
	if err != nil {
		return err
	}
	defer f.Close()
	s.touch(f, desc.Digest, st)
	if st.size != desc.Size {
		return blob.SizeError(st.size, desc)
	}
	return nil
}

// verify opens the digest's file and hashes it, unless trust is set and it is what
// it was when that was done last. A damaged one is removed, and not there. The
// caller has acquired the digest.
func (s *Store) verify(ctx context.Context, d digest.Digest, trust bool) (*os.File, stamp, error) {
	f, st, err := s.open(d)
	if err != nil {
		return nil, stamp{}, err
	}
	s.mu.Lock()
	trust = trust && s.verified[d] == st
	s.mu.Unlock()
	if trust {
		return f, st, nil
	}
	hash := d.Algorithm().Hash()
	_, err = s.copy(ctx, nil, hash, f, st.size)
	if err := ctx.Err(); err != nil {
		f.Close()
		return nil, stamp{}, err
	}
	if err != nil || digest.NewDigest(d.Algorithm(), hash) != d {
		f.Close()
		why := "its content does not match its digest"
		if err != nil {
			why = err.Error() // a bad block of the disk, say
		}
		return nil, stamp{}, s.damaged(d, st, why)
	}
	s.mu.Lock()
	s.verified[d] = st // what it was before it was read: a change meanwhile counts
	s.proven[d] = time.Now().UnixNano()
	s.mu.Unlock()
	return f, st, nil
}

// open opens the digest's file. What is no file that can be read is damaged.
func (s *Store) open(d digest.Digest) (*os.File, stamp, error) {
	path := s.path(d)
	st, err := stampOf(path)
	if err != nil {
		return nil, stamp{}, err
	}
	if !st.regular {
		return nil, stamp{}, s.damaged(d, st, "it is not a regular file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, stamp{}, s.damaged(d, st, "it may not be read")
	}
	if err != nil {
		return nil, stamp{}, err
	}
	if st, err = stampOfFile(f); err != nil {
		f.Close()
		return nil, stamp{}, err
	}
	return f, st, nil
}

// errDamaged is about a blob that was there and not right. It is [fs.ErrNotExist],
// for it was removed.
var errDamaged = fmt.Errorf("was damaged and is removed: %w", fs.ErrNotExist)

// damaged removes the digest's file, if it still is the one that was looked at when
// it was st, and returns errDamaged.
func (s *Store) damaged(d digest.Digest, st stamp, why string) error {
	path, aside := s.path(d), s.tempName()
	gone := fmt.Errorf("%s: %w", path, errDamaged)
	if now, err := stampOf(path); err == nil && !now.like(st) {
		return gone // another process has put the right one there
	}
	err := s.makeIngest()
	if err == nil {
		err = os.Rename(path, aside)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	if err != nil {
		return fmt.Errorf("%s is damaged (%s) and cannot be removed: %w", path, why, err)
	}
	// It was moved rather than removed so that the right one, if another process
	// was that quick, can go back.
	if moved, err := stampOf(aside); err == nil && !moved.like(st) {
		_ = os.Link(aside, path)
	}
	_ = os.RemoveAll(aside)
	s.log.Warn("removed a damaged blob from the store", "digest", d.String(), "dir", s.dir, "why", why)
	return gone
}

// useGrain is how exactly the time of a blob's last use is kept. Marks that come
// more often would make other processes, which see that the file has changed,
// verify it again.
const useGrain = time.Minute

// touch marks the digest's file, which was verified when it was st, as used now.
func (s *Store) touch(f *os.File, d digest.Digest, st stamp) {
	now := time.Now()
	if now.Sub(time.Unix(st.mtime.Unix())).Abs() < useGrain {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same, err := stampOfFile(f); err != nil || same != st {
		return // it was changed since, and will be verified again
	}
	if os.Chtimes(f.Name(), now, now) != nil {
		return
	}
	if after, err := stampOfFile(f); err == nil && after.inode == st.inode && after.size == st.size {
		s.verified[d] = after
	}
}

// remember notes that the digest's file is right and in use.
func (s *Store) remember(d digest.Digest, st stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[d] = true
	s.verified[d] = st
	s.proven[d] = time.Now().UnixNano()
}

// path is the digest's file. The digest must be valid.
func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.dir, oci.BlobPath(d))
}

// validate is what is wrong with a descriptor's digest and size in themselves.
func validate(desc ocispec.Descriptor) error {
	if err := validDigest(desc.Digest); err != nil {
		return fmt.Errorf("digest %q: %w", desc.Digest, err)
	}
	if desc.Size < 0 {
		return blob.NewError(fmt.Errorf("has a descriptor that says %d bytes", desc.Size))
	}
	return nil
}

func validDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return blob.NewError(err)
	}
	if a := d.Algorithm(); a != digest.SHA256 && a != digest.SHA512 {
		return blob.NewError(fmt.Errorf("is neither %s nor %s", digest.SHA256, digest.SHA512))
	}
	return nil
}

// writing is an error of writing to the store's directory.
func (s *Store) writing(err error) error {
	if IsDiskFull(err) {
		return fmt.Errorf("the disk of %s is full: make room there, or choose another directory: %w", s.dir, err)
	}
	return err
}

// stamp is what changes when somebody writes to a file, or puts another in its
// place.
type stamp struct {
	inode        uint64
	regular      bool
	size         int64
	mtime, ctime unix.Timespec
}

func newStamp(st *unix.Stat_t, path string, err error) (stamp, error) {
	if err != nil {
		return stamp{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{inode: st.Ino, regular: st.Mode&unix.S_IFMT == unix.S_IFREG, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// stampOf is that of the file at path, which may be a link.
func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, path, unix.Lstat(path, &st))
}

func stampOfFile(f *os.File) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, f.Name(), unix.Fstat(int(f.Fd()), &st))
}

// like is whether both are of the same file with the same content, which may have
// been linked or renamed in between: that changes ctime.
func (s stamp) like(other stamp) bool {
	s.ctime = other.ctime
	return s == other
}
