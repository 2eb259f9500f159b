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

// netnsDir is where ip-netns(8) keeps network namespaces by name.
const netnsDir = "/run/netns"

// netnsName names the network namespace of a cluster's member. The dot cannot be
// part of either name, so that no cluster's names begin like another's.
func netnsName(cluster, member string) string { return "zr-" + cluster + "." + member }

func netnsPath(cluster, member string) string {
	return filepath.Join(netnsDir, netnsName(cluster, member))
}

// createNetns makes a network namespace that lasts until removeNetns.
func createNetns(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making %s: %w", filepath.Dir(path), err)
	}
	pin, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("naming network namespace %s: %w", filepath.Base(path), err)
	}
	pin.Close()
	result := make(chan error)
	go func() {
		// The thread is left in the new namespace, so it must not serve anything
		// else: without an unlock, it ends with this goroutine.
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

// removeNetns forgets a network namespace by its path. It is well when there is none.
func removeNetns(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue // another cluster program may have put a mount on top
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

// netnsOf returns the paths of a cluster's network namespaces, found by name.
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

// InNetns runs f on a thread that is in the network namespace. Sockets that f
// opens belong to that namespace for ever; goroutines that f starts do not.
func InNetns(path string, f func() error) error {
	namespace, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("entering network namespace: %w", err)
	}
	defer namespace.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and no unlock: see createNetns
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering network namespace %s: %w", filepath.Base(path), err)
			return
		}
		result <- f()
	}()
	return <-result
}
