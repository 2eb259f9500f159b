package cluster

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 4711 1000 10 18446744073709551615 1"
	for _, name := range []string{"(sleep)", "(a b)", "(tricky) S 1 (x)", "())"} {
		s, err := parseStat("42 " + name + rest)
		if err != nil || s.start != 4711 || s.threads != 9 || s.state != 'S' {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
	for _, bad := range []string{"", "42 (sleep) S 1", "42 sleep S" + strings.Repeat(" x", 30),
		"42 (sleep) S" + strings.Repeat(" x", 30)} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestSignalIgnoresReusedPIDs(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	s, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}

	// The same PID with another start time.
	other := Process{ID: "sleep", PID: cmd.Process.Pid, Start: s.start + 1}
	if got := other.State(); got != Dead {
		t.Errorf("with another start time the process is %s", got)
	}
	if err := other.signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signalling a process with another start time: %v", err)
	}

	p := Process{ID: "sleep", PID: cmd.Process.Pid, Start: s.start}
	for _, step := range []struct {
		signal unix.Signal
		want   string
	}{{unix.SIGSTOP, Paused}, {unix.SIGCONT, Running}, {unix.SIGKILL, Dead}} {
		if err := p.signal(step.signal); err != nil {
			t.Fatalf("%s: %v", unix.SignalName(step.signal), err)
		}
		for deadline := time.Now().Add(time.Minute); p.State() != step.want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after %s it is %s, not %s", unix.SignalName(step.signal), p.State(), step.want)
			}
		}
	}
}

func TestSignalIgnoresInvalidPIDs(t *testing.T) {
	// To kill(2), 0 and -1 mean groups of processes.
	for _, pid := range []int{0, -1} {
		if err := (Process{PID: pid}).signal(unix.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%d: %v", pid, err)
		}
	}
}
