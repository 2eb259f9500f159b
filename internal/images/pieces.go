package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Pieces are files that together are an archive. Each describes itself at its end, so that they can be carried in any
// order, on any media and under any names. All integers are big endian:
//
//	      data of the archive
//	32 B  archive: the SHA-256 of the pieces' SHA-256 in order
//	32 B  SHA-256 of the data
//	 8 B  offset of the data in the archive
//	 8 B  size of the archive
//	 4 B  number of the piece, from 1
//	 4 B  number of pieces
//	24 B  "zarf-registry piece 1\n" and two zero bytes
const (
	pieceMagic = "zarf-registry piece 1\n\x00\x00"
	footerSize = 2*sha256.Size + 8 + 8 + 4 + 4 + len(pieceMagic)
	maxPieces  = 999
)

// MinPieceSize is the smallest size of pieces, in bytes.
const MinPieceSize = 1 << 20

// footer describes a piece.
type footer struct {
	archive, data [sha256.Size]byte
	offset, total int64
	number, count int
}

func (f footer) bytes() []byte {
	b := append(f.archive[:], f.data[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(f.offset))
	b = binary.BigEndian.AppendUint64(b, uint64(f.total))
	b = binary.BigEndian.AppendUint32(b, uint32(f.number))
	b = binary.BigEndian.AppendUint32(b, uint32(f.count))
	return append(b, pieceMagic...)
}

func parseFooter(b []byte) (f footer, ok bool) {
	if len(b) != footerSize || string(b[footerSize-len(pieceMagic):]) != pieceMagic {
		return footer{}, false
	}
	copy(f.archive[:], b)
	copy(f.data[:], b[sha256.Size:])
	rest := b[2*sha256.Size:]
	f.offset, f.total = int64(binary.BigEndian.Uint64(rest)), int64(binary.BigEndian.Uint64(rest[8:]))
	f.number, f.count = int(binary.BigEndian.Uint32(rest[16:])), int(binary.BigEndian.Uint32(rest[20:]))
	valid := f.number >= 1 && f.number <= f.count && f.count <= maxPieces && f.offset >= 0 && f.offset <= f.total
	return f, valid
}

// readFooter returns the footer of a file, and false if it is not a piece.
func readFooter(name string) (f footer, ok bool, err error) {
	file, err := os.Open(name)
	if err != nil {
		return footer{}, false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() < int64(footerSize) {
		return footer{}, false, err
	}
	b := make([]byte, footerSize)
	if _, err := file.ReadAt(b, info.Size()-int64(footerSize)); err != nil {
		return footer{}, false, err
	}
	f, ok = parseFooter(b)
	return f, ok, nil
}

// splitter writes an archive as pieces.
type splitter struct {
	path    string // of the archive: the pieces are path.001 and so on
	size    int64  // of a piece
	pieces  []writtenPiece
	current *os.File
	sum     hash.Hash
	total   int64
}

type writtenPiece struct {
	temporary string
	sum       [sha256.Size]byte
	offset    int64
}

// Write implements [io.Writer].
func (s *splitter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		if s.current == nil {
			if len(s.pieces) == maxPieces {
				return written, fmt.Errorf("the archive needs more than %d pieces: choose larger ones", maxPieces)
			}
			if s.current, err = temporary(s.path); err != nil {
				return written, err
			}
			s.sum = sha256.New()
			s.pieces = append(s.pieces, writtenPiece{temporary: s.current.Name(), offset: s.total})
		}
		piece := &s.pieces[len(s.pieces)-1]
		room := s.size - int64(footerSize) - (s.total - piece.offset)
		n, err := io.MultiWriter(s.current, s.sum).Write(p[:min(int64(len(p)), room)])
		written, s.total, p = written+n, s.total+int64(n), p[n:]
		if err != nil {
			return written, err
		}
		if int64(n) == room {
			if err := s.endPiece(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (s *splitter) endPiece() error {
	if s.current == nil {
		return nil
	}
	s.sum.Sum(s.pieces[len(s.pieces)-1].sum[:0])
	err := s.current.Close()
	s.current = nil
	return err
}

// finish completes the pieces and gives them their names. It removes pieces of these names that an earlier archive
// left.
func (s *splitter) finish() error {
	if err := s.endPiece(); err != nil {
		return err
	}
	all := sha256.New()
	for _, p := range s.pieces {
		all.Write(p.sum[:])
	}
	f := footer{total: s.total, count: len(s.pieces)}
	all.Sum(f.archive[:0])
	for i, p := range s.pieces {
		f.data, f.offset, f.number = p.sum, p.offset, i+1
		file, err := os.OpenFile(p.temporary, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = file.Write(f.bytes())
		if err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	for i := range s.pieces {
		if err := os.Rename(s.pieces[i].temporary, pieceName(s.path, i+1)); err != nil {
			return err
		}
	}
	for i := len(s.pieces) + 1; i <= maxPieces; i++ {
		name := pieceName(s.path, i)
		if _, ok, err := readFooter(name); err != nil || !ok {
			return nil //nolint:nilerr // the file is missing or not a piece
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// discard removes unfinished pieces.
func (s *splitter) discard() {
	if s.current != nil {
		s.current.Close()
	}
	for _, p := range s.pieces {
		_ = os.Remove(p.temporary) // it may have its name already
	}
}

func pieceName(path string, number int) string { return fmt.Sprintf("%s.%03d", path, number) }

// pieces is an archive that consists of pieces.
type pieces struct {
	files []*os.File
	ends  []int64 // of the pieces' data in the archive
}

// pieceSuffix is the end of a piece's usual name.
var pieceSuffix = regexp.MustCompile(`\.[0-9]{3}$`)

// openPieces opens the archive to which a piece belongs, from the pieces in the same directory. It verifies all of
// them. It returns nil if the file is not a piece.
func openPieces(ctx context.Context, name string) (*pieces, error) {
	first, ok, err := readFooter(name)
	if err != nil || !ok {
		return nil, err
	}
	dir := filepath.Dir(name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := make([]string, first.count)
	var damaged []string
	stem := pieceSuffix.ReplaceAllString(filepath.Base(name), "")
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		f, ok, err := readFooter(path)
		switch {
		case ok && f.archive == first.archive && f.count == first.count:
			found[f.number-1] = path
		case !ok && err == nil && pieceSuffix.MatchString(path) && stem == pieceSuffix.ReplaceAllString(entry.Name(), ""):
			damaged = append(damaged, entry.Name()) // truncated, so it cannot be told to which archive it belongs
		}
	}
	var missing []string
	for i, path := range found {
		if path == "" {
			missing = append(missing, fmt.Sprint(i+1))
		}
	}
	if len(missing) > 0 {
		text := fmt.Sprintf("of %d pieces, these are missing in %s: %s", first.count, dir, strings.Join(missing, ", "))
		if len(damaged) > 0 {
			text += fmt.Sprintf("; incomplete: %s", strings.Join(damaged, ", "))
		}
		return nil, errors.New(text + ": copy them there")
	}
	p := &pieces{}
	if err := p.addAll(ctx, found, first.total); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// addAll verifies and appends all pieces of an archive of total bytes.
func (p *pieces) addAll(ctx context.Context, paths []string, total int64) error {
	for i, path := range paths {
		if err := p.add(ctx, path); err != nil {
			return fmt.Errorf("piece %d of %d, %s: %w", i+1, len(paths), path, err)
		}
	}
	if end := p.end(); end != total {
		return fmt.Errorf("the pieces have %d bytes, want %d", end, total)
	}
	return nil
}

// end returns the size of the pieces' data.
func (p *pieces) end() int64 {
	if len(p.ends) == 0 {
		return 0
	}
	return p.ends[len(p.ends)-1]
}

func (p *pieces) size(i int) int64 {
	if i == 0 {
		return p.ends[0]
	}
	return p.ends[i] - p.ends[i-1]
}

// add verifies and appends a piece.
func (p *pieces) add(ctx context.Context, path string) error {
	f, ok, err := readFooter(path)
	if err != nil || !ok {
		return cmp.Or(err, errors.New("has changed"))
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	p.files = append(p.files, file)
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - int64(footerSize)
	sum := sha256.New()
	if _, err := io.Copy(sum, contextReader{ctx, io.NewSectionReader(file, 0, size)}); err != nil {
		return err
	}
	if [sha256.Size]byte(sum.Sum(nil)) != f.data {
		return errors.New("its content does not match its checksum: copy it again")
	}
	if f.offset != p.end() {
		return errors.New("does not continue the previous one")
	}
	p.ends = append(p.ends, p.end()+size)
	return nil
}

// ReadAt implements [io.ReaderAt].
func (p *pieces) ReadAt(b []byte, offset int64) (n int, err error) {
	for n < len(b) {
		i, _ := slices.BinarySearch(p.ends, offset+1) // the first whose end is behind the offset
		if i == len(p.ends) {
			return n, io.EOF
		}
		start := p.ends[i] - p.size(i)
		part := b[n:min(int64(len(b)), int64(n)+p.ends[i]-offset)]
		read, err := p.files[i].ReadAt(part, offset-start)
		n, offset = n+read, offset+int64(read)
		if err != nil && read < len(part) {
			return n, err
		}
	}
	return n, nil
}

// Close implements [io.Closer].
func (p *pieces) Close() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Distinct drops paths of pieces whose archive an earlier path names, so that app.tar.* names one archive.
func Distinct(paths []string) []string {
	seen := map[[sha256.Size]byte]bool{}
	var distinct []string
	for _, path := range paths {
		if f, ok, err := readFooter(path); err == nil && ok { // otherwise Open reports the error
			if seen[f.archive] {
				continue
			}
			seen[f.archive] = true
		}
		distinct = append(distinct, path)
	}
	return distinct
}
