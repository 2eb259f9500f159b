package storage

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// asNobody runs f as an unprivileged user.
func asNobody(t *testing.T, f func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so the thread ends with the goroutine
		if err := errors.Join(syscall.Setfsgid(65534), syscall.Setfsuid(65534)); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func TestPrepareRoot(t *testing.T) {
	t.Parallel()
	discard := slog.New(slog.DiscardHandler)
	mentions := func(t *testing.T, err error, words ...string) {
		t.Helper()
		if err == nil {
			t.Fatal("accepted")
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v lacks %q", err, word)
			}
		}
	}
	t.Run("a directory is created and left empty", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "a", "b")
		require.NoError(t, PrepareRoot(discard, root, false))
		if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
			t.Errorf("the directory contains %v, %v", entries, err)
		}
	})
	t.Run("a directory of another user is rejected", func(t *testing.T) {
		root := t.TempDir()
		// The directory and its parent are readable by everyone.
		require.NoError(t, errors.Join(os.Chmod(root, 0o555), os.Chmod(filepath.Dir(root), 0o755)))
		err := asNobody(t, func() error { return PrepareRoot(discard, root, false) })
		mentions(t, err, root, "uid ", "gid ", "cannot write to it", "permission denied", "fsGroup")
		if err := asNobody(t, func() error { return PrepareRoot(discard, root, true) }); err != nil {
			t.Errorf("a read-only registry rejects it too: %v", err)
		}
	})
	t.Run("full and read-only volumes", func(t *testing.T) {
		root := t.TempDir()
		// Two inodes: the directory's and one more.
		if err := unix.Mount("tmpfs", root, "tmpfs", 0, "nr_inodes=2"); err != nil {
			t.Skipf("needs to mount full and read-only volumes (%v): run it as root", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(root, 0); err != nil {
				t.Error(err)
			}
		})
		require.NoError(t, os.WriteFile(filepath.Join(root, "last"), nil, 0o600))
		var out bytes.Buffer
		if err := PrepareRoot(slog.New(slog.NewTextHandler(&out, nil)), root, false); err != nil {
			t.Errorf("a full volume stops the registry: %v", err)
		}
		if !strings.Contains(out.String(), "volume is full") || !strings.Contains(out.String(), root) {
			t.Errorf("logged: %s", out.String())
		}
		require.NoError(t, unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		mentions(t, PrepareRoot(discard, root, false), root, "read-only file system", "storage.maintenance.readonly")
	})
}
