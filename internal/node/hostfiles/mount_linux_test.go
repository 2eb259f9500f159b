package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// mount mounts a file system for a test, or skips the test.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		t.Skipf("needs to mount (%v): run it as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestReadOnlyFileSystem(t *testing.T) {
	host := newHost(t, files{yaml: mark + "ours\n"})
	mustRun(t, host, Desired{Files: []File{want(yaml, "ours\n")}}) // sets the mode
	dir := filepath.Join(host, k3s)
	mount(t, dir, dir, "", syscall.MS_BIND, "")
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("needs to mount (%v): run it as root", err)
	}
	before := snapshot(t, host)
	_, err := run(options(host), Desired{Files: []File{want(yaml, "new\n"), want(docker, "d\n")}})
	if got := refusal(t, err); !strings.Contains(got, k3s+" is on a read-only file system") {
		t.Errorf("refused with %s", got)
	}
	sameSnapshot(t, "after the refusal", snapshot(t, host), before)

	// An up-to-date file needs no writing.
	plan, err := run(options(host), Desired{Files: []File{want(yaml, "ours\n")}})
	if err != nil || summary(plan) != "unchanged "+yaml+"\n" {
		t.Errorf("got %v", err)
	}
}

func TestFullFileSystem(t *testing.T) {
	host := newHost(t, nil)
	dir := filepath.Join(host, k3s)
	mount(t, "tmpfs", dir, "tmpfs", 0, "size=4m,nr_inodes=20")
	wants := Desired{Files: []File{want(yaml, "new\n"), want(docker, "d\n")}}
	fill := filepath.Join(dir, "filler")
	require.NoError(t, os.WriteFile(fill, make([]byte, 7<<19), 0o600))
	_, err := run(options(host), wants)
	if got := refusal(t, err); !strings.Contains(got, "the file system of "+k3s+" is full: 524288 bytes free") {
		t.Errorf("refused with %s", got)
	}
	require.NoError(t, os.Remove(fill))
	for i := range 18 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("file", i)), nil, 0o600))
	}
	_, err = run(options(host), wants)
	if got := refusal(t, err); !strings.Contains(got, "free inodes") {
		t.Errorf("refused with %s", got)
	}
	if _, err := os.Stat(filepath.Join(host, docker)); err == nil {
		t.Error("something was written")
	}
	for i := range 2 {
		require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprint("file", i))))
	}
	mustRun(t, host, wants)
}

// If a file system fills up between the plan and the write, the previous file stays.
func TestFileSystemFillsUp(t *testing.T) {
	host := newHost(t, nil)
	dir := filepath.Join(host, k3s)
	mount(t, "tmpfs", dir, "tmpfs", 0, "size=2m")
	mustRun(t, host, Desired{Files: []File{want(yaml, "old\n")}})
	before := snapshot(t, host)
	tree := require.Value(Open(t.Context(), options(host)))(t)
	defer tree.Close()
	plan := require.Value(tree.Plan(Desired{Files: []File{want(yaml, strings.Repeat("x", 64<<10))}}))(t)
	fill := filepath.Join(dir, "filler")
	if err := os.WriteFile(fill, make([]byte, 4<<20), 0o600); err == nil {
		t.Fatal("the file system did not fill up")
	}
	if err := plan.Apply(); err == nil || !strings.Contains(err.Error(), yaml) ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
	require.NoError(t, os.Remove(fill))
	sameSnapshot(t, "after the failure", snapshot(t, host), before)
}
