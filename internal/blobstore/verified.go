package blobstore

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// verifiedFile is where a store with [Options.Trust] records verified blobs:
//
//	{"sha256:…": {"inode": 12, "size": 345, "mtime": 1, "ctime": 1, "at": 1, "boot": "…"}, …}
//
// Times are in nanoseconds since 1970. A process that can write this file can also write blobs.
const verifiedFile = "verified.json"

// verification records the state of a blob's file when it was verified.
type verification struct {
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"`
	Ctime int64  `json:"ctime"`
	// At is when the file was read, or written by this package.
	At int64 `json:"at"`
	// Boot identifies the boot of the system. What was read or written may not have been on the disk yet, and a cut of
	// the power loses it, although the file may still have its size and times.
	Boot string `json:"boot"`
}

// bootFile has another content after each boot of Linux. Other systems have none.
const bootFile = "/proc/sys/kernel/random/boot_id"

func bootID() string {
	id, _ := os.ReadFile(bootFile)
	return strings.TrimSpace(string(id))
}

// minAge is how old a file's times must be for later changes to be visible in them: file systems take
// them from a clock that ticks every 1 to 10 ms or, without fractions of a second, every one or two
// seconds. With the coarse clock, they must have been that old when the file was verified.
const (
	minAge       = 100 * time.Millisecond
	minAgeCoarse = 3 * time.Second
)

func (s *Store) readVerified() map[digest.Digest]verification {
	found := map[digest.Digest]verification{}
	raw, err := os.ReadFile(filepath.Join(s.dir, verifiedFile))
	if err == nil {
		err = json.Unmarshal(raw, &found)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot read the record of verified blobs; they will be verified again", "file",
			filepath.Join(s.dir, verifiedFile), "error", err)
		return map[digest.Digest]verification{}
	}
	if found == nil { // JSON's null
		return map[digest.Digest]verification{}
	}
	now, boot := time.Now(), s.boot()
	oldest, newest := now.Add(-s.trust).UnixNano(), now.UnixNano()
	for d, p := range found {
		// Future times were recorded before the clock was set back.
		if oci.CheckDigest(d) != nil || p.At < oldest || p.At > newest || p.Boot != boot {
			delete(found, d)
		}
	}
	return found
}

// loadVerified loads what earlier processes have verified.
func (s *Store) loadVerified() {
	if s.trust <= 0 {
		return
	}
	for d, p := range s.readVerified() {
		s.verified[d] = stamp{inode: p.Inode, regular: true, size: p.Size, mtime: unix.NsecToTimespec(p.Mtime),
			ctime: unix.NsecToTimespec(p.Ctime)}
		s.verifiedAt[d] = p.At
	}
}

// saveVerified records what this process has verified. Concurrent records of other processes may be
// lost; those blobs are verified again.
func (s *Store) saveVerified() error {
	if s.trust <= 0 {
		return nil
	}
	found, boot := s.readVerified(), s.boot()
	s.mu.Lock()
	now := s.now()
	for d, st := range s.verified {
		mtime, ctime := unix.TimespecToNsec(st.mtime), unix.TimespecToNsec(st.ctime)
		margin, seen := minAge, now.UnixNano()
		if mtime%int64(time.Second) == 0 && ctime%int64(time.Second) == 0 {
			margin, seen = minAgeCoarse, s.verifiedAt[d]
		}
		if seen-max(mtime, ctime) < int64(margin) || s.verifiedAt[d] == 0 {
			delete(found, d)
			continue
		}
		found[d] = verification{Inode: st.inode, Size: st.size, Mtime: mtime, Ctime: ctime, At: s.verifiedAt[d],
			Boot: boot}
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
