package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupParent is the parent of all clusters' cgroups.
const cgroupParent = "/zarf-registry-test"

func cgroupOf(elements ...string) string {
	return filepath.Join(append([]string{cgroupParent}, elements...)...)
}

// cgroups are the cgroup mounts of the machine: one for version 2, one per controller for version
// 1.
type cgroups struct {
	unified bool
	mounts  []string
	// second is the additional version 2 mount of a hybrid machine. It controls nothing, but container
	// runtimes create cgroups in it.
	second []string
}

// findCgroups detects the cgroup version. If both are mounted (hybrid), it chooses version 1, as
// Kubernetes does.
func findCgroups() (cgroups, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}, fmt.Errorf("looking for cgroups: %w", err)
	}
	found := parseCgroups(mountinfo)
	if len(found.mounts) == 0 {
		return cgroups{}, errors.New("this machine has no cgroup file system below /sys/fs/cgroup")
	}
	return found, nil
}

// parseCgroups reads proc_pid_mountinfo(5).
func parseCgroups(mountinfo []byte) cgroups {
	var c cgroups
	scanner := bufio.NewScanner(bytes.NewReader(mountinfo))
	for scanner.Scan() {
		before, after, _ := strings.Cut(scanner.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 1 || !strings.HasPrefix(left[4], "/sys/fs/cgroup") {
			continue
		}
		point := left[4]
		switch {
		case right[0] == "cgroup2" && point == "/sys/fs/cgroup":
			return cgroups{unified: true, mounts: []string{point}}
		case right[0] == "cgroup2":
			c.second = append(c.second, point)
		case right[0] == "cgroup" && !slices.Contains(c.mounts, point):
			c.mounts = append(c.mounts, point)
		}
	}
	return c
}

// tracking returns the mounts in which every process of a cluster is kept. For version 1 these are
// the pids controller and systemd's own hierarchy, in which processes would otherwise end with the
// user's login.
func (c cgroups) tracking() []string {
	if c.unified {
		return c.mounts
	}
	var mounts []string
	for _, m := range c.mounts {
		if base := filepath.Base(m); base == "pids" || base == "systemd" {
			mounts = append(mounts, m)
		}
	}
	if len(mounts) == 0 {
		mounts = c.mounts[:1]
	}
	return mounts
}

// all returns every mount below which a cluster may have cgroups.
func (c cgroups) all() []string { return slices.Concat(c.mounts, c.second) }

// create creates a cgroup and its parents in all mounts.
func (c cgroups) create(path string) error {
	var err error
	for range 100 { // the end of another cluster may remove the parent meanwhile
		if err = c.tryCreate(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (c cgroups) tryCreate(path string) error {
	for _, mount := range c.mounts {
		dir := mount
		for element := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			if c.unified {
				if err := enableControllers(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, element)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("making cgroup: %w", err)
			}
			// A new cgroup of the version 1 cpuset accepts no process before these are set.
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inheritCpuset(parent, dir, name); err != nil && !c.unified {
					return err
				}
			}
		}
	}
	return nil
}

func inheritCpuset(parent, dir, name string) error {
	own, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || len(bytes.TrimSpace(own)) > 0 {
		return nil // another controller, or inherited
	}
	value, err := os.ReadFile(filepath.Join(parent, name))
	if err != nil {
		return fmt.Errorf("reading %s of cgroup %s: %w", name, parent, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
		return fmt.Errorf("setting %s of cgroup %s: %w", name, dir, err)
	}
	return nil
}

// enableControllers enables all available controllers for the children of a version 2 cgroup.
func enableControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the controllers of cgroup %s: %w", dir, err)
	}
	enabled, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("reading the controllers of cgroup %s: %w", dir, err)
	}
	// Only the root cgroup, which has no type, may have both processes and children with controllers.
	// Inside a container the topmost cgroup is not the root, so its processes move to a leaf, as an
	// init system would do. This comes first: some controllers can be enabled without it and prevent
	// the others.
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); err == nil {
		if err := evacuate(dir); err != nil {
			return fmt.Errorf("moving processes out of cgroup %s: %w", dir, err)
		}
	}
	for controller := range strings.FieldsSeq(string(available)) {
		if slices.Contains(strings.Fields(string(enabled)), controller) {
			continue
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		// A controller that cannot be enabled (cpu while real-time processes exist) is skipped. If the
		// kubelet needs it, it refuses to start with a message.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("enabling controller %s below cgroup %s: %w", controller, dir, err)
		}
	}
	return nil
}

// evacuate moves the processes of a cgroup to a leaf of it.
func evacuate(dir string) error {
	leaf := filepath.Join(dir, "init")
	for range 10 { // repeat, because processes fork meanwhile
		pids, err := cgroupProcesses(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, pid := range pids {
			err := writePID(leaf, pid)
			if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	return nil
}

// join moves this process into a cgroup.
func (c cgroups) join(path string) error {
	for _, mount := range c.tracking() {
		if err := writePID(filepath.Join(mount, path), 0); err != nil {
			return fmt.Errorf("joining cgroup %s: %w", path, err)
		}
	}
	return nil
}

// writePID moves a process to a cgroup; 0 is the calling process.
func writePID(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
}

// processes returns the PIDs in a cgroup and below it.
func (c cgroups) processes(path string) []int {
	var pids []int
	for _, mount := range c.tracking() {
		_ = filepath.WalkDir(filepath.Join(mount, path), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				// A cgroup that vanishes meanwhile has no processes.
				found, _ := cgroupProcesses(dir)
				pids = append(pids, found...)
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func cgroupProcesses(dir string) ([]int, error) {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		// 0 stands for a process outside this PID namespace.
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// kill kills all processes in a cgroup and below it. It checks membership again through a pidfd, so
// that a reused PID is safe.
func (c cgroups) kill(path string) {
	c.thaw(path)
	for _, pid := range c.processes(path) {
		killIf(pid, func() bool {
			content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			return err == nil && inCgroup(string(content), path)
		})
	}
}

// inCgroup reads cgroups(7)'s /proc/PID/cgroup.
func inCgroup(content, path string) bool {
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && (fields[2] == path || strings.Contains(fields[2]+"/", path+"/")) {
			return true
		}
	}
	return false
}

// thaw unfreezes processes, because frozen ones of version 1 do not die.
func (c cgroups) thaw(path string) {
	for _, mount := range c.mounts {
		_ = filepath.WalkDir(filepath.Join(mount, path), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && !c.unified && filepath.Base(mount) == "freezer" {
				_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0o644)
			}
			return nil
		})
	}
}

// remove removes a cgroup and those below it, once their processes are gone.
func (c cgroups) remove(path string) error {
	// The kernel releases a cgroup shortly after its last process was reaped.
	const timeout = time.Minute
	var err error
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err = nil
		for _, mount := range c.all() {
			err = errors.Join(err, removeTree(filepath.Join(mount, path)))
		}
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("removing cgroup %s: %w", path, err)
	}
	return nil
}

func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs) // children before their parents
	for _, d := range dirs {
		if rmErr := os.Remove(d); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
