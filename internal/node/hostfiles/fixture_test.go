package hostfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	release = "zarf/zarf-registry"
	mark    = "# Written by zarf-registry, release zarf/zarf-registry. Changes are overwritten.\n"
	theirs  = "# Written by zarf-registry, release other/registry. Changes are overwritten.\n"
	certs   = "/etc/containerd/certs.d"
	k3s     = "/etc/rancher/k3s"
)

// files are the content of a tree by path. A path that ends in a slash is an empty directory, and
// "-> x" a symbolic link to x.
type files map[string]string

// originals have a modification time and mode that the package never sets, which identifies copies.
var originalTime = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

const originalMode = 0o640

// newHost creates a node with two directories.
func newHost(t testing.TB, tree files) string {
	t.Helper()
	host := fastDir(t)
	for _, dir := range []string{certs, k3s} {
		mkdir(t, filepath.Join(host, dir))
	}
	for name, content := range tree {
		at := filepath.Join(host, name)
		mkdir(t, filepath.Dir(at))
		target, link := strings.CutPrefix(content, "-> ")
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			mkdir(t, at)
			continue
		case link:
			err = os.Symlink(target, at)
		default:
			if err = os.WriteFile(at, []byte(content), originalMode); err == nil {
				err = errors.Join(os.Chmod(at, originalMode), os.Chtimes(at, originalTime, originalTime))
			}
		}
		require.NoError(t, err)
	}
	return host
}

// fastDir returns a directory in memory if possible: thousands of syncs take minutes on a disk.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hostfiles")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
}

// node holds the relevant properties of a file.
type node struct {
	content string
	mode    fs.FileMode
	mtime   time.Time
	inode   uint64
}

func snapshot(t testing.TB, host string) map[string]node {
	t.Helper()
	out := map[string]node{}
	err := filepath.WalkDir(host, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		path := strings.TrimPrefix(name, host)
		n := node{mode: info.Mode(), mtime: info.ModTime(), inode: info.Sys().(*syscall.Stat_t).Ino}
		switch {
		case entry.IsDir():
			path += "/"
			n = node{mode: info.Mode()} // directory times change with their content
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			n.content = "-> " + target
		default:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			n.content = string(data)
		}
		out[path] = n
		return nil
	})
	require.NoError(t, err)
	return out
}

// contents returns the files and the empty directories of a snapshot.
func contents(s map[string]node) files {
	out := files{}
	for name, n := range s {
		empty := !slices.ContainsFunc(
			slices.Collect(maps.Keys(s)), func(other string) bool { return other != name && strings.HasPrefix(other, name) },
		)
		if !strings.HasSuffix(name, "/") || empty && name != certs+"/" && name != k3s+"/" {
			out[name] = n.content
		}
	}
	return out
}

func (f files) String() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&out, "-- %s --\n%s\n", name, f[name])
	}
	return out.String()
}

func sameFiles(t testing.TB, host string, want files) {
	t.Helper()
	if got := contents(snapshot(t, host)); !maps.Equal(got, want) {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
}

func sameSnapshot(t testing.TB, what string, got, want map[string]node) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[name]; !ok {
			t.Errorf("%s: %s is missing", what, name)
		} else if g != want[name] {
			t.Errorf("%s: %s is %+v, was %+v", what, name, g, want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: unexpected file %s", what, name)
		}
	}
}

func options(host string) Options {
	return Options{Root: host, Directories: []string{certs, k3s}, Release: release}
}

// run opens, plans, applies and closes.
func run(o Options, w Desired) (*Plan, error) {
	tree, err := Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	plan, err := tree.Plan(w)
	if err != nil {
		return nil, err
	}
	return plan, plan.Apply()
}

func mustRun(t testing.TB, host string, w Desired) *Plan {
	t.Helper()
	return require.Value(run(options(host), w))(t)
}

// summary describes a plan, one line per file.
func summary(p *Plan) string {
	var out strings.Builder
	for _, c := range p.Changes {
		fmt.Fprintf(&out, "%s %s", c.Action, c.Path)
		if c.Backup != "" {
			fmt.Fprintf(&out, " keeps %s", filepath.Base(c.Backup))
		}
		if c.Done == (c.Action == Unchanged) {
			fmt.Fprintf(&out, " done=%v", c.Done)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func refusal(t testing.TB, err error) string {
	t.Helper()
	var refused *exitcode.Refusal
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return refused.Error()
}

// want returns a file of mode 0600.
func want(path, content string) File { return File{Path: path, Content: []byte(content), Mode: 0o600} }
