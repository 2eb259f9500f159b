package blobstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// childVariable says to the test binary that it is the child of a test, and which
// one: its value is the child's name and its arguments.
const childVariable = "BLOBSTORE_TEST_CHILD"

// raceExit keeps the race detector from waiting for a second at a process's end.
const raceExit = "GORACE=atexit_sleep_ms=0"

// children are what child processes do.
var children = map[string]func(dir string, arg int) error{
	"churn": churn,
	"slow":  slow,
	"fill":  fill,
}

func TestMain(m *testing.M) {
	name, rest, isChild := strings.Cut(os.Getenv(childVariable), "|")
	if !isChild {
		os.Exit(m.Run())
	}
	arg, dir, _ := strings.Cut(rest, "|")
	n, err := strconv.Atoi(arg)
	if err == nil {
		err = children[name](dir, n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process that does one of children; it is killed with the test.
func child(t *testing.T, name, dir string, arg int) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), raceExit, childVariable+"="+name+"|"+strconv.Itoa(arg)+"|"+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// waiting starts a child that writes "here" and goes on until it is killed. What it writes to stderr is in its
// buffer.
func waiting(t *testing.T, name, dir string, arg int) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, stderr := child(t, name, dir, arg), new(bytes.Buffer)
	cmd.Stderr = stderr
	out := require.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	if _, err := io.ReadFull(out, make([]byte, len("here"))); err != nil {
		t.Fatal(err, stderr)
	}
	return cmd, stderr
}

// slow fetches a blob as far as arg, says so, and stays there.
func slow(dir string, arg int) error {
	s, err := Open(dir, Options{})
	if err != nil {
		return err
	}
	raw, desc := content(1, 1<<20)
	_, err = s.Ensure(ctx, desc, func(_ context.Context, offset int64) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(raw[offset:arg]), forever{})), nil
	})
	return err
}

type forever struct{}

func (forever) Read([]byte) (int, error) {
	fmt.Println("here")
	time.Sleep(time.Hour) // select {} would be a deadlock to the runtime
	return 0, nil
}

func TestAKilledDownloadIsResumed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	raw, desc := content(1, 1<<20)
	for _, at := range []int{100_000, 700_000} {
		cmd, _ := waiting(t, "slow", dir, at)
		shortly, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		if _, err := openStore(t, dir, Options{}).Ensure(shortly, desc, noFetch); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Ensure does not wait for another process:", err)
		}
		cancel()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	var offsets []int64
	fetched, err := openStore(t, dir, Options{}).Ensure(ctx, desc, from(raw, &offsets))
	if err != nil || fetched != 1<<20-700_000 || len(offsets) != 1 || offsets[0] != 700_000 {
		t.Error(fetched, offsets, err)
	}
	mustBeSound(t, dir)
}

const churnSize = 100_000

// churn does everything that changes a store, until it is killed.
func churn(dir string, seed int) error {
	source, err := Open(dir+".source", Options{})
	if err != nil {
		return err
	}
	s, err := Open(dir, Options{Cache: true, MaxSize: 6 * churnSize})
	if err != nil {
		return err
	}
	copies, err := Open(dir, Options{})
	if err != nil {
		return err
	}
	copies.link = func(string, string) error { return unix.EXDEV }
	fmt.Println("here")
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	for range 2 {
		r := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() {
			for {
				raw, desc := content(byte(r.IntN(12)), churnSize)
				var err error
				switch r.IntN(7) {
				case 0:
					err = s.Put(ctx, desc, raw)
				case 1, 2:
					if err = source.Put(ctx, desc, raw); err == nil {
						err = []*Store{s, copies}[r.IntN(2)].Link(ctx, desc, source)
					}
				case 3:
					_, err = s.Prune(ctx, 0)
				case 4:
					err = s.room.shrink(ctx, s)
				default:
					_, err = s.Ensure(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
						return io.NopCloser(&trickle{bytes.NewReader(raw[offset:])}), nil
					})
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNoRoom) {
					select {
					case failed <- err:
					default:
					}
					return
				}
			}
		})
	}
	return <-failed
}

// trickle gives a little at a time.
type trickle struct{ r io.Reader }

func (t *trickle) Read(b []byte) (int, error) { return t.r.Read(b[:min(len(b), 300)]) }

func TestKilledAtAnyTime(t *testing.T) {
	kills := 150
	if testing.Short() {
		t.Log("15 kills instead of 150: -short is set")
		kills = 15
	}
	dir := filepath.Join(t.TempDir(), "store")
	openStore(t, dir, Options{})
	var partials int
	for i := range kills {
		var cmds []*exec.Cmd
		var outputs []*bytes.Buffer
		for j := range 2 {
			cmd, stderr := waiting(t, "churn", dir, 2*i+j)
			cmds, outputs = append(cmds, cmd), append(outputs, stderr)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		for j, cmd := range cmds {
			_ = cmd.Process.Kill()
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Fatalf("ended by itself: %v\n%s", err, outputs[j])
			}
		}
		mustBeSound(t, dir)
		info := require.Value(openStore(t, dir, Options{}).Info(ctx))(t)
		partials += info.Partials
	}
	if partials == 0 {
		t.Error("no download was interrupted: the test shows nothing")
	}
	s := openStore(t, dir, Options{})
	for seed := range byte(12) {
		raw, desc := content(seed, churnSize)
		if _, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil {
			t.Error(err)
		}
	}
	if n := mustBeSound(t, dir); n != 12 {
		t.Error(n)
	}
	for _, name := range ingested(t, s) {
		// A process was killed before it found that the other one had finished this download.
		if info, err := os.Stat(filepath.Join(dir, ingestDir, name)); err != nil || info.Size() > 0 {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// inNamespace runs a test as a child in a mount namespace of its own, and is true
// in that child.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const variable = "BLOBSTORE_TEST_NAMESPACE"
	if os.Getenv(variable) == t.Name() {
		require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs to mount a file system that is full or read-only: run it as root")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), raceExit, variable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("needs a mount namespace (%v): run it as root of the machine", err)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func unmountWhenDone(t *testing.T, dir string) {
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestDiskFull(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	s := openStore(t, dir, Options{})
	unmountWhenDone(t, dir)
	small := put(t, s, 2, 1<<20)
	raw, desc := content(1, 8<<20)
	source := openStore(t, t.TempDir(), Options{})
	put(t, source, 1, 8<<20)
	for name, fill := range map[string]func() error{
		"Ensure": func() error { _, err := s.Ensure(ctx, desc, from(raw, nil)); return err },
		"Link":   func() error { return s.Link(ctx, desc, source) },
	} {
		err := fill()
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the disk of "+dir+" is full") {
			t.Errorf("%s: %v", name, err)
		}
		if len(ingested(t, s)) > 0 || s.Has(desc) {
			t.Errorf("%s: left %v", name, ingested(t, s))
		}
		mustRead(t, s, small)
	}
	if n := mustBeSound(t, dir); n != 1 {
		t.Error(n)
	}
	other := openStore(t, t.TempDir(), Options{})
	if err := other.Link(ctx, small, s); err != nil {
		t.Error("from another file system:", err)
	}
	mustBeSound(t, other.dir)
}

func TestReadOnly(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	desc := put(t, openStore(t, dir, Options{}), 1, 1000)
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	unmountWhenDone(t, dir)
	open := openStore(t, dir, Options{})
	require.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, path := range []string{dir, filepath.Join(dir, "new")} {
		_, err := Open(path, Options{MaxSize: 1})
		for _, want := range []string{path, "read-only file system", "--store-dir", "--no-store"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant: %s", err, want)
			}
		}
	}
	// It was opened before it became so.
	if raw := mustRead(t, open, desc); digest.FromBytes(raw) != desc.Digest {
		t.Error("it cannot be read")
	}
	raw, other := content(2, 1000)
	if _, err := open.Ensure(ctx, other, from(raw, nil)); !errors.Is(err, unix.EROFS) {
		t.Error(err)
	}
}

// Of a user without privileges, whom modes mean something.
func TestPermissions(t *testing.T) {
	if os.Getuid() == 0 {
		const variable = "BLOBSTORE_TEST_USER"
		dir := require.Value(os.MkdirTemp("", "blobstore-user-"))(t)
		defer os.RemoveAll(dir)
		require.NoError(t, os.Chown(dir, 65534, 65534))
		exe := filepath.Join(dir, "blobstore.test")
		binary, err := os.ReadFile(os.Args[0])
		if err == nil {
			err = os.WriteFile(exe, binary, 0o755)
		}
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestPermissions$", "-test.v")
		cmd.Env = append(os.Environ(), raceExit, variable+"=1", "TMPDIR="+dir)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
			Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	desc := put(t, s, 1, 1000)
	raw, _ := content(1, 1000)
	require.NoError(t, os.Chmod(s.path(desc.Digest), 0))
	if fetched, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil || fetched != 1000 {
		t.Error("a blob that may not be read is not repaired:", fetched, err)
	}
	mustBeSound(t, dir)

	// A damaged blob where nothing can be removed.
	require.NoError(t, flipBit(s.path(desc.Digest)))
	blobs := filepath.Dir(s.path(desc.Digest))
	require.NoError(t, os.Chmod(blobs, 0o555))
	if _, err := s.Ensure(ctx, desc, from(raw, nil)); err == nil || errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "is damaged (its content does not match its digest) and cannot be removed") {
		t.Error(err)
	}
	if err := errors.Join(os.Chmod(blobs, 0o755), os.Chmod(dir, 0o555),
		os.RemoveAll(filepath.Join(dir, ingestDir))); err == nil {
		t.Error("modes mean nothing here")
	}
	locked := filepath.Join(t.TempDir(), "locked")
	require.NoError(t, os.Mkdir(locked, 0o555))
	for _, path := range []string{locked, filepath.Join(locked, "new")} {
		if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "permission denied") ||
			!strings.Contains(err.Error(), "--no-store") {
			t.Error(err)
		}
	}
	require.NoError(t, os.Chmod(dir, 0o755))
}
