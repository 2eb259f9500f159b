package cache

import (
	"cmp"
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/opencontainers/go-digest"
)

const (
	// chunkSize is how much of a blob is written, verified and delivered at a time.
	chunkSize = 64 << 10
	// fullInterval is how long nothing is stored after the file system had no space.
	fullInterval = 10 * time.Second
	// partSuffix and sumsSuffix follow a blob's name in the names of files.
	partSuffix, sumsSuffix = ".part", ".sums"
)

var (
	errNoRoom  = errors.New("the cache has no room")
	errCorrupt = errors.New("the stored content is corrupt")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// store is a bounded directory of blobs. Its files are, for a blob with the digest ALGORITHM:HEX:
//
//	ALGORITHM-HEX       the content
//	ALGORITHM-HEX.sums  a CRC-32C (Castagnoli) of each 64 KiB of it, 4 bytes each, little endian
//	ALGORITHM-HEX.part  content that is not complete, or not verified
//
// A blob gets its name when its digest was verified. Afterwards the sums tell whether the disk
// returns what was written; they cost a tenth of what a digest costs. Nothing is synced to disk: what
// a crash loses fails this check.
type store struct {
	dir     string
	size    int64 // most bytes of all blobs
	metrics *cacheMetrics

	mu        sync.Mutex
	used      int64
	blobs     map[digest.Digest]*blob
	order     list.List // of *blob, the least recently used first
	fullUntil time.Time
}

// blob is a stored blob, or one that is being fetched.
type blob struct {
	digest digest.Digest
	size   int64

	// Guarded by store.mu.
	element *list.Element // nil after the blob was dropped
	users   int
	file    *os.File // open while there are users

	// sums has its final length from the beginning. Each is written before the chunk becomes available.
	sums []uint32

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change; nil if there will be none
	available int64         // bytes that may be read
	err       error         // why the blob will not become complete
}

// openStore opens a directory, adopts its blobs and deletes everything else in it.
func openStore(dir string, size int64, counters *cacheMetrics) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &store{dir: dir, size: size, metrics: counters, blobs: map[digest.Digest]*blob{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	type found struct {
		*blob
		used time.Time
	}
	var adopted []found
	keep := map[string]bool{}
	for _, entry := range entries {
		b, at, err := s.load(entry)
		if err != nil {
			continue
		}
		adopted = append(adopted, found{b, at})
		keep[entry.Name()], keep[entry.Name()+sumsSuffix] = true, true
	}
	for _, entry := range entries {
		// A volume has a lost+found directory, which is not ours.
		if keep[entry.Name()] || entry.IsDir() {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(adopted, func(a, b found) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest))
	})
	for _, f := range adopted {
		s.blobs[f.digest], s.used = f.blob, s.used+f.size
		f.element = s.order.PushBack(f.blob)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.evictLocked(0)
}

// load reads the sums of a blob of a previous run.
func (s *store) load(entry fs.DirEntry) (*blob, time.Time, error) {
	algorithm, hex, _ := strings.Cut(entry.Name(), "-")
	d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), hex)
	if err := d.Validate(); err != nil {
		return nil, time.Time{}, err
	}
	info, err := entry.Info()
	if err != nil {
		return nil, time.Time{}, err
	}
	sums, err := os.ReadFile(s.path(d) + sumsSuffix)
	if err != nil {
		return nil, time.Time{}, err
	}
	b := newBlob(d, info.Size())
	if !info.Mode().IsRegular() || len(sums) != 4*len(b.sums) {
		return nil, time.Time{}, errCorrupt
	}
	for i := range b.sums {
		b.sums[i] = binary.LittleEndian.Uint32(sums[4*i:])
	}
	b.changed, b.available = nil, b.size
	return b, info.ModTime(), nil
}

func newBlob(d digest.Digest, size int64) *blob {
	return &blob{digest: d, size: size, changed: make(chan struct{}), sums: make([]uint32, (size+chunkSize-1)/chunkSize)}
}

func (s *store) path(d digest.Digest) string {
	return filepath.Join(s.dir, d.Algorithm().String()+"-"+d.Encoded())
}

// get returns a blob for reading, and whether it did not exist: then the caller must also call write, which
// fills it. The caller must call release once.
func (s *store) get(d digest.Digest, size int64) (b *blob, created bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.blobs[d]; b != nil {
		if b.size != size {
			if b.users == 0 { // its file was damaged: the next request fetches it
				s.dropLocked(b)
			}
			return nil, false, fmt.Errorf("%s has %d bytes, and the registry has %d", d, b.size, size)
		}
		if b.users == 0 {
			if b.file, err = os.Open(s.path(d)); err != nil {
				s.dropLocked(b)
				return nil, false, err
			}
		}
		b.users++
		s.order.MoveToBack(b.element)
		return b, false, nil
	}
	if err := s.evictLocked(size); err != nil {
		return nil, false, err
	}
	b = newBlob(d, size)
	if b.file, err = os.OpenFile(s.path(d)+partSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
		if err = allocate(b.file, size); err != nil {
			_ = b.file.Close()
			_ = os.Remove(b.file.Name())
		}
	}
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			s.fullUntil = time.Now().Add(fullInterval)
		}
		return nil, false, err
	}
	b.users = 2 // the caller and write
	s.blobs[d], s.used = b, s.used+size
	b.element = s.order.PushBack(b)
	return b, true, nil
}

// evictLocked makes room for size bytes. Blobs in use stay.
func (s *store) evictLocked(size int64) error {
	if size > s.size || time.Now().Before(s.fullUntil) {
		return errNoRoom
	}
	for e := s.order.Front(); s.used+size > s.size; {
		if e == nil {
			return errNoRoom
		}
		b := e.Value.(*blob)
		e = e.Next()
		if b.users == 0 {
			s.dropLocked(b)
			s.metrics.evictions.Inc()
		}
	}
	return nil
}

// dropLocked removes a blob. Its users may read on.
func (s *store) dropLocked(b *blob) {
	if b.element == nil {
		return
	}
	s.order.Remove(b.element)
	b.element = nil
	delete(s.blobs, b.digest)
	s.used -= b.size
	for _, suffix := range []string{"", sumsSuffix, partSuffix} {
		_ = os.Remove(s.path(b.digest) + suffix)
	}
}

func (s *store) drop(b *blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(b)
}

func (s *store) release(b *blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.users--; b.users == 0 {
		_ = b.file.Close()
		b.file = nil
	}
}

// usage returns how many bytes are reserved and how many blobs there are.
func (s *store) usage() (bytes int64, blobs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, len(s.blobs)
}

// write stores the content that open returns. Readers get each chunk as soon as it is written, but the
// last one only when the digest was verified: wrong content never becomes complete. Readers get the
// error too.
func (s *store) write(b *blob, open func() (io.ReadCloser, error)) (err error) {
	defer s.release(b)
	defer func() {
		if err != nil {
			s.drop(b)
			b.publish(0, err)
		}
	}()
	content, err := open()
	if err != nil {
		return err
	}
	defer content.Close()
	verifier := b.digest.Verifier()
	buffer := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(buffer)
	for i := range b.sums {
		offset := int64(i) * chunkSize
		part := buffer[:min(chunkSize, b.size-offset)]
		if _, err := io.ReadFull(content, part); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		_, _ = verifier.Write(part) // never fails
		b.sums[i] = crc32.Checksum(part, castagnoli)
		if _, err := b.file.WriteAt(part, offset); err != nil {
			return err
		}
		if i < len(b.sums)-1 {
			b.publish(offset+int64(len(part)), nil)
		}
	}
	if !verifier.Verified() {
		s.metrics.corrupt.Inc()
		return fmt.Errorf("the registry sent other content than %s", b.digest)
	}
	sums := make([]byte, 0, 4*len(b.sums))
	for _, sum := range b.sums {
		sums = binary.LittleEndian.AppendUint32(sums, sum)
	}
	if err := s.commit(b, sums); err != nil {
		return err
	}
	b.publish(b.size, nil)
	return nil
}

// commit gives a complete blob its name, unless it was dropped.
func (s *store) commit(b *blob, sums []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.element == nil {
		return errCorrupt
	}
	path := s.path(b.digest)
	if err := os.WriteFile(path+sumsSuffix, sums, 0o600); err != nil {
		return err
	}
	return os.Rename(path+partSuffix, path)
}

// publish makes the first available bytes readable, or fails the blob.
func (b *blob) publish(available int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.err = err
	} else {
		b.available = available
	}
	close(b.changed)
	if b.changed = nil; err == nil && available < b.size {
		b.changed = make(chan struct{})
	}
}

// wait waits until size bytes are available.
func (b *blob) wait(ctx context.Context, size int64) error {
	for {
		b.mu.Lock()
		available, changed, err := b.available, b.changed, b.err
		b.mu.Unlock()
		switch {
		case available >= size:
			return nil
		case err != nil:
			return err
		case changed == nil:
			return io.ErrUnexpectedEOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// chunk reads a chunk into buffer and verifies it. It drops a blob that is corrupt.
func (s *store) chunk(ctx context.Context, b *blob, i int, buffer *[chunkSize]byte) ([]byte, error) {
	offset := int64(i) * chunkSize
	part := buffer[:min(chunkSize, b.size-offset)]
	if err := b.wait(ctx, offset+int64(len(part))); err != nil {
		return nil, err
	}
	_, err := b.file.ReadAt(part, offset)
	if err == nil && crc32.Checksum(part, castagnoli) == b.sums[i] {
		return part, nil
	}
	s.metrics.corrupt.Inc()
	s.drop(b)
	if err == nil {
		err = errCorrupt
	}
	return nil, fmt.Errorf("%s at %d: %w", b.digest, offset, err)
}

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// reader reads a blob from any offset, as http.ServeContent does. Close it once.
type reader struct {
	store  *store
	blob   *blob
	ctx    context.Context  //nolint:containedctx // of one request, which reads
	before func()           // called before each chunk is delivered
	saved  *metrics.Counter // of delivered bytes; may be nil

	offset int64
	buffer *[chunkSize]byte
	index  int // of the chunk in buffer; -1: none
	part   []byte
	err    error // of the last Read, except io.EOF
}

func (s *store) reader(ctx context.Context, b *blob, before func()) *reader {
	return &reader{store: s, blob: b, ctx: ctx, before: before, buffer: chunks.Get().(*[chunkSize]byte), index: -1}
}

func (r *reader) Close() {
	chunks.Put(r.buffer)
	r.store.release(r.blob)
}

func (r *reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.offset
	case io.SeekEnd:
		offset += r.blob.size
	}
	if offset < 0 {
		return 0, os.ErrInvalid
	}
	r.offset = offset
	return offset, nil
}

func (r *reader) Read(p []byte) (int, error) {
	if r.offset >= r.blob.size {
		// Also an empty blob is complete only when its digest was verified.
		if r.err = r.blob.wait(r.ctx, r.blob.size); r.err != nil {
			return 0, r.err
		}
		return 0, io.EOF
	}
	if i := int(r.offset / chunkSize); i != r.index {
		if r.part, r.err = r.store.chunk(r.ctx, r.blob, i, r.buffer); r.err != nil {
			return 0, r.err
		}
		r.index = i
		r.before()
	}
	n := copy(p, r.part[r.offset-int64(r.index)*chunkSize:])
	r.offset += int64(n)
	if r.saved != nil {
		r.saved.Add(n)
	}
	return n, nil
}
