package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a process of the cluster as recorded on disk: enough to recognize it later and to
// start it again.
type Process struct {
	// ID names the process and its log: "etcd", or "kubelet.n1" on a node.
	ID string `json:"id"`
	// Node is empty for a process of the control plane.
	Node string   `json:"node,omitempty"`
	Args []string `json:"args"`
	// OnHost keeps the process in the host's network namespace.
	OnHost bool `json:"onHost,omitempty"`
	// Holds gives it its own mount and host name namespaces.
	Holds bool `json:"holds,omitempty"`

	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot. Together with PID it identifies a process
	// until the machine reboots.
	Start uint64 `json:"start"`
}

// States of a process.
const (
	Running = "running"
	Paused  = "paused"
	Dead    = "dead"
)

// State returns the state according to /proc. While a process ends, its first thread can be a zombie and others still
// hold its ports.
func (p Process) State() string {
	stat, err := readStat(p.PID)
	switch {
	case err != nil || stat.start != p.Start || stat.state == 'X' || stat.state == 'Z' && stat.threads <= 1:
		return Dead
	case stat.state == 'T':
		return Paused
	default:
		return Running
	}
}

// signal sends a signal to the process if it is still the same one.
func (p Process) signal(s unix.Signal) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	handle, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer closeHandle(handle)
	if p.State() == Dead { // checked while the pidfd prevents reuse of the PID
		return os.ErrProcessDone
	}
	if err := unix.PidfdSendSignal(handle, s, nil, 0); err != nil {
		return fmt.Errorf("sending %s to %s: %w", unix.SignalName(s), p.ID, err)
	}
	return nil
}

// killIf kills a process if ours returns true. A pidfd protects against reuse of the PID.
func killIf(pid int, ours func() bool) {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer closeHandle(handle)
	if ours() {
		_ = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0) // fails only if the process has ended
	}
}

func closeHandle(handle int) { _ = unix.Close(handle) } // nothing was written

type stat struct {
	state   byte
	threads uint64
	start   uint64
}

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(content))
}

// parseStat parses proc_pid_stat(5). The program's name, in parentheses, may contain spaces and
// parentheses.
func parseStat(content string) (stat, error) {
	end := strings.LastIndexByte(content, ')')
	fields := strings.Fields(content[end+1:])
	const stateField, threadsField, startField = 0, 17, 19 // fields 3, 20 and 22
	if end < 0 || len(fields) <= startField {
		return stat{}, fmt.Errorf("invalid stat of a process: %q", content)
	}
	start, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time in a process's stat: %w", err)
	}
	threads, err := strconv.ParseUint(fields[threadsField], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("number of threads in a process's stat: %w", err)
	}
	return stat{state: fields[stateField][0], threads: threads, start: start}, nil
}

// A ComponentError is a failure caused by a process of the cluster.
type ComponentError struct {
	ID, LogPath string
	Err         error
}

func (e *ComponentError) Error() string { return fmt.Sprintf("%s: %v", e.ID, e.Err) }
func (e *ComponentError) Unwrap() error { return e.Err }

// LogTail returns the last lines of the process's log.
func (e *ComponentError) LogTail(lines int) string {
	const enough = 32 << 10 // bytes; these logs often have long lines
	f, err := os.Open(e.LogPath)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > enough {
		_, _ = f.Seek(-enough, 2)
	}
	buffer := make([]byte, enough)
	n, _ := f.Read(buffer)
	all := strings.Split(strings.TrimRight(string(buffer[:n]), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

// start starts a process of the cluster and records it. As long as this program runs, the end of
// the process cancels the context with a ComponentError, which ends all waiting.
func (c *Cluster) start(p Process) error {
	logFile, err := os.OpenFile(c.logPath(p.ID), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.ID, err)
	}
	defer logFile.Close()
	entry, err := c.entry(p)
	if err != nil {
		return err
	}
	cmd := exec.Command(c.self(), append(append(entry.args(), "--"), p.Args...)...)
	cmd.Env = c.environment(p.Node)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if p.Holds {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.ID, err)
	}
	p.PID = cmd.Process.Pid
	if s, err := readStat(p.PID); err == nil {
		p.Start = s.start
	}
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("exited with code 0")
		}
		c.fail(&ComponentError{ID: p.ID, LogPath: c.logPath(p.ID), Err: err})
	}()
	return c.record(p)
}

// record writes the record of a process to disk.
func (c *Cluster) record(p Process) error {
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("recording %s: %w", p.ID, err)
	}
	if err := writeFile(filepath.Join(c.dir, processDir, p.ID+".json"), content); err != nil {
		return fmt.Errorf("recording %s: %w", p.ID, err)
	}
	return nil
}

// Processes returns all recorded processes of the cluster, sorted by ID.
func (c *Cluster) Processes() ([]Process, error) {
	files, err := filepath.Glob(filepath.Join(c.dir, processDir, "*.json"))
	if err != nil {
		return nil, err
	}
	var processes []Process
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the record of a process: %w", err)
		}
		var p Process
		if err := json.Unmarshal(content, &p); err != nil {
			return nil, fmt.Errorf("reading the record of a process, %s: %w", file, err)
		}
		processes = append(processes, p)
	}
	sort.Slice(processes, func(i, j int) bool { return processes[i].ID < processes[j].ID })
	return processes, nil
}

// Process returns the record of a process.
func (c *Cluster) Process(id string) (Process, error) {
	processes, err := c.Processes()
	if err != nil {
		return Process{}, err
	}
	var ids []string
	for _, p := range processes {
		if p.ID == id {
			return p, nil
		}
		ids = append(ids, p.ID)
	}
	return Process{}, fmt.Errorf("cluster %s has no component %q: it has %s", c.Options.Name, id, strings.Join(ids, ", "))
}

// Kill kills a component as a crash would, and returns when it has ended. Only Restart starts it
// again.
func (c *Cluster) Kill(ctx context.Context, id string) error {
	if err := c.signal(id, unix.SIGKILL); err != nil {
		return err
	}
	return c.waitForEnd(ctx, id)
}

// Pause stops a component as if it hung: connections stay open without a response.
func (c *Cluster) Pause(_ context.Context, id string) error { return c.signal(id, unix.SIGSTOP) }

// Resume reverts Pause.
func (c *Cluster) Resume(_ context.Context, id string) error { return c.signal(id, unix.SIGCONT) }

func (c *Cluster) signal(id string, s unix.Signal) error {
	p, err := c.Process(id)
	if err != nil {
		return err
	}
	err = p.signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s is not running: testcluster restart %s --name %s", id, id, c.Options.Name)
	}
	return err
}

func (c *Cluster) waitForEnd(ctx context.Context, id string) error {
	return c.waitFor(ctx, id, "its end", exitTimeout, func(context.Context) error {
		p, err := c.Process(id)
		if err == nil && p.State() != Dead {
			err = errors.New("still running")
		}
		return err
	})
}

// Restart kills a component if it is running, starts it with the same arguments, and waits until it
// is usable.
func (c *Cluster) Restart(ctx context.Context, id string) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := c.Process(id)
	if err != nil {
		return err
	}
	if p.Holds {
		return fmt.Errorf("%s holds the namespaces of %s and cannot restart: remove and add the node instead", id, p.Node)
	}
	if err := p.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := c.waitForEnd(ctx, id); err != nil {
		return err
	}
	ctx, done := c.watch(ctx)
	defer done()
	if err := c.start(p); err != nil {
		return err
	}
	return c.waitForUse(ctx, p)
}

// waitForUse waits until a started component works, as far as that can be checked.
func (c *Cluster) waitForUse(ctx context.Context, p Process) error {
	if n, err := c.node(p.Node); err == nil && p.ID == processID(n.runtime().name(), p.Node) {
		return c.waitForRuntime(ctx, n)
	}
	switch strings.TrimSuffix(p.ID, "."+p.Node) {
	case etcd, apiServer, forwarder:
		if server, err := c.Process(apiServer); err == nil && server.State() == Dead {
			return nil // of a control plane that is off, etcd comes first
		}
		client, err := c.client()
		if err != nil {
			return err
		}
		return c.waitForAPI(ctx, client)
	case coreDNS:
		return c.waitForDNS(ctx)
	case kubelet:
		return c.waitForKubelet(ctx, p.Node)
	default:
		return nil
	}
}

// waitFor polls until check returns nil, the cluster fails, or the time limit expires, which counts
// as a failure of the component.
func (c *Cluster) waitFor(ctx context.Context, id, what string, limit time.Duration,
	check func(context.Context) error) error {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return &ComponentError{ID: id, LogPath: c.logPath(id), Err: fmt.Errorf("waited %s for %s: %w", limit, what, err)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}
