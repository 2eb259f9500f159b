package hostfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// reserve is the minimum free space left on a file system, in bytes: a completely full disk breaks
// a node.
const reserve = 1 << 20

// Plan is a list of changes. It is valid while its tree is open.
type Plan struct {
	// Changes are sorted by Path and include unchanged files. Apply sets Done in those it has made.
	Changes []*Change
	// Warnings are about files of others that were left alone.
	Warnings []string

	leftovers []leftover
	folders   []*folder
}

// Pending reports whether Apply has anything to do.
func (p *Plan) Pending() bool {
	return len(p.leftovers) > 0 || slices.ContainsFunc(p.folders, (*folder).pending)
}

// leftover is a temporary file or folder that an interrupted run left behind.
type leftover struct {
	dir    *directory
	name   string
	inside []string // the files in it, if it is a folder
}

// folder is an opened directory or a folder in one, with the steps planned in it.
type folder struct {
	dir     *directory
	name    string                 // "." or one element
	entries map[string]fs.FileMode // types, without left-overs; nil if the folder does not exist
	steps   []*step
}

func (f *folder) path(base string) string { return path.Join(f.name, base) }

func (f *folder) pending() bool { return len(f.steps) > 0 }

// emptied reports whether the steps empty the folder. It is removed then: an empty one has a
// meaning to containerd.
func (f *folder) emptied() bool {
	if f.name == "." || f.entries == nil || len(f.steps) == 0 {
		return false
	}
	left := maps.Clone(f.entries)
	for _, s := range f.steps {
		if s.op != remove {
			return false
		}
		delete(left, s.base)
	}
	return len(left) == 0
}

type operation int

const (
	write      operation = iota // the file
	putBack                     // its backup replaces it
	remove                      // the file
	dropBackup                  // its backup, a second link to the file itself
)

type step struct {
	base   string
	op     operation
	keep   bool // keep a backup of the previous file
	data   []byte
	mode   fs.FileMode
	change *Change // nil if the step is not reported
}

type planner struct {
	*Plan
	tree     *Tree
	wants    Desired
	mark     string
	problems []string
	byName   map[string]*folder // by path on the node
	wanted   map[string]bool
}

// Plan determines the changes and checks that they are possible. It does not write. Its error is a
// Refusal that lists every obstacle.
func (t *Tree) Plan(w Desired) (*Plan, error) {
	p := &planner{
		Plan: &Plan{}, tree: t, wants: w, mark: Mark(t.release),
		byName: map[string]*folder{}, wanted: map[string]bool{},
	}
	for _, d := range t.dirs {
		p.scan(d)
	}
	for _, file := range w.Files {
		p.want(file)
	}
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		f := p.byName[name]
		p.planRemovals(f)
		if f.pending() {
			p.folders = append(p.folders, f)
		}
	}
	p.checkSpace()
	if p.problems != nil {
		return nil, exitcode.Refuse("%s", strings.Join(p.problems, "\n"))
	}
	slices.SortStableFunc(p.Changes, func(a, b *Change) int { return strings.Compare(a.Path, b.Path) })
	return p.Plan, nil
}

func (p *planner) refuse(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

func (p *planner) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

func (p *planner) change(c Change) *Change {
	p.Changes = append(p.Changes, &c)
	return &c
}

func (p *planner) scan(d *directory) {
	top := p.list(d, ".")
	if top == nil {
		return
	}
	for name, kind := range top.entries {
		if kind.IsDir() && !p.opened(d.name(name)) {
			p.list(d, name)
		}
	}
}

// opened reports whether a folder is one of the tree's directories itself, and scanned as such.
func (p *planner) opened(name string) bool {
	return slices.ContainsFunc(p.tree.dirs, func(d *directory) bool { return d.path == name })
}

func (p *planner) list(d *directory, name string) *folder {
	entries, err := d.list(name)
	switch {
	case errors.Is(err, fs.ErrPermission) && name != ".":
		return nil // The release can read its own files, so none of them is here.
	case err != nil:
		p.refuse("%s", unreadable(d.name(name), err))
		return nil
	}
	f := &folder{dir: d, name: name, entries: map[string]fs.FileMode{}}
	for _, e := range entries {
		switch {
		case !isTemporary(e.Name()):
			f.entries[e.Name()] = e.Type()
		case !e.IsDir():
			p.leftovers = append(p.leftovers, leftover{dir: d, name: f.path(e.Name())})
		case name == ".":
			p.leftFolder(d, e.Name())
		}
	}
	p.byName[d.name(name)] = f
	return f
}

// leftFolder checks that a folder with the name of a temporary folder contains only files of a
// release.
func (p *planner) leftFolder(d *directory, name string) {
	entries, err := d.list(name)
	if err != nil {
		p.refuse("%s", unreadable(d.name(name), err))
		return
	}
	l := leftover{dir: d, name: name}
	for _, e := range entries {
		file := path.Join(name, e.Name())
		if !isTemporary(e.Name()) {
			if found, err := d.look(file); err != nil || found.release == "" {
				p.refuse("%s has a name that zarf-registry uses, but belongs to others: move it away", d.name(file))
				continue
			}
		}
		l.inside = append(l.inside, file)
	}
	p.leftovers = append(p.leftovers, l)
}

func (p *planner) want(file File) {
	d, rel, err := p.tree.locate(file.Path)
	if err != nil {
		p.refuse("%v", err)
		return
	}
	name, base := path.Split(rel)
	name = path.Clean(name)
	switch {
	case strings.Contains(name, "/"):
		p.refuse("%s is too deep below %s: use one folder at most", file.Path, d.path)
		return
	case reserved(base), reserved(name):
		p.refuse("%s has a name reserved for backups and temporary files", file.Path)
		return
	case p.wanted[file.Path]:
		p.refuse("%s is listed twice", file.Path)
		return
	case len(p.mark)+len(file.Content) > maxSize:
		p.refuse("%s exceeds the maximum size of %d bytes", file.Path, maxSize)
		return
	}
	p.wanted[file.Path] = true
	f := p.byName[d.name(name)]
	if f == nil {
		if !p.canCreate(d, name) {
			return
		}
		f = &folder{dir: d, name: name}
		p.byName[d.name(name)] = f
	}
	now, ok := p.look(f, base)
	if !ok {
		return
	}
	before, ok := p.look(f, base+backupSuffix)
	if !ok {
		return
	}
	p.replace(f, file, now, before)
}

func (p *planner) canCreate(d *directory, name string) bool {
	info, err := d.lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true
	case err != nil:
		p.refuse("%s", unreadable(d.name(name), err))
	case info.Mode()&fs.ModeSymlink != 0:
		p.refuse("%s is a symbolic link to %q: replace it with a directory", d.name(name), d.readlink(name))
	case info.IsDir():
		p.refuse("%s", unreadable(d.name(name), fs.ErrPermission))
	default:
		p.refuse("%s is not a directory: move it away", d.name(name))
	}
	return false
}

// look reads a file that will be replaced or kept. It refuses anything but a regular file.
func (p *planner) look(f *folder, base string) (entry, bool) {
	name := f.dir.name(f.path(base))
	found, err := f.dir.look(f.path(base))
	switch {
	case err != nil:
		p.refuse("%s", unreadable(name, err))
	case !found.exists():
		return found, true
	case found.info.Mode()&fs.ModeSymlink != 0:
		p.refuse("%s is a symbolic link to %q: replace it with a file, or configure its target instead",
			name, f.dir.readlink(f.path(base)))
	case found.info.IsDir():
		p.refuse("%s is a directory, want a file: move it away", name)
	case !found.regular():
		p.refuse("%s is not a regular file: move it away", name)
	case found.large() && !strings.HasSuffix(base, backupSuffix):
		p.refuse("%s has %d bytes, too many for a configuration file: move it away", name, found.info.Size())
	default:
		return found, true
	}
	return entry{}, false
}

// replace plans writing over now; before is the previous file that is kept.
func (p *planner) replace(f *folder, file File, now, before entry) {
	base := path.Base(file.Path)
	backup := ""
	if before.exists() {
		backup = Backup(file.Path)
	}
	known := before.regular() && now.regular() &&
		(os.SameFile(now.info, before.info) || bytes.Equal(now.content, before.content))
	s := &step{base: base, op: write, data: append([]byte(p.mark), file.Content...), mode: file.Mode.Perm()}
	switch {
	case !now.exists():
		s.change = p.change(Change{Path: file.Path, Action: New, New: file.Content, Backup: backup})
	case now.release == p.tree.release:
		c := Change{Path: file.Path, Action: Changed, Old: now.rest, New: file.Content, Backup: backup}
		if bytes.Equal(now.content, s.data) && now.info.Mode().Perm() == s.mode {
			c.Action = Unchanged
			p.change(c)
			return
		}
		s.change = p.change(c)
	case now.release != "":
		if !p.wants.Force {
			p.refuse("%s belongs to zarf-registry's release %s: uninstall that, or set nodeConfig.force=true to take it over",
				file.Path, now.release)
			return
		}
		// No backup is kept: it would be restored as the file of a release that may be gone by then.
		s.change = p.change(Change{Path: file.Path, Action: Changed, Old: now.rest, New: file.Content, Backup: backup})
	case bytes.Equal(now.content, file.Content):
		p.change(Change{Path: file.Path, Action: Unchanged, Foreign: true, Old: now.content, New: file.Content})
		return
	case before.exists() && !known:
		// Force does not help here, so the message does not mention it.
		p.refuse("%s was not written by zarf-registry, and its previous version is kept as %s: move one of them away",
			file.Path, Backup(file.Path))
		return
	case !p.wants.Force:
		p.refuse("%s was not written by zarf-registry: move it away, or set nodeConfig.force=true to replace it "+
			"(it is kept as %s and restored at the end)", file.Path, Backup(file.Path))
		return
	default:
		s.keep = !before.exists()
		s.change = p.change(Change{
			Path: file.Path, Action: Changed, Old: now.content, New: file.Content, Backup: Backup(file.Path),
		})
	}
	f.steps = append(f.steps, s)
}

// planRemovals plans the removal of obsolete files from a folder.
func (p *planner) planRemovals(f *folder) {
	bases := map[string]bool{}
	for name, kind := range f.entries {
		base, backup := strings.CutSuffix(name, backupSuffix)
		switch {
		case !kind.IsRegular() || p.wanted[f.dir.name(f.path(base))]:
		case backup:
			bases[base] = true
		default:
			// Of files of others, only enough is read to identify the owner.
			head, err := f.dir.read(f.path(name), maxMark)
			if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				p.refuse("%s", unreadable(f.dir.name(f.path(name)), err))
			}
			if release, _ := markOf(head); release == p.tree.release {
				bases[name] = true
			}
		}
	}
	for _, base := range slices.Sorted(maps.Keys(bases)) {
		p.leaveFile(f, base)
	}
}

func (p *planner) leaveFile(f *folder, base string) {
	name := f.dir.name(f.path(base))
	now, err := f.dir.look(f.path(base))
	if err != nil {
		p.refuse("%s", unreadable(name, err))
		return
	}
	before, err := f.dir.look(f.path(base + backupSuffix))
	if err != nil {
		p.refuse("%s", unreadable(Backup(name), err))
		return
	}
	ours := now.release == p.tree.release
	if before.exists() && !before.regular() {
		p.warn("%s is not a file, leaving it alone", Backup(name))
		before = entry{}
	}
	s := &step{base: base, op: remove}
	switch {
	case before.exists() && (!now.exists() || ours):
		s.op = putBack
		s.change = p.change(Change{Path: name, Action: Restored, Old: now.rest, New: before.content})
	case ours:
		s.change = p.change(Change{Path: name, Action: Removed, Old: now.rest})
	case now.release != "":
		return // The other release restores what it has kept.
	case before.exists() && os.SameFile(now.info, before.info):
		s.op = dropBackup // an earlier run was interrupted after it had made the backup
	case before.exists():
		p.warn("%s was replaced by others after zarf-registry had written it, leaving it alone; "+
			"its previous version is still kept as %s", name, Backup(name))
		return
	default:
		return
	}
	f.steps = append(f.steps, s)
}

// checkSpace checks that the directories to write to are writable and have enough space.
func (p *planner) checkSpace() {
	type need struct {
		where        string
		bytes, files int64
		space        space
	}
	needs := map[uint64]*need{}
	for _, f := range p.folders {
		places := []string{"."}
		if f.name != "." && f.entries != nil {
			places = append(places, f.name)
		}
		for _, place := range places {
			name := f.dir.name(place)
			var s space
			var dev uint64
			err := f.dir.do("access", name, func() error {
				handle, err := f.dir.root.Open(place)
				if err != nil {
					return err
				}
				defer handle.Close()
				if s, err = spaceOf(handle); err != nil || s.readOnly {
					return err
				}
				if dev, err = device(handle); err != nil {
					return err
				}
				return writable(handle)
			})
			switch {
			case err != nil:
				p.refuse("%s is not writable: %v", name, cause(err))
			case s.readOnly:
				p.refuse("%s is on a read-only file system: mount it writable on the node and in the pod", name)
			}
			if err != nil || s.readOnly || place != places[len(places)-1] {
				continue
			}
			n := needs[dev]
			if n == nil {
				n = &need{where: name, space: s}
				needs[dev] = n
			}
			for _, step := range f.steps {
				if step.op == write {
					n.bytes += int64(len(step.data))
					n.files += 2 // the file, and possibly a new folder
				}
			}
		}
	}
	for _, dev := range slices.Sorted(maps.Keys(needs)) {
		n := needs[dev]
		switch {
		case n.files == 0:
		case !n.space.unknown && n.space.bytes < n.bytes+reserve:
			p.refuse("the file system of %s is full: %d bytes free, %d needed (%d of them stay free); free space on the node",
				n.where, n.space.bytes, n.bytes+reserve, reserve)
		case n.space.files >= 0 && n.space.files < n.files:
			p.refuse("the file system of %s has %d free inodes, up to %d are needed: remove files on the node",
				n.where, n.space.files, n.files)
		}
	}
}
