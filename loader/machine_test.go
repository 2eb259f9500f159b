package loader_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// roleVariable gives the test binary another role: a program to be loaded ("print"), or one that
// applies a seccomp filter to itself and executes another program ("strict"), or a runtime that starts a container
// ("container").
const roleVariable = "LOADER_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "print":
		environment := os.Environ()
		slices.Sort(environment)
		fmt.Printf("%q\n%q\n", os.Args, environment)
		return
	case "strict":
		fmt.Fprintln(os.Stderr, "LOADER_TEST_ROLE=strict:", execStrictly(os.Args[1:]))
		os.Exit(1)
	case "container":
		fmt.Fprintln(os.Stderr, "LOADER_TEST_ROLE=container:", runContainer(os.Args[1]))
		os.Exit(1)
	}
	// A shell cannot trap a signal that its parent ignores, as nohup does with SIGHUP. Caught ones have the default action
	// in new programs.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	flag.Parse()
	// Most of these tests wait.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	code := m.Run()
	if dir, err := buildFolder(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// execStrictly executes a program that may make only the system calls of sys.h; any other kills it.
func execStrictly(argv []string) error {
	allowed := []uint32{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
		unix.SYS_FACCESSAT, unix.SYS_FCHMOD, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_EXECVE, unix.SYS_EXIT_GROUP,
		unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_CLONE, unix.SYS_WAIT4, unix.SYS_KILL, unix.SYS_PIPE2,
		unix.SYS_DUP3, unix.SYS_FSTATFS,
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the system call number
	for i, number := range allowed {
		filter = append(filter, unix.SockFilter{
			Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jt: uint8(len(allowed) - i),
		})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}

	path, err := unix.BytePtrFromString(argv[0])
	if err != nil {
		return err
	}
	pointers, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return err
	}
	environment := []*byte{nil}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// From here to execve the thread must make no other call, so Go's runtime must not intervene.
	if _, _, errno := unix.RawSyscall(
		unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)),
	); errno != 0 {
		return errno
	}
	_, _, errno := unix.RawSyscall(
		unix.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&pointers[0])),
		uintptr(unsafe.Pointer(&environment[0])),
	)
	return errno
}

var (
	buildLock   sync.Mutex
	buildFolder = sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "zarf-registry-loader-")
		// Some tests run the programs as another user.
		return dir, errors.Join(err, os.Chmod(dir, 0o755))
	})
)

func need(tb testing.TB, tool string) {
	tb.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		tb.Skipf("needs %s: run make deps", tool)
	}
}

// runMake builds targets of the Makefile into a folder and returns the output of make and the
// compilers.
func runMake(tb testing.TB, out string, targets ...string) string {
	tb.Helper()
	need(tb, "make")
	// go test reuses a cached result unless a file that the test process itself has opened has changed.
	for _, pattern := range []string{"*.c", "*.h", "Makefile"} {
		sources, err := filepath.Glob(pattern)
		if err != nil || len(sources) == 0 {
			tb.Fatalf("no %s: %v", pattern, err)
		}
		for _, source := range sources {
			require.Value(os.ReadFile(source))(tb)
		}
	}
	output, err := exec.Command("make", append([]string{"OUT=" + out}, targets...)...).CombinedOutput()
	require.NoError(tb, err, "make", targets, output)
	return string(output)
}

// built returns the path of a program of the Makefile, and builds it at the first call.
func built(tb testing.TB, target, program string) string {
	tb.Helper()
	if tools, known := toolchains[target]; known {
		need(tb, tools.compiler)
	}
	buildLock.Lock()
	defer buildLock.Unlock()
	dir := require.Value(buildFolder())(tb)
	path := filepath.Join(dir, program)
	if _, err := os.Stat(path); err != nil {
		runMake(tb, dir, target)
	}
	return path
}

func buildFuzz(tb testing.TB) string {
	tb.Helper()
	need(tb, "gcc")
	return built(tb, "fuzz", "loader-fuzz")
}

// A machine is a loader and the way to run it here.
type machine struct {
	architecture string
	loader       string
	probe        string
	emulator     []string // precedes the command line for a foreign architecture
}

func (m machine) command(args ...string) *exec.Cmd {
	line := slices.Concat(m.emulator, []string{m.loader}, args)
	return exec.Command(line[0], line[1:]...)
}

var toolchains = map[string]struct{ compiler, emulator string }{
	"amd64": {"x86_64-linux-gnu-gcc", "qemu-x86_64-static"},
	"arm64": {"aarch64-linux-gnu-gcc", "qemu-aarch64-static"},
}

// onEachMachine runs a test with the loader of each architecture, emulated if necessary. An
// emulated loader executes programs of the test's own architecture: the emulator passes execve to
// the kernel.
func onEachMachine(t *testing.T, test func(t *testing.T, m machine)) {
	for architecture := range toolchains {
		onMachine(t, architecture, test)
	}
}

// onThisMachine runs a test of what an emulator would change, or what does not depend on the architecture.
func onThisMachine(t *testing.T, test func(t *testing.T, m machine)) {
	onMachine(t, runtime.GOARCH, test)
}

func onMachine(t *testing.T, architecture string, test func(t *testing.T, m machine)) {
	t.Run(architecture, func(t *testing.T) {
		m := machine{
			architecture: architecture,
			loader:       built(t, architecture, "loader-"+architecture),
			probe:        built(t, architecture, "probe-"+architecture),
		}
		if architecture != runtime.GOARCH {
			emulator := toolchains[architecture].emulator
			need(t, emulator)
			m.emulator = []string{emulator}
		}
		test(t, m)
	})
}

type result struct {
	code           int // -1 = killed by a signal
	stdout, stderr string
}

func run(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// inMountNamespace runs a shell script in a new mount namespace, with the command line as its
// arguments.
func inMountNamespace(t *testing.T, script string, command *exec.Cmd) result {
	t.Helper()
	return run(t, unshare(t, slices.Concat([]string{"sh", "-ec", script, "sh"}, command.Args)...))
}

// unshare returns a command line in a new mount namespace, which needs root or user namespaces.
func unshare(t *testing.T, line ...string) *exec.Cmd {
	t.Helper()
	options := []string{"-m"}
	if os.Geteuid() != 0 {
		options = append(options, "-r")
	}
	if err := exec.Command("unshare", append(options, "true")...).Run(); err != nil {
		t.Skipf("SKIPPED, NOTHING WAS TESTED: cannot create a mount namespace: %v", err)
	}
	return exec.Command("unshare", append(options, line...)...)
}
