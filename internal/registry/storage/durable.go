package storage

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"weak"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/base"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"golang.org/x/sys/unix"
)

// durableFiles is distribution's filesystem driver, except that what it has written or removed survives a power cut
// once the call has returned. A file system may lose what was not synced: the content of a file, and each entry of a
// directory. Distribution's driver syncs files and, after it has written a small one, its directory, but neither the
// directory after a move or a removal nor the parents of new directories.
//
// Nobody sees a change before it is durable: what a client is told, and what other content comes to rely on, is not
// lost. Uploads in progress are not durable, because their client begins again; what has arrived is
// synced only before the state of its digest is stored, which would otherwise vouch for it.
//
// It reads through distribution's driver. Writing is its own, because a wrapper around distribution's would keep its
// syncs of uploads, which cost more than those that are missing.
type durableFiles struct {
	storagedriver.StorageDriver // distribution's
	root                        string

	leftovers sync.Once // synced

	// made are directories that this process has created, each time as another value, until their parents are synced.
	made   map[string]*int
	making sync.Mutex // guards made
	mu     sync.Mutex
	// pending are files and directories that were named or removed; the channel is closed when their parent is synced.
	pending map[string]chan struct{}
	// complete are the files of uploads that have all their content and are synced. They stay locked until they are moved.
	complete map[string]*os.File
	// writers are the newest of each file. Distribution does not close all of them: the runtime closes their files.
	writers map[string]weak.Pointer[durableWriter]
}

// durable makes the driver of a directory durable. Base checks paths, and wraps errors, in the place of the driver's.
func durable(driver *filesystem.Driver, root string) storagedriver.StorageDriver {
	files := &durableFiles{
		StorageDriver: driver.StorageDriver, root: filepath.Clean(root),
		pending: map[string]chan struct{}{}, complete: map[string]*os.File{},
		writers: map[string]weak.Pointer[durableWriter]{}, made: map[string]*int{},
	}
	return &base.Base{StorageDriver: files}
}

// GetContent implements [storagedriver.StorageDriver], like all of these.
func (f *durableFiles) GetContent(ctx context.Context, name string) ([]byte, error) {
	f.settle(name)
	return f.StorageDriver.GetContent(ctx, name)
}

func (f *durableFiles) Reader(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	f.settle(name)
	return f.StorageDriver.Reader(ctx, name, offset)
}

func (f *durableFiles) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	f.settle(name)
	return f.StorageDriver.Stat(ctx, name)
}

// inUpload reports whether a file belongs to an upload in progress. No repository's name has an underscore there.
func inUpload(name string) bool { return strings.Contains(name, uploadsPart) }

const uploadsPart = "/_uploads/"

// uploadOf returns the file with the content of the upload whose digest's state is in a file.
func uploadOf(name string) (data string, ok bool) {
	dir, _, ok := strings.Cut(name, "/hashstates/")
	return dir + "/data", ok && inUpload(name)
}

func (f *durableFiles) path(name string) string { return filepath.Join(f.root, name) }

// PutContent replaces a small file as a whole.
func (f *durableFiles) PutContent(_ context.Context, name string, content []byte) error {
	target, lasting := f.path(name), !inUpload(name)
	if data, ok := uploadOf(name); ok {
		if f.isComplete(f.path(data)) {
			return nil // nothing will read it
		}
		if err := syncPath(f.path(data)); err != nil {
			return err
		}
	}
	made, err := f.makeParents(target, lasting)
	if err != nil {
		return err
	}
	temporary := target + "." + rand.Text() + ".tmp"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil && lasting {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = f.rename(temporary, target, lasting, made)
	}
	if err != nil {
		return errors.Join(err, ignoreMissingFile(os.Remove(temporary)))
	}
	return nil
}

// Move renames a file.
func (f *durableFiles) Move(_ context.Context, from, to string) error {
	source, target, lasting := f.path(from), f.path(to), !inUpload(to)
	if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
		return storagedriver.PathNotFoundError{Path: from}
	}
	made, err := f.makeParents(target, lasting)
	if err != nil {
		return err
	}
	// Of an upload that was committed, this is done.
	if !f.isComplete(source) {
		if err := syncPath(source); err != nil {
			return err
		}
	}
	if err := f.rename(source, target, lasting, made); err != nil {
		return err
	}
	f.forget(source)
	return nil
}

// Delete removes a file, or a directory with all that is in it.
func (f *durableFiles) Delete(ctx context.Context, name string) error {
	target := f.path(name)
	if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) {
		return storagedriver.PathNotFoundError{Path: name}
	} else if err != nil {
		return err
	}
	removed, grouped := ctx.Value(removalsKey{}).(func(dir string))
	if !inUpload(name) {
		f.syncLeftovers()
		if !grouped {
			defer f.change(target)()
		}
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	switch {
	case inUpload(name):
		f.forget(target)
		return nil
	case grouped:
		removed(filepath.Dir(target))
		return nil
	}
	return ignoreMissingFile(syncPath(filepath.Dir(target)))
}

// Writer returns a writer for an existing file, at its end, or for a new one. An upload that was removed does not begin
// again: the state of its digest would vouch for other content.
//
// Older writers of the file end, also those of requests that are still open: what they write would be in a blob, but
// not in its digest. Those of other processes do not: they lock the file until they close it.
func (f *durableFiles) Writer(ctx context.Context, name string, extend bool) (storagedriver.FileWriter, error) {
	target, lasting := f.path(name), !inUpload(name)
	if ctx.Value(statusKey{}) != nil {
		file, err := os.Stat(target)
		if err != nil {
			return nil, err
		}
		return uploadStatus{size: file.Size()}, nil
	}
	made, err := f.makeParents(target, lasting)
	if err != nil {
		return nil, err
	}
	flag := os.O_WRONLY
	if !extend {
		flag |= os.O_CREATE | os.O_TRUNC
	}
	w := &durableWriter{name: target, files: f, lasting: lasting, made: made}
	if err := w.open(flag); err != nil {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

type statusKey struct{}

// ForStatus returns a context in which a writer only knows its size, and leaves others alone.
func ForStatus(ctx context.Context) context.Context { return context.WithValue(ctx, statusKey{}, true) }

type uploadStatus struct {
	storagedriver.FileWriter // nil: a status is not written
	size                     int64
}

func (s uploadStatus) Size() int64 { return s.size }

func (uploadStatus) Close() error { return nil }

// durableWriter writes to a file. It does not buffer, so that everything can be synced by the file's name.
type durableWriter struct {
	name    string
	file    *os.File
	files   *durableFiles
	lasting bool
	made    []madeDir // its parents
	size    int64

	// mu is locked before that of an older writer of the file, and before that of files.
	mu    sync.Mutex
	ended error // why nothing more can be written
}

// open ends the file's older writer before it opens the file: otherwise that could become a blob meanwhile.
func (w *durableWriter) open(flag int) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files.mu.Lock()
	older := w.files.writers[w.name].Value()
	w.files.writers[w.name] = weak.Make(w)
	w.files.mu.Unlock()
	if older != nil {
		older.replace()
	}
	if w.files.isComplete(w.name) {
		return errWriterCommitted
	}
	if w.file, err = os.OpenFile(w.name, flag, 0o666); err != nil {
		return err
	}
	if err := lock(w.file); err != nil {
		return err
	}
	w.size, err = w.file.Seek(0, io.SeekEnd)
	return err
}

// lock locks a file that was just opened, which must still have its name: another process may have made it a blob. NFS
// and SMB pass the lock on to their server. Where there are no locks, there is one process.
func lock(file *os.File) error {
	err := flock(file, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errLocked
	case err != nil:
		return nil //nolint:nilerr // the file system has no locks
	}
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(file.Name())
	if err == nil && !os.SameFile(opened, named) {
		err = &fs.PathError{Op: "lock", Path: file.Name(), Err: fs.ErrNotExist}
	}
	return err
}

// flock is unix.Flock for a file that another goroutine may close.
func flock(file *os.File, how int) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if closed := conn.Control(func(fd uintptr) { err = unix.Flock(int(fd), how) }); closed != nil {
		return closed
	}
	return err
}

// replace ends the writing for another request of this process, which needs the lock. What was committed stays locked.
func (w *durableWriter) replace() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && !errors.Is(w.ended, errWriterCommitted) {
		_ = flock(w.file, unix.LOCK_UN) // it may be closed
	}
	w.ended = cmp.Or(w.ended, ErrWriterReplaced)
}

// unlock closes a file. A process that is just being started may have it open, too, and with it the lock.
func unlock(file *os.File) error {
	if file != nil {
		_ = flock(file, unix.LOCK_UN) // or there are no locks
	}
	return file.Close()
}

// end ends the writing, unless it has ended, and returns why it has.
func (w *durableWriter) end(why error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = cmp.Or(w.ended, why)
	return w.ended
}

func (w *durableWriter) Size() int64 { return w.size }

func (w *durableWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return 0, w.ended
	}
	n, err := w.file.Write(p)
	w.size += int64(n)
	return n, err
}

var (
	errWriterClosed    = errors.New("already closed")
	errWriterCommitted = errors.New("already committed")
	errLocked          = errors.New("a request to another replica still continues the upload: retry when it has ended")

	// ErrWriterReplaced is the error of a writer whose file has a newer one.
	ErrWriterReplaced = errors.New("another request continues the upload")
)

// Close ends the writing. What was not committed is not synced.
func (w *durableWriter) Close() (err error) {
	_ = w.end(errWriterClosed)
	w.files.mu.Lock()
	kept := w.file != nil && w.files.complete[w.name] == w.file // until it is forgotten
	w.files.mu.Unlock()
	if !kept {
		err = unlock(w.file)
	}
	w.files.mu.Lock()
	if w.files.writers[w.name] == weak.Make(w) {
		delete(w.files.writers, w.name)
	}
	w.files.mu.Unlock()
	return err
}

// Cancel removes the file, also if it is closed, unless it has a newer writer. Distribution removes the rest.
func (w *durableWriter) Cancel(context.Context) error {
	if err := w.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	if why := w.end(nil); errors.Is(why, ErrWriterReplaced) {
		return why
	}
	w.files.forget(w.name)
	return ignoreMissingFile(os.Remove(w.name))
}

// Commit makes the file durable. An upload cannot be continued from then on: its content is being verified.
func (w *durableWriter) Commit(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return w.ended
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	if w.lasting {
		if err := w.files.syncName(w.name, w.made); err != nil {
			return err
		}
	} else {
		w.files.mu.Lock()
		w.files.complete[w.name] = w.file
		w.files.mu.Unlock()
	}
	w.ended = errWriterCommitted
	return nil
}

func (f *durableFiles) isComplete(upload string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.complete[upload] != nil
}

// forget is for the file of an upload that was moved, or for its directory, which was removed.
func (f *durableFiles) forget(upload string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range []string{upload, filepath.Join(upload, "data")} {
		if locked := f.complete[file]; locked != nil {
			_ = unlock(locked)
		}
		delete(f.complete, file)
		delete(f.writers, file)
	}
}

// rename gives a file, whose content is synced, its name, and syncs that.
func (f *durableFiles) rename(from, to string, lasting bool, made []madeDir) error {
	if !lasting {
		return os.Rename(from, to)
	}
	defer f.change(to)()
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return f.syncName(to, made)
}

// change begins a change of a file or a directory. Those who are about to read it wait until it ends.
func (f *durableFiles) change(target string) (end func()) {
	done := make(chan struct{})
	f.mu.Lock()
	before := f.pending[target]
	f.pending[target] = done
	f.mu.Unlock()
	return func() {
		if before != nil {
			<-before
		}
		f.mu.Lock()
		if f.pending[target] == done {
			delete(f.pending, target)
		}
		f.mu.Unlock()
		close(done)
	}
}

// settle waits until changes are durable of a file that is about to be read.
func (f *durableFiles) settle(name string) {
	var pending []chan struct{}
	f.mu.Lock()
	for part := f.path(name); len(f.pending) > 0 && len(part) > len(f.root); part = filepath.Dir(part) {
		if done := f.pending[part]; done != nil {
			pending = append(pending, done)
		}
	}
	f.mu.Unlock()
	for _, done := range pending {
		<-done
	}
}

// syncLeftovers makes durable what a process has left that was killed before it could do so. The content that it has
// written does not count as stored yet, but this process sees it and may rely on it.
func (f *durableFiles) syncLeftovers() {
	f.leftovers.Do(func() {
		root, err := os.Open(f.root)
		if err != nil {
			return // the first write creates it
		}
		defer root.Close()
		_ = unix.Syncfs(int(root.Fd())) // errors are those of files that nobody has been told about
	})
}

// madeDir is a directory whose parent is not synced since this process has created it. All that rely on it do that.
type madeDir struct {
	path     string
	creation *int
}

// makeParents creates the missing parents of a file. If it must last, the caller syncs them with its name.
func (f *durableFiles) makeParents(target string, lasting bool) (made []madeDir, err error) {
	f.syncLeftovers()
	dir := filepath.Dir(target)
	if lasting {
		return f.makeDir(dir)
	}
	// The repository is there to stay.
	made, err = f.makeDir(filepath.Join(dir[:strings.Index(dir, uploadsPart)], uploadsPart))
	if err == nil {
		err = f.syncMade(made)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o777) // minus the umask, like distribution's
	}
	return nil, err
}

// makeDir creates a directory, unless it exists. It returns it, and its parents, if they are not durable.
func (f *durableFiles) makeDir(dir string) ([]madeDir, error) {
	f.making.Lock()
	err := os.Mkdir(dir, 0o777) // minus the umask, like distribution's
	if err == nil {
		f.made[dir] = new(int)
	}
	creation := f.made[dir]
	f.making.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := f.makeDir(filepath.Dir(dir)); err != nil {
			return nil, err
		}
		return f.makeDir(dir)
	case err != nil && !errors.Is(err, fs.ErrExist):
		return nil, err
	case creation == nil:
		return nil, nil
	case dir == f.root:
		return []madeDir{{dir, creation}}, nil
	}
	parents, err := f.makeDir(filepath.Dir(dir))
	return append(parents, madeDir{dir, creation}), err
}

// syncName syncs the name of a file, and those of its parents.
func (f *durableFiles) syncName(name string, parents []madeDir) error {
	return cmp.Or(syncPath(filepath.Dir(name)), f.syncMade(parents))
}

// syncMade makes directories durable. From then on, others rely on them.
func (f *durableFiles) syncMade(dirs []madeDir) error {
	for _, dir := range dirs {
		if err := syncPath(filepath.Dir(dir.path)); err != nil {
			return err
		}
	}
	f.making.Lock()
	defer f.making.Unlock()
	for _, dir := range dirs {
		if f.made[dir.path] == dir.creation {
			delete(f.made, dir.path)
		}
	}
	return nil
}

// syncPath syncs a file or a directory. It opens files read-only, which is enough.
func syncPath(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("making %s durable: %w", name, err)
	}
	return nil
}

// ignoreMissingFile returns err unless a file is missing.
func ignoreMissingFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

type removalsKey struct{}

// WithRemovals returns a context for removals that need not be durable one by one. They are when flush returns, which
// syncs each directory once.
func WithRemovals(ctx context.Context) (grouped context.Context, flush func() error) {
	var mu sync.Mutex
	dirs := map[string]bool{}
	removed := func(dir string) {
		mu.Lock()
		defer mu.Unlock()
		dirs[dir] = true
	}
	return context.WithValue(ctx, removalsKey{}, removed), func() error {
		mu.Lock()
		defer mu.Unlock()
		for dir := range dirs {
			if err := ignoreMissingFile(syncPath(dir)); err != nil {
				return err
			}
		}
		clear(dirs)
		return nil
	}
}
