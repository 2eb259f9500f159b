package blobstore

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// verifiedFile is where a store with [Options.Trust] keeps what it has verified:
//
//	{"sha256:…": {"inode": 12, "size": 345, "mtime": 1, "ctime": 1, "at": 1}, …}
//
// with times in nanoseconds since 1970. Whoever can write it can write blobs, too.
const verifiedFile = "verified.json"

// proof is that a blob's file was right when it was as described.
type proof struct {
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"`
	Ctime int64  `json:"ctime"`
	// At is when the file was read, or written by this package.
	At int64 `json:"at"`
}

// settled is how old a file's times must be for another change of the file to be
// sure to show in them: file systems take them from a clock that ticks every 1 to
// 10 ms, or, where they have no fractions of a second at all, every second or two.
// Within those two, somebody might well come: there, they must have been so old
// already when the file was verified.
const (
	settled       = 100 * time.Millisecond
	settledCoarse = 3 * time.Second
)

func (s *Store) proofs() map[digest.Digest]proof {
	found := map[digest.Digest]proof{}
	raw, err := os.ReadFile(filepath.Join(s.dir, verifiedFile))
	if err == nil {
		err = json.Unmarshal(raw, &found)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot read what was verified, so it is verified again", "file", filepath.Join(s.dir, verifiedFile), "error", err)
		return map[digest.Digest]proof{}
	}
	if found == nil { // JSON's null
		return map[digest.Digest]proof{}
	}
	now := time.Now()
	oldest, newest := now.Add(-s.trust).UnixNano(), now.UnixNano()
	for d, p := range found {
		// What is to come was noted before the clock was set back.
		if validDigest(d) != nil || p.At < oldest || p.At > newest {
			delete(found, d)
		}
	}
	return found
}

// recall takes over what earlier processes have verified.
func (s *Store) recall() {
	if s.trust <= 0 {
		return
	}
	for d, p := range s.proofs() {
		s.verified[d] = stamp{inode: p.Inode, regular: true, size: p.Size, mtime: unix.NsecToTimespec(p.Mtime), ctime: unix.NsecToTimespec(p.Ctime)}
		s.proven[d] = p.At
	}
}

// note writes down what this process has verified, for later ones. What another
// process writes at the same time may be lost, and is verified again.
func (s *Store) note() error {
	if s.trust <= 0 {
		return nil
	}
	found := s.proofs()
	s.mu.Lock()
	now := time.Now()
	for d, st := range s.verified {
		mtime, ctime := unix.TimespecToNsec(st.mtime), unix.TimespecToNsec(st.ctime)
		margin, seen := settled, now.UnixNano()
		if mtime%int64(time.Second) == 0 && ctime%int64(time.Second) == 0 {
			margin, seen = settledCoarse, s.proven[d]
		}
		if seen-max(mtime, ctime) < int64(margin) || s.proven[d] == 0 {
			delete(found, d)
			continue
		}
		found[d] = proof{Inode: st.inode, Size: st.size, Mtime: mtime, Ctime: ctime, At: s.proven[d]}
	}
	s.mu.Unlock()
	for d := range found {
		if _, err := os.Lstat(s.path(d)); err != nil {
			delete(found, d)
		}
	}
	raw, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return s.replaceFile(verifiedFile, raw)
}
