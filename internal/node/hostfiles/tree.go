package hostfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

const (
	// lockTimeout is how long another run may take. A run writes a few small files, so after this time
	// it hangs.
	lockTimeout  = time.Minute
	lockInterval = 50 * time.Millisecond
)

// Options are the options of Open.
type Options struct {
	// Root is the directory below which the node's directories are mounted, each at its own path. "/"
	// is the node itself.
	Root string
	// Directories are the node's directories that may contain files of the release.
	Directories []string
	// Release is NAMESPACE/NAME.
	Release string
	// SkipMissing ignores missing directories.
	SkipMissing bool

	hook        func(call, path string, after bool) error
	lockTimeout time.Duration // 0: lockTimeout, the constant
}

// Tree is a set of directories of a node, locked against other runs. It is not safe for concurrent
// use.
type Tree struct {
	release string
	calls   calls
	dirs    []*directory      // by path
	same    map[string]string // directories that are another one under a different name
}

// Open opens the directories and waits until no other run has locked them. A missing directory is a
// Refusal.
func Open(ctx context.Context, o Options) (tree *Tree, err error) {
	t := &Tree{release: o.Release, calls: calls{o.hook}, same: map[string]string{}}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	root, err := os.OpenRoot(o.Root)
	if err != nil {
		return nil, exitcode.Refuse("opening the mount point of the node's directories: %v", err)
	}
	defer func() { _ = root.Close() }()
	var problems []string
	paths := slices.Compact(slices.Sorted(slices.Values(o.Directories)))
	for _, name := range paths {
		if !clean(name) {
			problems = append(problems, fmt.Sprintf("directory %q: want an absolute path without \"..\"", name))
			continue
		}
		d, err := t.openDirectory(root, name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && o.SkipMissing:
			continue
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, fmt.Sprintf("directory %s is missing: mount it at %s", name, path.Join(o.Root, name)))
			continue
		case err != nil:
			problems = append(problems, fmt.Sprintf("directory %s cannot be opened: %v", name, err))
			continue
		}
		if other := t.alias(d); other != "" {
			t.same[name] = other
			d.close()
			continue
		}
		t.dirs = append(t.dirs, d)
	}
	if problems != nil {
		return nil, exitcode.Refuse("%s", strings.Join(problems, "\n"))
	}
	// In path order, so that two runs do not deadlock.
	for _, d := range t.dirs {
		if err := d.lock(ctx, cmp.Or(o.lockTimeout, lockTimeout)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tree) openDirectory(root *os.Root, name string) (*directory, error) {
	d := &directory{calls: t.calls, path: name}
	err := d.do("open", name, func() (err error) {
		if d.root, err = root.OpenRoot(strings.TrimPrefix(name, "/")); err != nil {
			return err
		}
		d.handle, err = d.root.Open(".")
		return err
	})
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// alias returns another name of directory d, such as a link on the node. Locking it twice would
// deadlock.
func (t *Tree) alias(d *directory) string {
	info, err := d.handle.Stat()
	if err != nil {
		return ""
	}
	for _, other := range t.dirs {
		if its, err := other.handle.Stat(); err == nil && os.SameFile(info, its) {
			return other.path
		}
	}
	return ""
}

func (d *directory) close() {
	if d.handle != nil {
		_ = d.handle.Close() // also releases the lock
	}
	if d.root != nil {
		_ = d.root.Close()
	}
}

func (d *directory) lock(ctx context.Context, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; {
		var taken bool
		err := d.do("lock", d.path, func() (err error) {
			taken, err = lock(d.handle)
			return err
		})
		switch {
		case err != nil:
			return exitcode.Refuse("directory %s cannot be locked: %v", d.path, err)
		case taken:
			return nil
		case time.Now().After(end):
			return exitcode.Refuse(
				"directory %s has been locked by another run for %v: find it with lsof or fuser on the node and stop it",
				d.path, timeout)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another run's lock on directory %s: %w", d.path, context.Cause(ctx))
		case <-time.After(lockInterval):
		}
	}
}

// Close releases the directories. A second Close does nothing.
func (t *Tree) Close() {
	for _, d := range t.dirs {
		d.close()
	}
	t.dirs = nil
}

// locate returns the innermost directory that contains a path, and the rest of the path.
func (t *Tree) locate(name string) (*directory, string, error) {
	if !clean(name) {
		return nil, "", fmt.Errorf("%q: want an absolute path without \"..\"", name)
	}
	var found *directory
	for _, d := range t.dirs {
		if below(d.path, name) && (found == nil || len(d.path) > len(found.path)) {
			found = d
		}
	}
	for dir, same := range t.same {
		if below(dir, name) && (found == nil || len(dir) > len(found.path)) {
			return nil, "", fmt.Errorf("%s: directory %s is the same as %s on this node; list only one of them", name, dir, same)
		}
	}
	if found == nil {
		return nil, "", fmt.Errorf("%s is not in a mounted directory", name)
	}
	return found, strings.TrimPrefix(name, found.path+"/"), nil
}

// Exists reports whether a path below the opened directories exists.
func (t *Tree) Exists(name string) (bool, error) {
	d, rel, err := t.locate(name)
	if err != nil {
		return false, &exitcode.Refusal{Err: err}
	}
	if _, err := d.lstat(rel); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	} else if err != nil {
		return false, exitcode.Refuse("%s", unreadable(name, err))
	}
	return true, nil
}

// Modified returns the modification time of the file at path; zero if it does not exist.
func (t *Tree) Modified(name string) time.Time {
	d, rel, err := t.locate(name)
	if err != nil {
		return time.Time{}
	}
	info, err := d.lstat(rel)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// entry describes what exists at a path.
type entry struct {
	info    fs.FileInfo // nil if nothing exists
	content []byte      // including the mark; nil if it is not a regular file or too large
	release string      // the release that wrote it, empty for files of others
	rest    []byte      // content without the mark
}

func (e entry) exists() bool  { return e.info != nil }
func (e entry) regular() bool { return e.info != nil && e.info.Mode().IsRegular() }
func (e entry) large() bool   { return e.regular() && e.content == nil }

func (d *directory) look(name string) (entry, error) {
	info, err := d.lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return entry{}, nil
	case err != nil:
		return entry{}, err
	}
	e := entry{info: info}
	if !e.regular() || info.Size() > maxSize {
		return e, nil
	}
	data, err := d.read(name, maxSize+1)
	if err != nil {
		return entry{}, err
	}
	if len(data) <= maxSize {
		e.content = append([]byte{}, data...)
		e.release, e.rest = markOf(e.content)
	}
	return e, nil
}

func unreadable(name string, err error) string {
	return fmt.Sprintf("reading %s: %v", name, cause(err))
}

// cause removes the path from an error of package os: it is the path in the pod.
func cause(err error) error {
	var pathError *fs.PathError
	var linkError *os.LinkError
	switch {
	case errors.As(err, &pathError):
		return pathError.Err
	case errors.As(err, &linkError):
		return linkError.Err
	}
	return err
}
