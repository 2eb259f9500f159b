package loader_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// puppet returns a program that reports its start and signals, and executes the shell commands that
// it reads from the FIFO <first argument>/<name>. Noise of this size follows.
func puppet(name string, noise int) []byte {
	return append([]byte(`#!/bin/sh
trap 'echo `+name+`: TERM' TERM
exec 4<>"$1/`+name+`"
[ -p /proc/self/fd/3 ] || exit 99
echo "`+name+`: started $ZARF_REGISTRY_PROGRAM"
while :; do read -r command <&4 && eval "$command"; done
`), script(name, noise)...)
}

const beReady = "echo ready >&3"

// supervision is a loader with -s, and its programs, which are puppets.
type supervision struct {
	t           *testing.T
	m           machine
	cmd         *exec.Cmd
	pod         pod
	lines       chan string // of stdout and stderr; closed when all processes that have them have ended
	fifos       map[string]*os.File
	generations int
}

// newSupervision does not start the loader yet.
func newSupervision(t *testing.T, m machine, options ...string) *supervision {
	t.Helper()
	s := &supervision{t: t, m: m, pod: newPod(t, nil), lines: make(chan string, 100), fifos: map[string]*os.File{}}
	commands := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(commands, name)
		require.NoError(t, syscall.Mkfifo(path, 0o600))
		fifo := require.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
		t.Cleanup(func() { fifo.Close() })
		s.fifos[name] = fifo
	}
	s.cmd = m.command(append(append([]string{"-s"}, options...), s.pod.payload, s.pod.target, commands)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return s
}

// start starts the loader with the program a.
func (s *supervision) start() {
	s.t.Helper()
	s.deliver(s.payload("a"))
	r, w, err := os.Pipe()
	require.NoError(s.t, err)
	s.cmd.Stdout, s.cmd.Stderr = w, w
	require.NoError(s.t, s.cmd.Start())
	w.Close()
	s.t.Cleanup(func() {
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		s.cmd.Wait()
		r.Close()
	})
	go func() {
		for scanner := bufio.NewScanner(r); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
		close(s.lines)
	}()
	s.want(started("a"))
}

func (s *supervision) payload(name string) *injector.Payload {
	s.t.Helper()
	return encode(s.t, s.m, layerOf(s.t, puppet(name, 1_500_000)))
}

// deliver replaces the files of the volume, like a kubelet.
func (s *supervision) deliver(payload *injector.Payload) {
	s.t.Helper()
	s.generations++
	writeGeneration(s.t, s.pod.payload, fmt.Sprintf("..%d", s.generations), payload)
}

// tell makes a program execute a shell command.
func (s *supervision) tell(name, command string) {
	s.t.Helper()
	require.Value(s.fifos[name].WriteString(command + "\n"))(s.t)
}

// line returns the next line, and false after the last one.
func (s *supervision) line() (string, bool) {
	s.t.Helper()
	for range 3000 {
		select {
		case line, ok := <-s.lines:
			return line, ok
		case <-time.After(100 * time.Millisecond):
			// A shell that gets a signal just before it reads executes the trap only after that.
			for name := range s.fifos {
				s.tell(name, "")
			}
		}
	}
	s.t.Fatal("nothing happened for 5 minutes")
	return "", false
}

func (s *supervision) want(lines ...string) {
	s.t.Helper()
	for _, want := range lines {
		if got, ok := s.line(); !ok || got != want {
			s.t.Fatalf("got %q, %v\nwant %q", got, ok, want)
		}
	}
}

// wantNothing waits long enough for two looks at the manifest.
func (s *supervision) wantNothing() {
	s.t.Helper()
	select {
	case line, ok := <-s.lines:
		s.t.Fatalf("got %q, %v, want nothing", line, ok)
	case <-time.After(2500 * time.Millisecond):
	}
}

func (s *supervision) signal(signal os.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(signal))
}

// wantExit waits until the loader and all its programs have ended.
func (s *supervision) wantExit(code int) {
	s.t.Helper()
	if line, ok := s.line(); ok {
		s.t.Fatalf("got %q, want the end", line)
	}
	s.cmd.Wait()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("the exit code is %d, want %d", got, code)
	}
}

// wantChildren waits until the loader has this number of children, and no zombie.
func (s *supervision) wantChildren(want int) {
	s.t.Helper()
	var have, zombies int
	for range 3000 {
		have, zombies = 0, 0
		stats := require.Value(filepath.Glob("/proc/[0-9]*/stat"))(s.t)
		for _, path := range stats {
			stat, _ := os.ReadFile(path)
			_, rest, _ := strings.Cut(string(stat), ") ")
			if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(s.cmd.Process.Pid) {
				have++
				if fields[0] == "Z" {
					zombies++
				}
			}
		}
		if have == want && zombies == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Errorf("the loader has %d children, %d of them zombies; want %d", have, zombies, want)
}

func sumOf(name string) string   { return fmt.Sprintf("%x", sha256.Sum256(puppet(name, 1_500_000))) }
func started(name string) string { return name + ": started " + sumOf(name) }
func takesOver(name string) string {
	return "zarf-registry loader: program " + sumOf(name)[:12] + " takes over"
}

func keepsAfter(status int) string {
	return fmt.Sprintf(
		"zarf-registry loader: the new program ended with %d before it was ready, keeping the current one", status,
	)
}

// impatient returns a machine with a loader that gives up soon: a successor may wait for chunks for one
// second and has 15 in total. The next attempt is after five seconds.
func impatient(t *testing.T, m machine) machine {
	t.Helper()
	dir := t.TempDir()
	compiler := toolchains[m.architecture].compiler + " -DSUCCESSOR_WAIT=1 -DSUCCESSOR_START=29 -DRETRY_AFTER=15"
	runMake(t, dir, m.architecture, "CC_"+m.architecture+"="+compiler)
	m.loader = filepath.Join(dir, "loader-"+m.architecture)
	return m
}

func TestSupervisorPassesOnStopAndStatus(t *testing.T) {
	t.Parallel()
	onEachMachine(t, func(t *testing.T, m machine) {
		for name, test := range map[string]struct {
			signal  syscall.Signal // to the loader; 0 = none
			line    string
			command string
			code    int
		}{
			"success":              {0, "", "exit 0", 0},
			"failure":              {0, "", "exit 7", 7},
			"killed":               {0, "", "kill -KILL $$", 137},
			"aborted":              {0, "", "kill -ABRT $$", 134},
			"ready, then failure":  {0, "", beReady + "; exit 3", 3},
			"TERM, then success":   {syscall.SIGTERM, "a: TERM", "exit 0", 0},
			"TERM, then failure":   {syscall.SIGTERM, "a: TERM", "exit 4", 4},
			"TERM without handler": {syscall.SIGTERM, "a: TERM", "trap - TERM; kill -TERM $$", 143},
			// An image may name each of them as STOPSIGNAL.
			"INT":     {syscall.SIGINT, "a: TERM", "exit 5", 5},
			"HUP":     {syscall.SIGHUP, "a: TERM", "exit 6", 6},
			"QUIT":    {syscall.SIGQUIT, "a: TERM", "exit 7", 7},
			"USR1":    {syscall.SIGUSR1, "a: TERM", "exit 8", 8},
			"USR2":    {syscall.SIGUSR2, "a: TERM", "exit 9", 9},
			"WINCH":   {syscall.SIGWINCH, "a: TERM", "exit 10", 10},
			"PWR":     {syscall.SIGPWR, "a: TERM", "exit 11", 11},
			"RTMIN+3": {37, "a: TERM", "exit 12", 12},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSupervision(t, m)
				s.start()
				s.wantChildren(1)
				if test.signal != 0 {
					s.signal(test.signal)
					s.want(test.line)
				}
				s.tell("a", test.command)
				s.wantExit(test.code)
			})
		}
	})
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	onEachMachine(t, func(t *testing.T, m machine) {
		t.Parallel()
		s := newSupervision(t, m)
		s.start()
		s.tell("a", beReady)
		s.wantNothing()

		s.deliver(s.payload("b"))
		s.want(started("b"))
		s.wantNothing() // not ready
		s.wantChildren(2)
		s.tell("b", beReady)
		s.want(takesOver("b"), "a: TERM")

		// The next one waits until the previous one has delivered.
		s.deliver(s.payload("c"))
		s.wantNothing()
		s.tell("a", "exit 9")
		s.want(started("c"))
		s.wantChildren(2)
		s.tell("c", beReady+"; exec 3>&-")
		s.want(takesOver("c"), "b: TERM")
		s.tell("b", "kill -KILL $$")
		s.wantChildren(1)
		s.wantNothing()

		s.signal(syscall.SIGTERM)
		s.want("c: TERM")
		s.tell("c", "exit 0")
		s.wantExit(0)
		if names := s.pod.written(t); len(names) != 1 {
			t.Errorf("written: %v", names)
		}
	})
}

func TestHandOverFails(t *testing.T) {
	t.Parallel()
	onThisMachine(t, func(t *testing.T, m machine) {
		hasty := impatient(t, m)
		const tooLate = "zarf-registry loader: the new program was not ready after 30 s, keeping the current one"
		for name, test := range map[string]struct {
			m       machine
			command string // to the successor
			line    string
		}{
			"it ends":                       {m, "exit 9", keepsAfter(9)},
			"it crashes":                    {m, "kill -SEGV $$", keepsAfter(139)},
			"it is ready and ends":          {m, beReady + "; exit 9", keepsAfter(9)},
			"it does not say that it is up": {hasty, "", tooLate},
			"it closes the pipe":            {hasty, "exec 3>&-", tooLate},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSupervision(t, test.m, "-w", "1")
				s.start()
				s.tell("a", beReady)
				s.deliver(s.payload("b"))
				s.want(started("b"))
				s.tell("b", test.command)
				s.want(test.line)
				s.wantChildren(1)
				s.wantNothing() // no second attempt, and the current program was not told to end

				s.deliver(s.payload("c"))
				s.want(started("c"))
				s.tell("c", beReady)
				s.want(takesOver("c"), "a: TERM")
				s.tell("a", "exit 0")
				s.wantChildren(1)
				s.signal(syscall.SIGTERM)
				s.want("c: TERM")
				s.tell("c", "exit 2")
				s.wantExit(2)
			})
		}
	})
}

func TestHandOverOfADamagedPayload(t *testing.T) {
	t.Parallel()
	onThisMachine(t, func(t *testing.T, m machine) {
		damaged := func(s *supervision, payload *injector.Payload) string {
			chunk := append([]byte(nil), payload.Chunks[1]...)
			chunk[0] ^= 1
			damaged := *payload
			damaged.Chunks = [][]byte{payload.Chunks[0], chunk}
			s.deliver(&damaged)
			return fmt.Sprintf("zarf-registry loader: chunk 01: sha256 is %x, manifest says %x: ",
				sha256.Sum256(chunk), sha256.Sum256(payload.Chunks[1]))
		}
		finish := func(s *supervision) {
			s.want(started("b"))
			s.tell("b", beReady)
			s.want(takesOver("b"), "a: TERM")
			s.tell("a", "exit 0")
			s.tell("b", "exit 3")
			s.wantExit(3)
		}
		t.Run("repaired in time", func(t *testing.T) {
			t.Parallel()
			s := newSupervision(t, m)
			s.start()
			s.tell("a", beReady)
			payload := s.payload("b")
			problem := damaged(s, payload)
			s.want(problem + "waiting up to 120 s for it to come right")
			s.wantNothing()
			s.deliver(payload)
			finish(s)
		})
		t.Run("repaired too late", func(t *testing.T) {
			t.Parallel()
			s := newSupervision(t, impatient(t, m), "-w", "1")
			s.start()
			s.tell("a", beReady)
			payload := s.payload("b")
			problem := damaged(s, payload)
			s.want(problem+"waiting up to 1 s for it to come right",
				problem+"re-run helm upgrade or zarf-registry prepare to repair the payload", keepsAfter(104))
			s.deliver(payload)
			finish(s)
		})
		t.Run("an invalid manifest", func(t *testing.T) {
			t.Parallel()
			s := newSupervision(t, m)
			s.start()
			s.tell("a", beReady)
			payload := s.payload("b")
			invalid := *payload
			invalid.Manifest = payload.Manifest[:100]
			s.deliver(&invalid)
			s.wantNothing()
			require.NoError(t, os.Remove(filepath.Join(s.pod.payload, "..data", injector.ManifestKey)))
			s.wantNothing()
			s.deliver(payload)
			finish(s)
		})
		t.Run("the same program in other chunks", func(t *testing.T) {
			t.Parallel()
			s := newSupervision(t, m)
			s.start()
			s.tell("a", beReady)
			s.deliver(encode(t, m, repack(t, layerOf(t, puppet("a", 1_500_000)), 1, 0)))
			s.wantNothing()
			s.deliver(s.payload("b"))
			finish(s)
		})
		t.Run("before the current program is ready", func(t *testing.T) {
			t.Parallel()
			s := newSupervision(t, m)
			s.start()
			s.deliver(s.payload("b"))
			s.wantNothing()
			s.tell("a", beReady)
			finish(s)
		})
	})
}

func TestEndDuringAHandOver(t *testing.T) {
	t.Parallel()
	onThisMachine(t, func(t *testing.T, m machine) {
		for name, end := range map[string]func(t *testing.T, s *supervision){
			"the current program ends": func(_ *testing.T, s *supervision) {
				s.tell("a", "exit 6")
				s.wantExit(6)
			},
			"a signal before the new program is ready": func(t *testing.T, s *supervision) {
				s.signal(syscall.SIGTERM)
				first, _ := s.line()
				second, _ := s.line()
				if first > second {
					first, second = second, first
				}
				if first != "a: TERM" || second != "b: TERM" {
					t.Fatalf("%q, %q", first, second)
				}
				s.tell("b", beReady) // too late
				s.wantNothing()
				s.tell("a", "exit 4")
				s.wantChildren(1)
				s.tell("b", "exit 5")
				s.wantExit(4)
			},
			"a signal while the previous program delivers": func(_ *testing.T, s *supervision) {
				s.tell("b", beReady)
				s.want(takesOver("b"), "a: TERM")
				s.signal(syscall.SIGTERM)
				s.want("b: TERM")
				s.wantNothing() // a second signal would cut off what a delivers
				s.tell("a", "exit 8")
				s.tell("b", "exit 7")
				s.wantExit(7)
			},
			"the new program ends while the previous program delivers": func(_ *testing.T, s *supervision) {
				s.tell("b", beReady)
				s.want(takesOver("b"), "a: TERM")
				s.tell("b", "exit 7")
				s.wantExit(7)
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSupervision(t, m)
				s.start()
				s.tell("a", beReady)
				s.deliver(s.payload("b"))
				s.want(started("b"))
				end(t, s)
			})
		}
	})
}

// TestSupervisorAsProcess1 runs it as a container does: the kernel gives it all orphans, and does not
// apply the default action of signals.
func TestSupervisorAsProcess1(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs a PID namespace: run it as root")
	}
	onEachMachine(t, func(t *testing.T, m machine) {
		t.Parallel()
		s := newSupervision(t, m)
		s.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		s.start()
		s.tell("a", beReady+"; p=$( (sleep 1000 >/dev/null & echo $!) ); echo has an orphan")
		s.want("has an orphan")
		s.wantChildren(2)
		s.tell("a", "kill $p")
		s.wantChildren(1)
		s.deliver(s.payload("b"))
		s.want(started("b"))
		s.tell("b", beReady+"; (sleep 1000 &)")
		s.want(takesOver("b"), "a: TERM")
		s.tell("a", "exit 0")
		s.wantChildren(2)
		s.signal(syscall.SIGTERM)
		s.want("b: TERM")
		s.tell("b", "exit 3")
		s.wantExit(3)
	})
}
