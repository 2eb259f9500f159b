// Package powercut is for tests: it records what a program does to the files below a directory, and makes the
// directories that a cut of the power could have left.
//
// The program is a real process, whose system calls are traced with ptrace(2), as strace does. So everything that it
// does is recorded, also by libraries, and nothing needs to be replaced in it.
//
// A cut may lose everything that was not synced, each alone: writes to a file, after which it is shorter or has a hole;
// and entries of directories, created, renamed or removed. Syncing a file does not sync its entry, and syncing a
// directory not its parent's. Ext4 and XFS, which write changes of directories in order, lose less. A rename is lost
// as a whole. Once the directory with the new name is synced, it cannot be lost.
package powercut

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Recording is what a program has done. It is safe for concurrent use while the program runs.
type Recording struct {
	mu     sync.Mutex
	root   *node
	events []event
}

// node is a file or a directory. What it contains follows from the events.
type node struct {
	isDir bool
	mode  os.FileMode
	// live is the content of a directory at the end of the recording so far, and initial of both at its beginning.
	live           map[string]*node
	initialEntries map[string]*node
	initialData    []byte
}

// event is an effect or a sync.
type event struct {
	kind   kind
	on     *node  // the file that is written, or the directory with the entry; what is synced
	name   string // of the entry
	path   string // in the root, when it was recorded
	child  *node  // what the entry is
	offset int64  // of a write; the new size
	data   []byte
	// from and source are the directory and the name from which a rename moves the child.
	from   *node
	source string
}

type kind int

const (
	write kind = iota
	truncate
	link
	unlink
	syncNode
	syncAll
)

// Events returns how many events there are so far. A number that was read before a request began, or after its
// response arrived, tells what had happened by then.
func (r *Recording) Events() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

// Cut is a cut of the power.
type Cut struct {
	// After is how many events it followed.
	After int
	// Lost describes what was lost of them.
	Lost string
	// Sum identifies the content of the directory that it left.
	Sum [sha256.Size]byte

	state *state
}

// Options select cuts.
type Options struct {
	// Seed determines which effects are lost of the possible ones.
	Seed uint64
	// Alone is after how many events each effect that could be lost is lost alone; at other points only all are
	// lost, and random ones. 0 means 1.
	Alone int
	// Random is how many random selections of effects are lost at each point.
	Random int
	// Ignore is for files and directories that do not matter, by the path in the root. Sum does not cover them.
	Ignore func(name string) bool
}

// Cuts yields a cut after each event: all effects that are not synced by then are lost, each of them alone, and random
// selections. It yields no two successive cuts with the same Sum after the same event.
func (r *Recording) Cuts(o Options) iter.Seq[Cut] {
	return func(yield func(Cut) bool) {
		random := rand.New(rand.NewPCG(o.Seed, 0))
		for after := 0; after <= len(r.events); after++ {
			unsynced := r.unsynced(after)
			seen := map[[sha256.Size]byte]bool{}
			try := func(what string, lost map[int]bool) bool {
				s := r.replay(after, lost)
				c := Cut{After: after, Lost: what, Sum: s.sum(o.Ignore), state: s}
				if seen[c.Sum] {
					return true
				}
				seen[c.Sum] = true
				return yield(c)
			}
			all := map[int]bool{}
			for _, i := range unsynced {
				all[i] = true
			}
			if !try("all that was not synced", all) {
				return
			}
			if after%max(o.Alone, 1) == 0 {
				for _, i := range unsynced {
					if o.Ignore != nil && o.Ignore(r.events[i].path) {
						continue
					}
					if !try(r.describe(i), map[int]bool{i: true}) {
						return
					}
				}
			}
			for range o.Random {
				some := maps.Clone(all)
				maps.DeleteFunc(some, func(int, bool) bool { return random.IntN(2) == 0 })
				if !try(fmt.Sprintf("%d of %d effects", len(some), len(all)), some) {
					return
				}
			}
		}
	}
}

func (r *Recording) describe(i int) string {
	e := r.events[i]
	what := []string{"a write", "a truncation", "entry", "the removal of entry"}[e.kind]
	return fmt.Sprintf("%s %s (event %d)", what, e.path, i)
}

// unsynced returns the effects among the first events that may be lost.
func (r *Recording) unsynced(after int) []int {
	pending := map[*node][]int{}
	for i, e := range r.events[:after] {
		switch e.kind {
		case syncNode:
			delete(pending, e.on)
		case syncAll:
			clear(pending)
		default:
			pending[e.on] = append(pending[e.on], i)
		}
	}
	return slices.Sorted(func(yield func(int) bool) {
		for _, indexes := range pending {
			for _, i := range indexes {
				if !yield(i) {
					return
				}
			}
		}
	})
}

// state is the content of a disk.
type state struct {
	root    *node
	entries map[*node]map[string]*node
	data    map[*node][]byte
}

func (s *state) dir(n *node) map[string]*node {
	if s.entries[n] == nil {
		s.entries[n] = maps.Clone(n.initialEntries)
		if s.entries[n] == nil {
			s.entries[n] = map[string]*node{}
		}
	}
	return s.entries[n]
}

func (s *state) file(n *node) []byte {
	if data, ok := s.data[n]; ok {
		return data
	}
	return n.initialData
}

// replay applies the first events, apart from those that were lost.
func (r *Recording) replay(after int, lost map[int]bool) *state {
	s := &state{root: r.root, entries: map[*node]map[string]*node{}, data: map[*node][]byte{}}
	for i, e := range r.events[:after] {
		if lost[i] {
			continue
		}
		switch e.kind {
		case write:
			data := s.file(e.on)
			if end := e.offset + int64(len(e.data)); end > int64(len(data)) {
				data = append(slices.Clip(data), make([]byte, end-int64(len(data)))...)
			} else {
				data = slices.Clone(data)
			}
			copy(data[e.offset:], e.data)
			s.data[e.on] = data
		case truncate:
			data := s.file(e.on)
			data = append(slices.Clip(data[:min(int64(len(data)), e.offset)]),
				make([]byte, max(0, e.offset-int64(len(data))))...)
			s.data[e.on] = data
		case link:
			if e.from != nil {
				delete(s.dir(e.from), e.source)
			}
			s.dir(e.on)[e.name] = e.child
		case unlink:
			delete(s.dir(e.on), e.name)
		}
	}
	return s
}

// walk visits all files and directories, in order.
func (s *state) walk(visit func(name string, n *node) error) error {
	var walk func(name string, n *node) error
	walk = func(name string, n *node) error {
		if err := visit(name, n); err != nil || !n.isDir {
			return err
		}
		entries := s.dir(n)
		for _, entry := range slices.Sorted(maps.Keys(entries)) {
			if entries[entry] == nil {
				continue
			}
			if err := walk(path.Join(name, entry), entries[entry]); err != nil {
				return err
			}
		}
		return nil
	}
	return walk("", s.root)
}

func (s *state) sum(ignore func(string) bool) [sha256.Size]byte {
	h := sha256.New()
	_ = s.walk(func(name string, n *node) error { // visit returns no error
		if ignore == nil || !ignore(name) {
			fmt.Fprintf(h, "%q %t %d ", name, n.isDir, len(s.file(n)))
			h.Write(s.file(n))
		}
		return nil
	})
	return [sha256.Size]byte(h.Sum(nil))
}

// Restore writes what the cut left into a new directory, in memory if possible, which is removed with the test.
func (c Cut) Restore(t testing.TB) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "zarf-registry-powercut-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	require.NoError(t, c.write(dir))
	return dir
}

func (c Cut) write(dir string) error {
	return c.state.walk(func(name string, n *node) error {
		target := filepath.Join(dir, filepath.FromSlash(name))
		switch {
		case name == "":
			return nil
		case n.isDir:
			return os.Mkdir(target, 0o755)
		}
		if err := os.WriteFile(target, c.state.file(n), 0o600); err != nil {
			return err
		}
		return os.Chmod(target, n.mode)
	})
}

func (c Cut) String() string { return fmt.Sprintf("cut after event %d, lost: %s", c.After, c.Lost) }
