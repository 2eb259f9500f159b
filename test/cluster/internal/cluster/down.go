package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// exitTimeout limits the wait for killed processes: the kernel may have to flush open files and to free
// much memory.
const exitTimeout = 2 * time.Minute

// Down ends a cluster and removes processes, namespaces, mounts, cgroups and files. It needs only
// the cluster's name, not its state, so it works after a crash and on incomplete clusters, and does
// nothing if there is no cluster.
//
// It kills all processes at once with SIGKILL. That is quick, and nothing of value is lost.
func Down(ctx context.Context, name string, log func(format string, args ...any)) error {
	if err := ValidateName("cluster", name); err != nil {
		return err
	}
	c := newCluster(Options{Name: name}, log)
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	namespaces, err := netnsOf(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) && len(namespaces) == 0 &&
		len(groups.processes(cgroupOf(name))) == 0 {
		err := groups.remove(cgroupOf(name))
		removeIfEmpty(groups)
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if namespaces, err = netnsOf(name); err != nil { // another process may have held the lock
		return err
	}
	if err := c.killAll(ctx, groups, cgroupOf(name), namespaces, ""); err != nil {
		return err
	}
	errs := []error{unmountBelow(c.dir)}
	for _, namespace := range namespaces {
		errs = append(errs, removeNetns(namespace))
	}
	errs = append(errs, groups.remove(cgroupOf(name)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("removing the cluster's directory: %w", err)
	}
	removeIfEmpty(groups)
	return nil
}

// removeIfEmpty removes the clusters' shared directories if this was the last cluster.
func removeIfEmpty(groups cgroups) {
	for _, mount := range groups.all() {
		_ = os.Remove(filepath.Join(mount, cgroupParent)) // fails while other clusters use it
	}
	_ = os.Remove(StateRoot) // likewise
}

// killMember kills all processes of a node and removes its cgroups.
func (c *Cluster) killMember(ctx context.Context, node string) error {
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	path := cgroupOf(c.Options.Name, node)
	if err := c.killAll(ctx, groups, path, []string{netnsPath(c.Options.Name, node)}, node); err != nil {
		return err
	}
	return groups.remove(path)
}

// killAll kills until nothing is left: processes in the cgroup, in one of the network namespaces,
// and recorded processes (of one node, or all).
func (c *Cluster) killAll(ctx context.Context, groups cgroups, cgroup string, namespaces []string, node string) error {
	recorded, err := c.Processes()
	if err != nil {
		c.log("ignoring unreadable process records: %v", err)
	}
	for deadline := time.Now().Add(exitTimeout); ; {
		var left []int
		for _, p := range recorded {
			if (node == "" || p.Node == node) && p.State() != Dead {
				_ = p.signal(unix.SIGKILL) // fails only if the process has just ended
				left = append(left, p.PID)
			}
		}
		groups.kill(cgroup)
		left = append(left, alive(groups.processes(cgroup))...)
		left = append(left, killInNetns(namespaces)...)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of cluster %s did not exit", left, c.Options.Name)
		}
		if err := sleep(ctx); err != nil {
			return err
		}
	}
}

// alive returns the processes that have not ended, without zombies.
func alive(pids []int) []int {
	var running []int
	for _, pid := range pids {
		if s, err := readStat(pid); err == nil && s.state != 'Z' && s.state != 'X' {
			running = append(running, pid)
		}
	}
	return running
}

// killInNetns kills processes in the network namespaces, such as a user's shell, and returns them.
func killInNetns(paths []string) []int {
	inside := make(map[string]bool)
	for _, path := range paths {
		var s unix.Stat_t
		// A name without a namespace is a plain file, whose inode matches no process.
		if unix.Stat(path, &s) == nil {
			inside[fmt.Sprintf("net:[%d]", s.Ino)] = true
		}
	}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	var found []int
	for _, link := range links {
		ours := func() bool {
			target, err := os.Readlink(link)
			return err == nil && inside[target]
		}
		var pid int
		if _, err := fmt.Sscanf(link, "/proc/%d/", &pid); err == nil && pid != os.Getpid() && ours() {
			killIf(pid, ours)
			found = append(found, pid)
		}
	}
	return found
}
