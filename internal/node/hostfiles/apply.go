package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// Apply executes the plan file by file and stops at the first failure. Each file is then in its old
// or its new state. Changes that were made have Done set.
func (p *Plan) Apply() error {
	for _, l := range p.leftovers {
		if err := l.remove(); err != nil {
			return fmt.Errorf("removing %s, left over from an earlier run: %w", l.dir.name(l.name), cause(err))
		}
	}
	for _, f := range p.folders {
		if err := f.apply(); err != nil {
			return err
		}
	}
	return nil
}

func (l leftover) remove() error {
	for _, file := range l.inside {
		if err := l.dir.remove(file); err != nil {
			return err
		}
	}
	if err := l.dir.remove(l.name); err != nil {
		return err
	}
	return l.dir.sync(path.Dir(l.name))
}

func (f *folder) apply() error {
	var err error
	switch {
	case f.entries == nil && len(f.steps) > 0:
		err = f.make()
	case f.emptied():
		err = f.takeAway()
	default:
		for _, s := range f.steps {
			if err := f.do(s); err != nil {
				return failed(f.dir.name(f.path(s.base)), err)
			}
			done(s.change)
		}
	}
	if err != nil {
		return failed(f.dir.name(f.name), err)
	}
	return nil
}

func failed(name string, err error) error {
	return fmt.Errorf("%s: %w; the file is in its old or its new state, and the next run continues", name, err)
}

func done(c *Change) {
	if c != nil {
		c.Done = true
	}
}

func (f *folder) do(s *step) error {
	base, backup := f.path(s.base), f.path(s.base+backupSuffix)
	var err error
	switch s.op {
	case write:
		err = f.write(s)
	case putBack:
		err = f.dir.rename(backup, base)
	case remove:
		err = f.dir.remove(base)
	case dropBackup:
		err = f.dir.remove(backup)
	}
	if err != nil {
		return err
	}
	return f.dir.sync(f.name)
}

func (f *folder) write(s *step) error {
	name, temp := f.path(s.base), f.path(temporary(s.base))
	if err := f.dir.write(temp, s.data, s.mode); err != nil {
		return err
	}
	err := func() error {
		if s.keep {
			err := f.dir.link(name, f.path(s.base+backupSuffix))
			if errors.Is(err, fs.ErrPermission) {
				// Linux allows hard links to files of others only with capabilities: see protected_hardlinks in
				// proc_sys_fs(5).
				return fmt.Errorf("keeping the previous file: %w; make root its owner", err)
			}
			if err != nil {
				return fmt.Errorf("keeping the previous file: %w", err)
			}
			// The backup must be on disk before the file is replaced.
			if err := f.dir.sync(f.name); err != nil {
				return err
			}
		}
		return f.dir.rename(temp, name)
	}()
	if err != nil {
		_ = f.dir.remove(temp) // otherwise the next run does
	}
	return err
}

// make creates the folder with its files in one step: under a temporary name that is renamed. An
// interrupted run leaves no folder that might later be mistaken for somebody else's.
func (f *folder) make() error {
	temp := folder{dir: f.dir, name: temporary(f.name)}
	err := func() error {
		if err := f.dir.mkdir(temp.name); err != nil {
			return err
		}
		for _, s := range f.steps {
			if err := temp.do(s); err != nil {
				return err
			}
		}
		return f.dir.rename(temp.name, f.name)
	}()
	if err != nil {
		for _, s := range f.steps { // otherwise the next run does
			_ = f.dir.remove(temp.path(s.base))
		}
		_ = f.dir.remove(temp.name)
		return err
	}
	for _, s := range f.steps {
		done(s.change)
	}
	return f.dir.sync(".")
}

// takeAway removes the folder with its files in one step, for the same reason.
func (f *folder) takeAway() error {
	temp := folder{dir: f.dir, name: temporary(f.name)}
	if err := f.dir.rename(f.name, temp.name); err != nil {
		return err
	}
	for _, s := range f.steps {
		done(s.change)
	}
	if err := f.dir.sync("."); err != nil {
		return err
	}
	for _, s := range f.steps {
		if err := f.dir.remove(temp.path(s.base)); err != nil {
			return err
		}
	}
	if err := f.dir.remove(temp.name); err != nil {
		return err
	}
	return f.dir.sync(".")
}
