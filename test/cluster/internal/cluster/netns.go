package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip-netns(8) keeps named network namespaces.
const netnsDir = "/run/netns"

// netnsName returns the name of a member's network namespace. Neither name can contain a dot, so
// that no cluster's prefix matches another cluster's namespaces.
func netnsName(cluster, member string) string { return "zr-" + cluster + "." + member }

func netnsPath(cluster, member string) string {
	return filepath.Join(netnsDir, netnsName(cluster, member))
}

// createNetns creates a network namespace that lasts until removeNetns.
func createNetns(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making %s: %w", filepath.Dir(path), err)
	}
	if err := shareNetnsDir(filepath.Dir(path)); err != nil {
		return err
	}
	pin, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("naming network namespace %s: %w", filepath.Base(path), err)
	}
	pin.Close()
	result := make(chan error)
	go func() {
		// The thread stays in the new namespace and must not be reused: as it is not unlocked, it ends
		// with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("making network namespace %s: %w", filepath.Base(path), err)
			return
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
			result <- fmt.Errorf("keeping network namespace %s: %w", filepath.Base(path), err)
			return
		}
		result <- nil
	}()
	return <-result
}

// shareNetnsDir makes a directory a shared mount, as ip-netns(8) does before it makes its first namespace. If ip did so
// later, its mount would hide the namespaces that exist, and they could not be removed.
func shareNetnsDir(dir string) error {
	err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		if err = unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("sharing %s: %w", dir, err)
	}
	return nil
}

// removeNetns removes a network namespace by its path, if it exists.
func removeNetns(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue // another cluster's program may have mounted something on top
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("releasing network namespace %s: %w", filepath.Base(path), err)
		}
		break
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing network namespace %s: %w", filepath.Base(path), err)
	}
	return nil
}

// netnsOf returns the paths of a cluster's network namespaces.
func netnsOf(cluster string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing network namespaces: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), netnsName(cluster, "")) {
			paths = append(paths, filepath.Join(netnsDir, e.Name()))
		}
	}
	return paths, nil
}

// InNetns runs f on a thread in the network namespace. Sockets that f opens stay in that namespace;
// goroutines that f starts do not run in it.
func InNetns(path string, f func() error) error {
	namespace, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("entering network namespace: %w", err)
	}
	defer namespace.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: see createNetns
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering network namespace %s: %w", filepath.Base(path), err)
			return
		}
		result <- f()
	}()
	return <-result
}
