package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An Entry is the cgroup and the namespaces for a process.
type Entry struct {
	Cgroup string
	// Netns and Mount are paths of namespaces. Mount is a directory in /proc of the process whose
	// mount and host name namespaces are used.
	Netns, Mount string
}

func (e Entry) args() []string {
	return []string{"internal", "enter", "--cgroup=" + e.Cgroup, "--netns=" + e.Netns, "--mount=" + e.Mount}
}

// entry returns the entry for a process of the cluster.
func (c *Cluster) entry(p Process) (Entry, error) {
	member := p.Node
	if member == "" {
		member = controlPlaneName
	}
	e := Entry{Cgroup: cgroupOf(c.Options.Name, member, systemCgroup)}
	if !p.OnHost {
		e.Netns = netnsPath(c.Options.Name, member)
	}
	if p.Node != "" && !p.Holds {
		holder, err := c.Process(processID(holderName, p.Node))
		if err != nil {
			return e, err
		}
		if holder.State() == Dead {
			return e, fmt.Errorf("node %s has no namespaces any more: its holder ended", p.Node)
		}
		e.Mount = fmt.Sprintf("/proc/%d", holder.PID)
	}
	return e, nil
}

// Enter moves this process to the entry's cgroup and namespaces and executes another program. It
// returns only on failure.
func Enter(e Entry, args, env []string) error {
	// Namespaces belong to a thread, and exec keeps those of the calling thread.
	runtime.LockOSThread()
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	if err := groups.join(e.Cgroup); err != nil {
		return err
	}
	if e.Netns != "" {
		if err := setns(e.Netns, unix.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if e.Mount != "" {
		if err := setns(filepath.Join(e.Mount, "ns", "uts"), unix.CLONE_NEWUTS); err != nil {
			return err
		}
		// A thread that shares its working directory cannot change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leaving the other threads: %w", err)
		}
		if err := setns(filepath.Join(e.Mount, "ns", "mnt"), unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Chdir("/"); err != nil {
			return fmt.Errorf("entering the node's file system: %w", err)
		}
	}
	program, err := lookPath(args[0], env)
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", program, syscall.Exec(program, args, env))
}

func setns(path string, kind int) error {
	namespace, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("entering namespace: %w", err)
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), kind); err != nil {
		return fmt.Errorf("entering namespace %s: %w", path, err)
	}
	return nil
}

// lookPath searches the PATH in env instead of this process's.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("there is no program %q in %s", name, path)
}

// Exec replaces this process by a command on a node or, for "cp", next to the control plane. It
// returns only on failure.
func (c *Cluster) Exec(node string, args []string) error {
	if node == controlPlaneName {
		node = ""
	} else if _, err := c.node(node); err != nil {
		return fmt.Errorf("%w; %s stands for the control plane", err, controlPlaneName)
	}
	e, err := c.entry(Process{Node: node})
	if err != nil {
		return err
	}
	return Enter(e, args, mergeEnvironment(os.Environ(), c.environment(node)))
}

// mergeEnvironment returns base with the variables of override replaced.
func mergeEnvironment(base, override []string) []string {
	set := make(map[string]bool)
	for _, variable := range override {
		name, _, _ := strings.Cut(variable, "=")
		set[name] = true
	}
	merged := slices.DeleteFunc(slices.Clone(base), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return set[name]
	})
	return append(merged, override...)
}

// run runs a command on a node and returns its output. Its stderr is part of the error.
func (c *Cluster) run(ctx context.Context, node string, stdin io.Reader, args ...string) (string, error) {
	e, err := c.entry(Process{Node: node})
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, c.self(), append(append(e.args(), "--"), args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.Env = stdin, &stderr, c.environment(node)
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		return "", fmt.Errorf("%s on %s: %w: %s", args[0], node, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
