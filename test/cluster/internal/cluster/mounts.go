package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Directories of a node below nodeDir. MountNode mounts them elsewhere on the node.
const (
	etcDir        = "etc"
	etcWorkDir    = "etc.work"
	kubeletDir    = "kubelet"
	containerdDir = "containerd"
	containersDir = "containers" // of CRI-O
	cniDir        = "cni"
	logsDir       = "log"
	optDir        = "opt"
	varLibDir     = "varlib" // used to assemble /var/lib
)

var nodeDirs = []string{etcDir, etcWorkDir, kubeletDir, containerdDir, containersDir, cniDir, logsDir, optDir, varLibDir}

// MountNode turns the mount namespace of this process, a copy of the host's, into a node's file
// system: /usr and similar directories are the host's; directories that Kubernetes and the container
// runtime write to are the node's own. All mounts end with the last process of the namespace.
func MountNode(clusterDir, node string) error {
	own := func(dir string) string { return filepath.Join(clusterDir, nodeDir, node, dir) }
	steps := []struct {
		what string
		do   func() error
	}{
		{"unsharing the host's mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		// Copies of other clusters' mounts would outlive them.
		{"hiding the host's network namespaces", func() error { return unmountBelow(netnsDir) }},
		{"hiding other clusters", func() error { return unmountBelow(StateRoot, filepath.Join(clusterDir, volumeDir)) }},
		{"overlaying /etc", func() error {
			return unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+own(etcDir)+",workdir="+own(etcWorkDir))
		}},
		{"covering /var/log", func() error { return bind(own(logsDir), "/var/log") }},
		{"covering /opt", func() error { return bind(own(optDir), "/opt") }},
		{"covering /run", mountRun},
		{"covering /var/lib", func() error {
			// Programs, configuration and volumes, at the same path as on the host.
			cluster := strings.TrimPrefix(clusterDir, "/var/lib/")
			return mountVarLib(own(varLibDir), []mount{
				{"kubelet", own(kubeletDir)},
				{"containerd", own(containerdDir)},
				{"containers", own(containersDir)},
				{"cni", own(cniDir)},
				{cluster, clusterDir},
				// They may be separate file systems, which a bind mount of the parent excludes.
				{filepath.Join(cluster, volumeDir), filepath.Join(clusterDir, volumeDir)},
			})
		}},
		// The kubelet and runc propagate mounts between containers and the node.
		{"sharing mounts within the node", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
		{"setting the host name", func() error { return unix.Sethostname([]byte(node)) }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

func bind(from, to string) error {
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

// mountRun mounts an empty /run: nodes must not see sockets of the host's services.
func mountRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"/run/lock", netnsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Then the mount shows this directory.
type mount struct{ name, from string }

// mountVarLib mounts a /var/lib with only the given directories, in that order. It is assembled
// elsewhere and moved there, because its sources are in /var/lib.
func mountVarLib(aside string, dirs []mount) error {
	if err := unix.Mount("tmpfs", aside, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range dirs {
		target := filepath.Join(aside, dir.name)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := bind(dir.from, target); err != nil {
			return fmt.Errorf("%s: %w", dir.name, err)
		}
	}
	return unix.Mount(aside, "/var/lib", "", unix.MS_MOVE, "")
}

// limitVolumes mounts a memory file system of that size as the directory of all volumes. Down
// unmounts it.
func (c *Cluster) limitVolumes(bytes int64) error {
	if err := unix.Mount("tmpfs", c.path(volumeDir), "tmpfs", 0, fmt.Sprintf("mode=755,size=%d", bytes)); err != nil {
		return fmt.Errorf("making a file system for volumes: %w", err)
	}
	return nil
}

// unmountBelow unmounts everything at or below a directory, except the named mounts.
func unmountBelow(dir string, but ...string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, point := range points {
		if slices.Contains(but, point) {
			continue
		}
		err := unix.Unmount(point, unix.MNT_DETACH)
		// Another cluster may be removing its own mounts meanwhile.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow returns the mount points at or below a directory, latest first.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	defer f.Close()
	var points []string
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			points = append([]string{fields[4]}, points...)
		}
	}
	return points, scanner.Err()
}
