package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
)

// process is a child process with its descendants, because some proxies fork.
type process struct {
	*exec.Cmd
	log   *syncBuffer
	ended io.Closer // closed by stop; may be nil
}

// start starts a command in a new process group. The kernel terminates it when this process ends.
func start(command *exec.Cmd) (*process, error) {
	p := &process{Cmd: command, log: new(syncBuffer)}
	p.Stderr = p.log
	if p.Stdout == nil {
		p.Stdout = p.log
	}
	// SIGTERM, because nginx's workers would outlive a killed master.
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.WaitDelay = time.Second
	return p, p.Start()
}

// stop kills the process group.
func (p *process) stop() {
	_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
	_ = p.Wait()
	if p.ended != nil {
		_ = p.ended.Close()
	}
}

// memory returns the resident memory of the tree in bytes: the private memory of each process, and
// the shared memory once, as the maximum over the processes. PSS would depend on which other programs
// use the same libraries.
func (p *process) memory() (int64, error) {
	all, err := processes.Tree(p.Process.Pid)
	if err != nil {
		return 0, err
	}
	var private, shared int64
	for _, pid := range all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if processes.Gone(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		own, others, err := parseRollup(string(text))
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		private, shared = private+own, max(shared, others)
	}
	return private + shared, nil
}

// parseRollup returns a process's private and shared memory in bytes, from its smaps_rollup.
func parseRollup(text string) (private, shared int64, err error) {
	seen := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		switch fields[0] {
		case "Private_Clean:", "Private_Dirty:":
			private += kib << 10
			seen++
		case "Shared_Clean:", "Shared_Dirty:":
			shared += kib << 10
			seen++
		}
	}
	if seen != 4 {
		return 0, 0, fmt.Errorf("smaps_rollup lacks a field: %q", text)
	}
	return private, shared, nil
}

// syncBuffer keeps the last logSize bytes of a process's output. It is safe for concurrent use.
type syncBuffer struct {
	mu  sync.Mutex
	all []byte
}

const logSize = 4 << 10

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, p...)
	b.all = b.all[max(0, len(b.all)-logSize):]
	return len(p), nil
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(bytes.TrimSpace(b.all))
}
