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
	"slices"
	"strings"
	"sync"
	"weak"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/base"
	"golang.org/x/sys/unix"
)

// durableDriver is distribution's filesystem driver, except that what it has written or removed survives a power cut
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
type durableDriver struct {
	storagedriver.StorageDriver // distribution's
	files                       *durableFiles
	writing                     base.Base // of files: checks paths, and wraps errors
}

// durable returns a durableDriver for the directory of a driver.
func durable(driver storagedriver.StorageDriver, root string) *durableDriver {
	files := &durableFiles{
		StorageDriver: driver, root: filepath.Clean(root),
		pending: map[string]chan struct{}{}, complete: map[string]*os.File{},
		writers: map[string]weak.Pointer[durableWriter]{},
	}
	files.making.count = map[string]int{}
	return &durableDriver{driver, files, base.Base{StorageDriver: files}}
}

// GetContent implements [storagedriver.StorageDriver], like all of these.
func (d *durableDriver) GetContent(ctx context.Context, name string) ([]byte, error) {
	d.files.settle(name)
	return d.StorageDriver.GetContent(ctx, name)
}

func (d *durableDriver) Reader(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	d.files.settle(name)
	return d.StorageDriver.Reader(ctx, name, offset)
}

func (d *durableDriver) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	d.files.settle(name)
	return d.StorageDriver.Stat(ctx, name)
}

func (d *durableDriver) PutContent(ctx context.Context, name string, content []byte) error {
	return d.writing.PutContent(ctx, name, content)
}

func (d *durableDriver) Writer(ctx context.Context, name string, extend bool) (storagedriver.FileWriter, error) {
	return d.writing.Writer(ctx, name, extend)
}

func (d *durableDriver) Move(ctx context.Context, from, to string) error {
	return d.writing.Move(ctx, from, to)
}

func (d *durableDriver) Delete(ctx context.Context, name string) error {
	return d.writing.Delete(ctx, name)
}

// durableFiles are the writing methods. Its reading ones are distribution's.
type durableFiles struct {
	storagedriver.StorageDriver
	root string

	leftovers sync.Once // synced

	// making counts the calls that rely on a new directory and have not synced its parent yet.
	making struct {
		sync.Mutex
		count map[string]int
	}
	mu sync.Mutex
	// pending are files and directories that have got their name or were removed, but whose parent is not synced. The
	// channel is closed then.
	pending map[string]chan struct{}
	// complete are the files of uploads that have all their content and are synced. They stay locked until they are moved.
	complete map[string]*os.File
	// writers are the newest of each file. Distribution does not close all of them: the runtime closes their files.
	writers map[string]weak.Pointer[durableWriter]
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
	defer made.abandon()
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
		err = f.rename(temporary, target, made)
	}
	if err != nil {
		return errors.Join(err, ignoreMissingFile(os.Remove(temporary)))
	}
	return nil
}

// Move renames a file.
func (f *durableFiles) Move(_ context.Context, from, to string) error {
	source, target := f.path(from), f.path(to)
	if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
		return storagedriver.PathNotFoundError{Path: from}
	}
	made, err := f.makeParents(target, !inUpload(to))
	if err != nil {
		return err
	}
	defer made.abandon()
	// Of an upload that was committed, this is done.
	if !f.isComplete(source) {
		if err := syncPath(source); err != nil {
			return err
		}
	}
	if err := f.rename(source, target, made); err != nil {
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
	removed, grouped := ctx.Value(removalsKey{}).(*removals)
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
		removed.add(filepath.Dir(target))
		return nil
	}
	return ignoreMissingFile(syncPath(filepath.Dir(target)))
}

// Writer returns a writer for an existing file, at its end, or for a new one. An upload that was removed does not begin
// again: the state of its digest would vouch for other content.
//
// Older writers of the file end, also those of requests that are still open: what they write would be in a blob, but
// not in its digest. Those of other processes do not: the file is locked, and there is no other writer until they close
// it.
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
	w := &durableWriter{name: target, files: f, made: made}
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
	name  string
	file  *os.File
	files *durableFiles
	made  *madeParents
	size  int64

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
	w.made.abandon()
	return err
}

// Cancel removes the file, also if it is closed: distribution then removes the rest of the upload. The file of a newer
// writer stays.
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
	if err := w.made.sync(filepath.Dir(w.name)); err != nil {
		return err
	}
	if !w.made.lasting {
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
func (f *durableFiles) rename(from, to string, made *madeParents) error {
	if !made.lasting {
		return os.Rename(from, to)
	}
	defer f.change(to)()
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return made.sync(filepath.Dir(to))
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

// madeParents are the parents of a file that a call creates. If none of it must last, nothing is synced.
type madeParents struct {
	files   *durableFiles
	lasting bool
	made    []string
}

// makeParents creates the missing parents of a file. The caller calls sync when the file has its name, and abandon at
// the end.
func (f *durableFiles) makeParents(target string, lasting bool) (*madeParents, error) {
	m := &madeParents{files: f, lasting: lasting}
	f.syncLeftovers()
	dir := filepath.Dir(target)
	if !lasting {
		// The repository is there to stay.
		uploads := filepath.Join(dir[:strings.Index(dir, uploadsPart)], uploadsPart)
		if err := m.make(uploads); err != nil {
			m.abandon()
			return nil, err
		}
		m.abandon()
		return m, os.MkdirAll(dir, 0o777) // minus the umask, like distribution's
	}
	if err := m.make(dir); err != nil {
		m.abandon()
		return nil, err
	}
	return m, nil
}

// make creates a directory, unless it exists. It counts as created by this call, too, while another call has not synced
// its parent. So do the parents of both.
func (m *madeParents) make(dir string) error {
	if slices.Contains(m.made, dir) {
		return nil
	}
	making := &m.files.making
	making.Lock()
	err := os.Mkdir(dir, 0o777) // minus the umask, like distribution's
	inProgress := errors.Is(err, fs.ErrExist) && making.count[dir] > 0
	if err == nil || inProgress {
		making.count[dir]++
		m.made = append(m.made, dir)
	}
	making.Unlock()
	switch {
	case (err == nil || inProgress) && dir != m.files.root:
		return m.make(filepath.Dir(dir))
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := m.make(filepath.Dir(dir)); err != nil {
			return err
		}
		return m.make(dir)
	}
	return err
}

// sync syncs a directory, and the parents of those that were created.
func (m *madeParents) sync(dir string) error {
	if !m.lasting {
		return nil
	}
	err := syncPath(dir)
	for _, made := range m.made {
		err = cmp.Or(err, syncPath(filepath.Dir(made)))
	}
	if err == nil {
		m.forget()
	}
	return err
}

// abandon syncs the parents although the call has failed, because others may use what it has created.
func (m *madeParents) abandon() {
	for _, made := range m.made {
		_ = syncPath(filepath.Dir(made))
	}
	m.forget()
}

func (m *madeParents) forget() {
	making := &m.files.making
	making.Lock()
	defer making.Unlock()
	for _, made := range m.made {
		if making.count[made]--; making.count[made] == 0 {
			delete(making.count, made)
		}
	}
	m.made = nil
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

// removals are directories in which entries were removed, to sync each once. It is in a context of the sweep.
type removals struct {
	mu   sync.Mutex
	dirs map[string]bool
}

type removalsKey struct{}

// WithRemovals returns a context for removals that need not be durable one by one. They are when sync returns.
func WithRemovals(ctx context.Context) (grouped context.Context, sync func() error) {
	r := &removals{dirs: map[string]bool{}}
	return context.WithValue(ctx, removalsKey{}, r), r.sync
}

func (r *removals) add(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirs[dir] = true
}

func (r *removals) sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir := range r.dirs {
		if err := ignoreMissingFile(syncPath(dir)); err != nil {
			return err
		}
	}
	clear(r.dirs)
	return nil
}
