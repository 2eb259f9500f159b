package powercut

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Process is a program that is being recorded.
type Process struct {
	*Recording
	pid    int
	output string
	done   chan struct{}
	err    error
}

// Start runs a program and records what it does to the files below dir, which exists; what is there already counts as
// synced. The variables are added to the environment. It skips the test where the kernel does not allow to trace a
// child.
func Start(t testing.TB, dir string, variables []string, argv ...string) *Process {
	t.Helper()
	output := require.Value(os.Create(filepath.Join(t.TempDir(), "output")))(t)
	defer output.Close()
	p, err := start(dir, argv, append(os.Environ(), variables...), output)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EIO) {
		t.Skipf("NOT TESTED: file operations cannot be recorded here, because processes may not be traced: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// Output returns what the program has written to its standard output and error.
func (p *Process) Output() string {
	content, _ := os.ReadFile(p.output)
	return string(content)
}

func start(dir string, argv, environment []string, output *os.File) (*Process, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	p := &Process{Recording: &Recording{}, done: make(chan struct{}), output: output.Name()}
	t := &tracer{
		recording: p.Recording, dir: dir, inodes: map[uint64]*node{}, calls: map[int]*call{}, queue: map[int]*call{},
	}
	if p.root, err = t.load(dir); err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // a thread is the tracer
		process, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
			Env: environment, Files: []*os.File{nil, output, output}, Sys: &unix.SysProcAttr{Ptrace: true},
		})
		if err != nil {
			started <- err
			return
		}
		p.pid = process.Pid
		_ = process.Release()
		t.pid = p.pid
		var status unix.WaitStatus
		if _, err = unix.Wait4(p.pid, &status, unix.WALL, nil); err == nil {
			err = unix.PtraceSetOptions(p.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|
				unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK|unix.PTRACE_O_TRACEEXEC|unix.PTRACE_O_EXITKILL)
		}
		if err == nil {
			err = unix.PtraceSyscall(p.pid, 0)
		}
		if err != nil {
			started <- fmt.Errorf("tracing: %w", err)
			return
		}
		close(started)
		p.err = t.run()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Kill ends the program.
func (p *Process) Kill() error {
	_ = unix.Kill(p.pid, unix.SIGKILL)
	return p.Wait()
}

// Wait waits until the program has ended, and returns what could not be recorded.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// tracer follows the threads of a process. Calls that change or sync files below dir are carried out one after another,
// so that their order is known.
type tracer struct {
	recording *Recording
	dir       string
	pid       int
	inodes    map[uint64]*node
	calls     map[int]*call // by thread, between their entry and their exit
	current   int           // the thread that changes something, or 0
	queue     map[int]*call // threads that wait to
	failure   error
}

// call is a system call.
type call struct {
	number int
	args   [6]uint64
	// Those that matter below dir:
	path, other string
	fd          int
	existed     bool
}

// syscallInfo is struct ptrace_syscall_info.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	data [8]uint64 // at an entry, the number and arguments; at an exit, the result
}

const (
	getSyscallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO
	infoEntry      = 1
	infoExit       = 2
)

func (t *tracer) run() error {
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return t.failure // no child is left
		case status.Exited() || status.Signaled():
			t.end(tid)
			if tid == t.pid {
				t.pid = 0
			}
			continue
		case !status.Stopped():
			continue
		}
		signal := 0
		switch {
		case status.StopSignal() == unix.SIGTRAP|0x80:
			if !t.stop(tid) {
				continue // it waits for its turn
			}
		case status.StopSignal() == unix.SIGTRAP && status.TrapCause() > 0, status.StopSignal() == unix.SIGSTOP:
		default:
			signal = int(status.StopSignal())
		}
		_ = unix.PtraceSyscall(tid, signal) // it may have been killed
	}
}

func (t *tracer) end(tid int) {
	delete(t.calls, tid)
	delete(t.queue, tid)
	if t.current == tid {
		t.current = 0
		t.next()
	}
}

// next lets a thread continue that waits.
func (t *tracer) next() {
	for tid, c := range t.queue {
		delete(t.queue, tid)
		t.begin(tid, c)
		_ = unix.PtraceSyscall(tid, 0)
		return
	}
}

func (t *tracer) begin(tid int, c *call) {
	t.current, t.calls[tid] = tid, c
	_, err := os.Lstat(c.path)
	c.existed = err == nil
}

// stop handles an entry or an exit, and reports whether the thread may continue.
func (t *tracer) stop(tid int) bool {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		t.end(tid)
		return true
	}
	if info.op == infoEntry {
		c := &call{number: int(info.data[0]), args: [6]uint64(info.data[1:7]), fd: -1}
		if !t.matters(tid, c) {
			return true
		}
		if t.current != 0 {
			t.queue[tid] = c
			return false
		}
		t.begin(tid, c)
		return true
	}
	if c := t.calls[tid]; c != nil && info.op == infoExit {
		if result := int64(info.data[0]); result >= 0 {
			if err := t.record(c, result); err != nil && t.failure == nil {
				t.failure = fmt.Errorf("recording system call %d of %s %s: %w", c.number, c.path, c.other, err)
			}
		}
		t.end(tid)
	}
	return true
}

func (t *tracer) below(name string) bool { return name == t.dir || strings.HasPrefix(name, t.dir+"/") }

// text reads a string of the process.
func (t *tracer) text(tid int, address uint64) string {
	buffer := make([]byte, unix.PathMax)
	n := 0
	for n < len(buffer) {
		got, err := unix.PtracePeekData(tid, uintptr(address)+uintptr(n), buffer[n:n+8])
		if err != nil {
			break
		}
		if end := bytes.IndexByte(buffer[n:n+got], 0); end >= 0 {
			return string(buffer[:n+end])
		}
		n += got
	}
	return ""
}

func (t *tracer) at(tid int, fd, address uint64) string {
	name := t.text(tid, address)
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	base := fmt.Sprintf("/proc/%d/fd/%d", t.pid, int32(fd))
	if int32(fd) == unix.AT_FDCWD {
		base = fmt.Sprintf("/proc/%d/cwd", t.pid)
	}
	dir, _ := os.Readlink(base)
	return filepath.Join(dir, name)
}

func (t *tracer) descriptor(fd uint64) (string, int) {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.pid, int32(fd)))
	return strings.TrimSuffix(name, " (deleted)"), int(int32(fd))
}

// matters reports whether a call may change or sync something below dir, and completes it.
func (t *tracer) matters(tid int, c *call) bool {
	a := c.args
	switch c.number {
	case unix.SYS_OPENAT:
		if a[2]&(unix.O_CREAT|unix.O_TRUNC) == 0 {
			return false
		}
		c.path = t.at(tid, a[0], a[1])
	case unix.SYS_MKDIRAT, unix.SYS_UNLINKAT:
		c.path = t.at(tid, a[0], a[1])
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT:
		c.path, c.other = t.at(tid, a[0], a[1]), t.at(tid, a[2], a[3])
		return t.below(c.path) || t.below(c.other)
	case unix.SYS_TRUNCATE, unix.SYS_SYMLINKAT:
		c.path = t.at(tid, uint64(0xffffffffffffff9c), a[0])
	case unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_PWRITEV,
		unix.SYS_SENDFILE, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS:
		c.path, c.fd = t.descriptor(a[0])
	case unix.SYS_SPLICE, unix.SYS_COPY_FILE_RANGE:
		c.path, c.fd = t.descriptor(a[2])
	case unix.SYS_MMAP:
		if a[2]&unix.PROT_WRITE == 0 || a[3]&unix.MAP_SHARED == 0 || int32(a[4]) < 0 {
			return false
		}
		c.path, c.fd = t.descriptor(a[4])
	default:
		return false
	}
	return t.below(c.path)
}

// record records a call that succeeded.
func (t *tracer) record(c *call, result int64) error {
	r := t.recording
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.events)
	defer func() {
		for i := range r.events[before:] {
			r.events[before+i].path = strings.TrimPrefix(cmp.Or(c.other, c.path), t.dir+"/")
		}
	}()
	a := c.args
	switch c.number {
	case unix.SYS_OPENAT:
		n, err := t.find(c.path)
		if err != nil && a[2]&unix.O_CREAT != 0 && !c.existed {
			n = &node{mode: 0o600}
			err = t.create(c.path, n)
		}
		if err == nil && a[2]&unix.O_TRUNC != 0 && c.existed {
			r.add(event{kind: truncate, on: n})
		}
		return err
	case unix.SYS_MKDIRAT:
		return t.create(c.path, &node{isDir: true, live: map[string]*node{}})
	case unix.SYS_UNLINKAT:
		dir, err := t.find(filepath.Dir(c.path))
		if err == nil {
			delete(dir.live, filepath.Base(c.path))
			r.add(event{kind: unlink, on: dir, name: filepath.Base(c.path)})
		}
		return err
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT:
		return t.rename(c)
	case unix.SYS_SYNCFS:
		r.add(event{kind: syncAll})
		return nil
	}
	if c.fd < 0 {
		return errors.New("not supported")
	}
	n, err := t.open(c.fd)
	if err != nil {
		return err
	}
	switch c.number {
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		r.add(event{kind: syncNode, on: n})
	case unix.SYS_FTRUNCATE:
		r.add(event{kind: truncate, on: n, offset: int64(a[1])})
	case unix.SYS_FALLOCATE:
		if a[1] != unix.FALLOC_FL_KEEP_SIZE {
			return errors.New("not supported")
		}
	case unix.SYS_PWRITE64:
		return t.written(c, n, int64(a[3]), result)
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_COPY_FILE_RANGE:
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", t.pid, c.fd))
		if err != nil {
			return err
		}
		var end int64
		if _, err := fmt.Sscanf(string(info), "pos: %d", &end); err != nil {
			return err
		}
		return t.written(c, n, end-result, result)
	default:
		return errors.New("not supported")
	}
	return nil
}

// written records a write. It reads the file, because not every call has the content in memory.
func (t *tracer) written(c *call, n *node, offset, size int64) error {
	if size == 0 {
		return nil
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", t.pid, c.fd))
	if err != nil {
		return err
	}
	defer file.Close()
	data := make([]byte, size)
	if _, err := file.ReadAt(data, offset); err != nil {
		return err
	}
	t.recording.add(event{kind: write, on: n, name: filepath.Base(c.path), offset: offset, data: data})
	return nil
}

func (r *Recording) add(e event) { r.events = append(r.events, e) }

func (t *tracer) find(name string) (*node, error) {
	n := t.recording.root
	if name == t.dir {
		return n, nil
	}
	if !t.below(name) {
		return nil, fmt.Errorf("%s is not below %s", name, t.dir)
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(name, t.dir+"/"), "/") {
		if n = n.live[part]; n == nil {
			return nil, fmt.Errorf("%s was not recorded", name)
		}
	}
	return n, nil
}

func (t *tracer) create(name string, n *node) error {
	dir, err := t.find(filepath.Dir(name))
	if err != nil {
		return err
	}
	dir.live[filepath.Base(name)] = n
	t.recording.add(event{kind: link, on: dir, name: filepath.Base(name), child: n})
	return t.know(name, n)
}

func (t *tracer) rename(c *call) error {
	from, err := t.find(filepath.Dir(c.path))
	if err != nil {
		return err
	}
	to, err := t.find(filepath.Dir(c.other))
	if err != nil {
		return err
	}
	source, target := filepath.Base(c.path), filepath.Base(c.other)
	n := from.live[source]
	flags := uint64(0)
	if c.number == unix.SYS_RENAMEAT2 {
		flags = c.args[4]
	}
	switch {
	case n == nil:
		return errors.New("was not recorded")
	case flags&^unix.RENAME_NOREPLACE != 0:
		return errors.New("not supported")
	default:
		e := event{kind: link, on: to, name: target, child: n}
		if c.number != unix.SYS_LINKAT {
			delete(from.live, source)
			e.from, e.source = from, source
		}
		to.live[target] = n
		t.recording.add(e)
	}
	return nil
}

// know remembers the inode of a file that was created.
func (t *tracer) know(name string, n *node) error {
	var stat unix.Stat_t
	if err := unix.Lstat(name, &stat); err != nil {
		return err
	}
	t.inodes[stat.Ino] = n
	n.mode = fs.FileMode(stat.Mode & 0o777)
	return nil
}

func (t *tracer) open(fd int) (*node, error) {
	var stat unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", t.pid, fd), &stat); err != nil {
		return nil, err
	}
	n := t.inodes[stat.Ino]
	if n == nil {
		return nil, errors.New("was not recorded")
	}
	n.mode = fs.FileMode(stat.Mode & 0o777)
	return n, nil
}

// load reads what is there before the program starts.
func (t *tracer) load(name string) (*node, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	n := &node{isDir: info.IsDir()}
	if err := t.know(name, n); err != nil || !n.isDir {
		if err == nil {
			n.initialData, err = os.ReadFile(name)
		}
		return n, err
	}
	n.live, n.initialEntries = map[string]*node{}, map[string]*node{}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		child, err := t.load(filepath.Join(name, entry.Name()))
		if err != nil {
			return nil, err
		}
		n.live[entry.Name()], n.initialEntries[entry.Name()] = child, child
	}
	return n, nil
}
