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
)

// reserve is what is to be left of a file system, in bytes: a node whose disk is filled to the last block fails elsewhere.
const reserve = 1 << 20

// Plan is what is to be done. It holds as long as its tree is open.
type Plan struct {
	// Changes are by Path, those to which nothing is done included. Apply says in them which are done.
	Changes []*Change
	// Warnings are about files of others that were left.
	Warnings []string

	leftovers []leftover
	folders   []*folder
}

// Pending says whether Apply would do anything.
func (p *Plan) Pending() bool {
	return len(p.leftovers) > 0 || slices.ContainsFunc(p.folders, (*folder).pending)
}

// leftover is what a run that was ended did not take away.
type leftover struct {
	dir    *directory
	name   string
	inside []string // the files in it, where it is a folder
	folder bool
}

// folder is a directory that was opened, or a folder in one, with what is to be done in it.
type folder struct {
	dir     *directory
	name    string                 // "." or one element
	entries map[string]fs.FileMode // types, without left-overs; nil where there is no such folder
	steps   []*step
	aside   *Change // the whole folder is moved aside after the steps
	back    *Change // the whole folder is put back after the steps
}

func (f *folder) path(base string) string { return path.Join(f.name, base) }

func (f *folder) pending() bool { return len(f.steps) > 0 || f.aside != nil || f.back != nil }

// emptied says whether nothing is left in the folder after the steps. It goes away then: an empty one means something to
// containerd.
func (f *folder) emptied() bool {
	if f.name == "." || f.entries == nil || len(f.steps) == 0 {
		return false
	}
	left := maps.Clone(f.entries)
	for _, s := range f.steps {
		if s.do != remove {
			return false
		}
		delete(left, s.base)
	}
	return len(left) == 0
}

// what a step does
type deed int

const (
	write      deed = iota // the file
	putBack                // its backup, over it
	remove                 // the file
	dropBackup             // its backup, which is the file itself under another name
)

// step is what is done to one file.
type step struct {
	base   string
	do     deed
	keep   bool // a backup is made before it is written
	data   []byte
	mode   fs.FileMode
	change *Change // nil where it is none that anybody sees
}

type planner struct {
	*Plan
	tree     *Tree
	wants    Wants
	mark     string
	problems []string
	byName   map[string]*folder // by the node's path
	hidden   map[string]bool    // the node's paths of folders that a backup is kept of
	wanted   map[string]bool
}

// Plan finds out what is to be done, and whether it can be. It writes nothing. Its error is a Refusal that has all that is in
// the way.
func (t *Tree) Plan(w Wants) (*Plan, error) {
	p := &planner{
		Plan: &Plan{}, tree: t, wants: w, mark: Mark(t.release),
		byName: map[string]*folder{}, hidden: map[string]bool{}, wanted: map[string]bool{},
	}
	for _, d := range t.dirs {
		p.scan(d)
	}
	for _, file := range w.Files {
		p.want(file)
	}
	names := slices.Sorted(maps.Keys(p.byName))
	for _, name := range names {
		p.leave(p.byName[name])
	}
	p.moveAside()
	p.bringBack()
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		if f := p.byName[name]; f.pending() {
			p.folders = append(p.folders, f)
		}
	}
	p.room()
	if p.problems != nil {
		return nil, &Refusal{p.problems}
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

// scan looks what is in a directory and in its folders.
func (p *planner) scan(d *directory) {
	top := p.list(d, ".")
	if top == nil {
		return
	}
	for name, kind := range top.entries {
		switch {
		case !kind.IsDir(), p.opened(d.name(name)):
		case strings.HasSuffix(name, backupSuffix):
			p.hidden[strings.TrimSuffix(d.name(name), backupSuffix)] = true
		default:
			p.list(d, name)
		}
	}
}

// opened says whether a folder is a directory of its own, which has been looked at as such.
func (p *planner) opened(name string) bool {
	return slices.ContainsFunc(p.tree.dirs, func(d *directory) bool { return d.path == name })
}

func (p *planner) list(d *directory, name string) *folder {
	entries, err := d.list(name)
	switch {
	case errors.Is(err, fs.ErrPermission) && name != ".":
		return nil // The release can read what it has written, so none of it is there.
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

// leftFolder looks whether a folder that bears the name of one that is being made or taken away holds only what a release put
// into it.
func (p *planner) leftFolder(d *directory, name string) {
	entries, err := d.list(name)
	if err != nil {
		p.refuse("%s", unreadable(d.name(name), err))
		return
	}
	l := leftover{dir: d, name: name, folder: true}
	for _, e := range entries {
		file := path.Join(name, e.Name())
		if !isTemporary(e.Name()) {
			if found, err := d.look(file); err != nil || found.release == "" {
				p.refuse("%s is in the way of what zarf-registry does, and is not its own: move it away", d.name(file))
				continue
			}
		}
		l.inside = append(l.inside, file)
	}
	p.leftovers = append(p.leftovers, l)
}

// want plans a file that is wanted.
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
		p.refuse("%s is too deep below %s: want one folder at most", file.Path, d.path)
		return
	case reserved(base), reserved(name):
		p.refuse("%s has a name that is used for backups and for files that are being written", file.Path)
		return
	case p.wanted[file.Path]:
		p.refuse("%s is wanted twice", file.Path)
		return
	case len(p.mark)+len(file.Content) > maxSize:
		p.refuse("%s would have %d bytes, more than %d", file.Path, len(file.Content), maxSize)
		return
	}
	p.wanted[file.Path] = true
	f := p.byName[d.name(name)]
	if f == nil {
		if !p.mayMake(d, name) {
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

// mayMake says whether a folder that was not found can be made.
func (p *planner) mayMake(d *directory, name string) bool {
	info, err := d.lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true
	case err != nil:
		p.refuse("%s", unreadable(d.name(name), err))
	case info.Mode()&fs.ModeSymlink != 0:
		p.refuse("%s is a symbolic link to %q, which nothing is written through: put a directory in its place", d.name(name), d.readlink(name))
	case info.IsDir():
		p.refuse("%s", unreadable(d.name(name), fs.ErrPermission))
	default:
		p.refuse("%s is not a directory: move it away", d.name(name))
	}
	return false
}

// look reads a file that is to be replaced or kept, and refuses what is none.
func (p *planner) look(f *folder, base string) (entry, bool) {
	name := f.dir.name(f.path(base))
	found, err := f.dir.look(f.path(base))
	switch {
	case err != nil:
		p.refuse("%s", unreadable(name, err))
	case !found.exists():
		return found, true
	case found.info.Mode()&fs.ModeSymlink != 0:
		p.refuse("%s is a symbolic link to %q: put a file in its place, or have zarf-registry write there instead", name, f.dir.readlink(f.path(base)))
	case found.info.IsDir():
		p.refuse("%s is a directory where a file is wanted: move it away", name)
	case !found.regular():
		p.refuse("%s is not a regular file: move it away", name)
	case found.large() && !strings.HasSuffix(base, backupSuffix):
		p.refuse("%s has %d bytes, more than any configuration: move it away", name, found.info.Size())
	default:
		return found, true
	}
	return entry{}, false
}

// replace plans what is written where now is, with before kept of what was there first.
func (p *planner) replace(f *folder, file File, now, before entry) {
	base := path.Base(file.Path)
	backup := ""
	if before.exists() {
		backup = Backup(file.Path)
	}
	replaces := slices.Contains(p.wants.Replace, file.Path)
	known := before.regular() && now.regular() && (os.SameFile(now.info, before.info) || bytes.Equal(now.content, before.content))
	s := &step{base: base, do: write, data: append([]byte(p.mark), file.Content...), mode: file.Mode.Perm()}
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
			p.refuse("%s was written by zarf-registry's release %s: uninstall that, or set nodeConfig.force=true to take the file from it", file.Path, now.release)
			return
		}
		// Nothing is kept of it: it would come back as the file of a release that may be gone by then.
		s.change = p.change(Change{Path: file.Path, Action: Changed, Old: now.rest, New: file.Content, Backup: backup})
	case bytes.Equal(now.content, file.Content):
		p.change(Change{Path: file.Path, Action: Unchanged, Foreign: true, Old: now.content, New: file.Content})
		return
	case before.exists() && !known && !replaces:
		// Force is no way out of that, so it is not named as one.
		p.refuse("%s was not written by zarf-registry, and what was there before it is kept as %s: move one of them away", file.Path, Backup(file.Path))
		return
	case !p.wants.Force && !replaces:
		p.refuse("%s was not written by zarf-registry: set nodeConfig.force=true to have it replaced (it is kept as %s, and put back in the end), or move it away", file.Path, Backup(file.Path))
		return
	default:
		s.keep = !before.exists()
		s.change = p.change(Change{Path: file.Path, Action: Changed, Old: now.content, New: file.Content, Backup: Backup(file.Path)})
	}
	f.steps = append(f.steps, s)
}

// leave plans what of a folder is not wanted any more.
func (p *planner) leave(f *folder) {
	bases := map[string]bool{}
	for name, kind := range f.entries {
		base, backup := strings.CutSuffix(name, backupSuffix)
		switch {
		case !kind.IsRegular() || p.wanted[f.dir.name(f.path(base))]:
		case backup:
			bases[base] = true
		default:
			// Only as much of the files of others is read as says that they are theirs.
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
		p.warn("%s is not a file, and is left", Backup(name))
		before = entry{}
	}
	s := &step{base: base, do: remove}
	switch {
	case before.exists() && (!now.exists() || ours):
		s.do = putBack
		s.change = p.change(Change{Path: name, Action: PutBack, Old: now.rest, New: before.content})
	case ours:
		s.change = p.change(Change{Path: name, Action: Removed, Old: now.rest})
	case now.release != "":
		return // What is kept is the other release's to put back.
	case before.exists() && os.SameFile(now.info, before.info):
		s.do = dropBackup // A run was ended after it had made the backup.
	case before.exists():
		p.warn("%s was put there by others after zarf-registry had written it, and is left; what was there before is still kept as %s", name, Backup(name))
		return
	default:
		return
	}
	f.steps = append(f.steps, s)
}

// moveAside plans the folders that are not to be seen.
func (p *planner) moveAside() {
	for _, name := range p.wants.Away {
		f := p.byName[name]
		switch {
		case f == nil || f.name == "." || f.entries == nil || p.wantsIn(name) || f.emptied():
		case p.hidden[name]:
			p.refuse("%s is to be moved aside, and %s is there already: move one of them away", name, Backup(name))
		default:
			// What the steps put back there goes with it.
			p.Changes = slices.DeleteFunc(p.Changes, func(c *Change) bool { return below(name, c.Path) })
			f.aside = p.change(Change{Path: name, Action: Removed, Backup: Backup(name)})
		}
	}
}

// bringBack plans the folders that are to be seen again. Where the release has one of that name, it goes first: for a moment there
// is none.
func (p *planner) bringBack() {
	for _, name := range slices.Sorted(maps.Keys(p.hidden)) {
		f := p.byName[name]
		if slices.Contains(p.wants.Away, name) || p.wantsIn(name) {
			continue
		}
		if f == nil {
			d, rel, err := p.tree.locate(name)
			if err != nil {
				continue
			}
			if top := p.byName[d.path]; top != nil {
				if _, taken := top.entries[rel]; taken {
					p.warn("%s is not a directory, and is left; what was there before is still kept as %s", name, Backup(name))
					continue
				}
			}
			f = &folder{dir: d, name: rel}
			p.byName[name] = f
		} else if !f.emptied() {
			p.warn("%s was made anew by others, and is left; what was there before is still kept as %s", name, Backup(name))
			continue
		}
		f.back = p.change(Change{Path: name, Action: PutBack})
	}
}

func (p *planner) wantsIn(folder string) bool {
	for file := range p.wanted {
		if path.Dir(file) == folder {
			return true
		}
	}
	return false
}

// room looks whether the directories that are written to can be, and have the space.
func (p *planner) room() {
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
				p.refuse("%s cannot be written to: %v", name, cause(err))
			case s.readOnly:
				p.refuse("%s is on a file system that is mounted read-only: have it mounted writable on the node, and in the pod", name)
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
				if step.do == write {
					n.bytes += int64(len(step.data))
					n.files += 2 // the file, and the folder that may have to be made
				}
			}
		}
	}
	for _, dev := range slices.Sorted(maps.Keys(needs)) {
		n := needs[dev]
		switch {
		case n.files == 0:
		case !n.space.unknown && n.space.bytes < n.bytes+reserve:
			p.refuse("the file system of %s is full: %d bytes are free, and %d are wanted, of which %d stay free; make room on the node", n.where, n.space.bytes, n.bytes+reserve, reserve)
		case n.space.files >= 0 && n.space.files < n.files:
			p.refuse("the file system of %s has room for %d more files, and up to %d are wanted; remove some on the node", n.where, n.space.files, n.files)
		}
	}
}
