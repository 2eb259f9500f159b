// Package blobstore keeps blobs in a directory that is an OCI image layout: a cache shared by several
// processes, a temporary store, or the layout that images are written to. It downloads nothing itself
// and does not parse blobs.
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

// Options configure a [Store]. The zero value is ready for use.
type Options struct {
	// MaxSize is how many bytes the store may hold before the least recently used blobs are evicted. 0 is
	// unlimited.
	MaxSize int64
	// Trust is how long a verified blob is used without being read again, also by later processes, while
	// inode, size and times of its file stay the same. Damage by a bad disk then shows later, or in
	// [Store.Verify]. 0 makes each process verify each blob before its first use.
	Trust time.Duration
	// Log gets a line for each damaged blob and each eviction. Nil discards it.
	Log *slog.Logger
}

// Store is blobs in an OCI layout directory, each under its digest:
//
//	oci-layout
//	index.json                 created empty if missing
//	verified.json              what was verified, and when, with [Options.Trust]
//	blobs/<algorithm>/<hex>    complete and verified; mode 0444
//	ingest/<algorithm>-<hex>   partial download of a blob; locked by the downloading process
//	ingest/tmp-<random>        content whose digest is not known yet; locked as well
//
// Blobs get their names by rename(2) or link(2), so a process may be killed at any time. They are not
// synced to the disk: damage by a power failure is found at the next use, because every process
// verifies a blob before its first use, except with [Options.Trust].
//
// It is safe for concurrent use, also by several processes on one directory.
type Store struct {
	dir     string
	maxSize int64
	trust   time.Duration
	log     *slog.Logger
	temp    *os.File // the locked directory, if Close removes it

	mu         sync.Mutex
	busy       map[digest.Digest]chan struct{} // closed when the goroutine that works on the digest is done
	verified   map[digest.Digest]stamp         // the state of blobs' files when they were verified
	verifiedAt map[digest.Digest]int64         // when that was, in nanoseconds since 1970
	used       map[digest.Digest]bool          // not to be evicted
	added      int64                           // bytes since the last eviction

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
		dir: dir, maxSize: opts.MaxSize, trust: opts.Trust, log: opts.Log,
		busy:       map[digest.Digest]chan struct{}{},
		verified:   map[digest.Digest]stamp{},
		verifiedAt: map[digest.Digest]int64{},
		used:       map[digest.Digest]bool{},
		link:       os.Link,
		write:      (*os.File).Write,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.init(); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("cannot be written: %w: choose another directory (--cache-dir for the cache, or --no-cache)", err)
		}
		return nil, err
	}
	s.loadVerified()
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
	if err := s.saveVerified(); err != nil { // an error costs only time
		s.log.Warn("cannot record verified blobs; they will be verified again", "file", filepath.Join(s.dir, verifiedFile),
			"error", err)
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

// Add stores size bytes of r and returns their digest (SHA-256) and size. If r ends early, the error
// is a [*blob.Error]. Other errors of r are returned as they are.
func (s *Store) Add(ctx context.Context, r io.Reader, size int64) (ocispec.Descriptor, error) {
	if size < 0 {
		return ocispec.Descriptor{}, fmt.Errorf("invalid blob size %d", size)
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

// check verifies the digest's blob and marks it as used. The caller has acquired the digest.
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

// verify opens the digest's file and hashes it, unless trust is set and it has not changed since. It
// removes a damaged file. The caller has acquired the digest.
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
			why = err.Error() // such as a bad block of the disk
		}
		return nil, stamp{}, s.removeDamaged(d, st, why)
	}
	s.mu.Lock()
	s.verified[d] = st // the state before it was read, to notice concurrent changes
	s.verifiedAt[d] = time.Now().UnixNano()
	s.mu.Unlock()
	return f, st, nil
}

// open opens the digest's file. A file that cannot be read is damaged.
func (s *Store) open(d digest.Digest) (*os.File, stamp, error) {
	path := s.path(d)
	st, err := stampOf(path)
	if err != nil {
		return nil, stamp{}, err
	}
	if !st.regular {
		return nil, stamp{}, s.removeDamaged(d, st, "it is not a regular file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, stamp{}, s.removeDamaged(d, st, "it is not readable")
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

// errDamaged is about a blob that was damaged and is removed, so it is an [fs.ErrNotExist].
var errDamaged = fmt.Errorf("was damaged and is removed: %w", fs.ErrNotExist)

// removeDamaged removes the digest's file, unless it has changed since it was st, and returns
// errDamaged.
func (s *Store) removeDamaged(d digest.Digest, st stamp, why string) error {
	path, aside := s.path(d), s.tempName()
	gone := fmt.Errorf("%s: %w", path, errDamaged)
	if now, err := stampOf(path); err == nil && !now.sameContent(st) {
		return gone // another process has replaced it
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
	// It was moved instead of removed, so that a file that another process has just put there can be
	// restored.
	if moved, err := stampOf(aside); err == nil && !moved.sameContent(st) {
		_ = os.Link(aside, path)
	}
	_ = os.RemoveAll(aside)
	s.log.Warn("removed a damaged blob", "digest", d.String(), "dir", s.dir, "why", why)
	return gone
}

// useGranularity is the precision of a blob's last use. More frequent updates would make other
// processes verify the changed file again.
const useGranularity = time.Minute

// touch marks the digest's file as used now. It was verified when it was st.
func (s *Store) touch(f *os.File, d digest.Digest, st stamp) {
	now := time.Now()
	if now.Sub(time.Unix(st.mtime.Unix())).Abs() < useGranularity {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same, err := stampOfFile(f); err != nil || same != st {
		return // it has changed and will be verified again
	}
	if os.Chtimes(f.Name(), now, now) != nil {
		return
	}
	if after, err := stampOfFile(f); err == nil && after.inode == st.inode && after.size == st.size {
		s.verified[d] = after
	}
}

// remember records that the digest's file is verified and in use.
func (s *Store) remember(d digest.Digest, st stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[d] = true
	s.verified[d] = st
	s.verifiedAt[d] = time.Now().UnixNano()
}

// path returns the path of the digest's file. The digest must be valid.
func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.dir, oci.BlobPath(d))
}

// validate checks a descriptor's digest and size.
func validate(desc ocispec.Descriptor) error {
	if err := validDigest(desc.Digest); err != nil {
		return fmt.Errorf("digest %q: %w", desc.Digest, err)
	}
	if desc.Size < 0 {
		return blob.NewError(fmt.Errorf("has a descriptor with size %d", desc.Size))
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

// wrapDiskFull adds a remedy to errors about a full disk.
func (s *Store) wrapDiskFull(err error) error {
	if IsDiskFull(err) {
		return fmt.Errorf("the disk of %s is full: make room there, or choose another directory: %w", s.dir, err)
	}
	return err
}

// stamp is the state of a file that changes when it is written or replaced.
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
	return stamp{inode: st.Ino, regular: st.Mode&unix.S_IFMT == unix.S_IFREG, size: st.Size, mtime: st.Mtim,
		ctime: st.Ctim}, nil
}

// stampOf returns the stamp of the file at path. It does not follow links.
func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, path, unix.Lstat(path, &st))
}

func stampOfFile(f *os.File) (stamp, error) {
	var st unix.Stat_t
	return newStamp(&st, f.Name(), unix.Fstat(int(f.Fd()), &st))
}

// sameContent reports whether both are of the same file with the same content. It ignores ctime, which
// links and renames change.
func (s stamp) sameContent(other stamp) bool {
	s.ctime = other.ctime
	return s == other
}
