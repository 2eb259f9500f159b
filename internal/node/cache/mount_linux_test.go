package cache

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// mountSmall mounts a file system of that size.
func mountSmall(t *testing.T, dir string, size int64) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs to mount a small file system: run it as root")
	}
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.FormatInt(size, 10)))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}
