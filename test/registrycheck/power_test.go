package registrycheck

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// The sizes of disks with ext4, which leaves as much for content as volumeSize, next to the journal, and with XFS, which
// needs more.
const ext4Size, xfsSize = 64 << 20, 320 << 20

// goDown is EXT4_IOC_SHUTDOWN, which XFS has, too. With noFlush, the file system at once writes nothing any more: what
// only the page cache has is lost, and so is the part of the journal that was not committed.
const goDown, noFlush = 0x8004587d, 2

func (c *cluster) mountMemory(dir, options string) {
	require.NoError(c.t, syscall.Mount("tmpfs", dir, "tmpfs", 0, options), "mount a volume at", dir, "run as root")
	c.t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			c.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// createDisk mounts a file system on a disk that loses nothing.
func (c *cluster) createDisk() {
	memory := filepath.Join(c.dir, "memory")
	c.mkdir(memory)
	c.mountMemory(memory, "")
	c.disk = filepath.Join(memory, "disk")
	size, mkfs := int64(ext4Size), []string{"mkfs.ext4", "-q", "-m", "0", "-J", "size=4", "-N", "16384"}
	if *xfs {
		size, mkfs = xfsSize, []string{"mkfs.xfs", "-q"}
	}
	err := os.WriteFile(c.disk, nil, 0o600)
	if err == nil {
		err = os.Truncate(c.disk, size)
	}
	require.NoError(c.t, err)
	c.run(mkfs[0], append(mkfs[1:], c.disk)...)
	c.mountDisk()
	c.t.Cleanup(c.unmountDisk)
}

// run runs a program of the system.
func (c *cluster) run(name string, args ...string) {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		c.t.Errorf("%s: %v: %s", name, err, output)
	}
}

func (c *cluster) mountDisk() { c.run("mount", "-o", "loop", c.disk, c.volume) }

// unmountDisk waits until nothing uses the file system any more.
func (c *cluster) unmountDisk() {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Unmount(c.volume, 0)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EBUSY) || time.Since(began) > startTimeout {
			c.t.Errorf("unmount %s: %v", c.volume, err)
			return
		}
	}
}

// cutPower ends all processes, loses what they have not synced, and starts them again after so long.
func (c *cluster) cutPower(d time.Duration) {
	for _, s := range c.servers {
		s.faults.Lock()
		defer s.faults.Unlock()
	}
	c.outage.Lock()
	defer c.outage.Unlock()
	if c.collector != nil {
		_ = c.collector.Kill() // it may have ended
	}
	for _, s := range c.servers {
		s.kill()
	}
	root, err := os.Open(c.volume)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(root.Fd()), goDown, noFlush)
		_ = root.Close()
	}
	if err != nil {
		c.t.Errorf("shut down the file system: %v", err)
	}
	c.unmountDisk()
	c.mountDisk()
	_ = os.Remove(c.ballast()) // the power cut may have lost its removal
	time.Sleep(d)
	for _, s := range c.servers {
		s.start()
	}
}
