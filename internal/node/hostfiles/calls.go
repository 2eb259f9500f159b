package hostfiles

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
)

// calls are the system calls of a run; nothing else in the package accesses a file system. Each has
// a name, and hook is called before and after it: tests can make it fail or end the run there.
type calls struct {
	hook func(call, path string, after bool) error
}

func (c calls) do(call, path string, f func() error) error {
	if c.hook == nil {
		return f()
	}
	if err := c.hook(call, path, false); err != nil {
		return &fs.PathError{Op: call, Path: path, Err: err}
	}
	if err := f(); err != nil {
		return err
	}
	if err := c.hook(call, path, true); err != nil {
		return &fs.PathError{Op: call, Path: path, Err: err}
	}
	return nil
}

// directory is a mounted directory. Names are relative to it. os.Root keeps links from leading out
// of it.
type directory struct {
	calls
	path   string // on the node
	root   *os.Root
	handle *os.File // the directory itself, locked
}

func (d *directory) name(name string) string { return path.Join(d.path, name) }

func (d *directory) lstat(name string) (info fs.FileInfo, err error) {
	err = d.do("lstat", d.name(name), func() error {
		info, err = d.root.Lstat(name)
		return err
	})
	return info, err
}

func (d *directory) readlink(name string) (target string) {
	_ = d.do("readlink", d.name(name), func() (err error) { // used in messages only
		target, err = d.root.Readlink(name)
		return err
	})
	return target
}

// read reads up to limit bytes of a regular file. The caller has checked that it is one.
func (d *directory) read(name string, limit int64) (data []byte, err error) {
	err = d.do("read", d.name(name), func() error {
		f, err := d.root.OpenFile(name, os.O_RDONLY|nonblock, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, limit))
		return err
	})
	return data, err
}

func (d *directory) list(name string) (entries []fs.DirEntry, err error) {
	err = d.do("readdir", d.name(name), func() error {
		f, err := d.root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		entries, err = f.ReadDir(-1)
		return err
	})
	return entries, err
}

func (d *directory) mkdir(name string) error {
	if err := d.do("mkdir", d.name(name), func() error { return d.root.Mkdir(name, 0o755) }); err != nil {
		return err
	}
	return d.do("chmod", d.name(name), func() error { return d.root.Chmod(name, 0o755) }) // regardless of the umask
}

func (d *directory) link(from, to string) error {
	return d.do("link", d.name(to), func() error { return d.root.Link(from, to) })
}

func (d *directory) rename(from, to string) error {
	return d.do("rename", d.name(to), func() error { return d.root.Rename(from, to) })
}

func (d *directory) remove(name string) error {
	return d.do("remove", d.name(name), func() error { return d.root.Remove(name) })
}

// sync makes changes to the entries of a folder durable.
func (d *directory) sync(folder string) error {
	return d.do("sync", d.name(folder), func() error {
		f, err := d.root.Open(folder)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

// write creates a new file, completely and durably, or not at all.
func (d *directory) write(name string, data []byte, mode fs.FileMode) error {
	var f *os.File
	steps := []struct {
		call string
		do   func() error
	}{
		{"create", func() (err error) {
			f, err = d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			return err
		}},
		{"write", func() error { _, err := f.Write(data); return err }},
		{"chmod", func() error { return f.Chmod(mode) }}, // regardless of the umask
		{"sync", func() error { return f.Sync() }},
		{"close", func() error { return f.Close() }},
	}
	for _, step := range steps {
		if err := d.do(step.call, d.name(name), step.do); err != nil {
			if f != nil {
				_ = f.Close()
				err = errors.Join(err, d.remove(name))
			}
			return err
		}
	}
	return nil
}
