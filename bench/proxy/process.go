package main

import (
	"bytes"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
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
