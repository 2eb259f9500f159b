package storage

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/base"

	"github.com/zarf-dev/zarf-registry/test/require"
)

type opened struct {
	storagedriver.StorageDriver
	files *durableFiles
}

func openDurable(t *testing.T, root string) opened {
	t.Helper()
	driver := require.Value(Open(t.Context(), configuration.Storage{DriverFilesystem: {"rootdirectory": root}}))(t)
	return opened{driver, driver.(*base.Base).StorageDriver.(*durableFiles)}
}

func TestChangesAreSeenWhenTheyAreDurable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	driver := openDurable(t, root)
	require.NoError(t, driver.PutContent(t.Context(), "/dir/file", []byte("content")))
	for _, changed := range []string{"dir/file", "dir"} {
		end := driver.files.change(filepath.Join(root, changed))
		seen := make(chan error)
		for _, read := range []func() error{
			func() error { _, err := driver.Stat(t.Context(), "/dir/file"); return err },
			func() error { _, err := driver.GetContent(t.Context(), "/dir/file"); return err },
			func() error { _, err := driver.Reader(t.Context(), "/dir/file", 0); return err },
		} {
			go func() { seen <- read() }()
		}
		select {
		case <-seen:
			t.Errorf("a file is read while %s is not durable", changed)
		case <-time.After(100 * time.Millisecond):
		}
		end()
		for range 3 {
			if err := <-seen; err != nil {
				t.Error(err)
			}
		}
	}
}

// What a request sends that is still open must not get into a blob that was verified.
func TestTheNewestWriterOfAnUploadIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	driver := openDurable(t, t.TempDir())
	const upload, blob = "/a/_uploads/1/data", "/blob/data"
	writer := func(extend bool) storagedriver.FileWriter {
		return require.Value(driver.Writer(t.Context(), upload, extend))(t)
	}
	write := func(w storagedriver.FileWriter, content string) error {
		_, err := w.Write([]byte(content))
		return err
	}
	first, second, newest := writer(false), writer(true), writer(true)
	try := func(when string) {
		if write(second, "attack!") == nil || second.Commit(t.Context()) == nil || first.Cancel(t.Context()) == nil {
			t.Errorf("an older writer changes something %s", when)
		}
	}
	try("at first")
	require.NoError(t, errors.Join(write(newest, "content"), newest.Commit(t.Context()), newest.Close()))
	// Distribution verifies it here.
	if _, err := driver.Writer(t.Context(), upload, true); err == nil {
		t.Error("a committed upload continues")
	}
	try("after the commit")
	require.NoError(t, driver.Move(t.Context(), upload, blob))
	try("after the move")
	if write(newest, "attack!") == nil {
		t.Error("a moved file is written")
	}
	if content, err := driver.GetContent(t.Context(), blob); err != nil || string(content) != "content" {
		t.Errorf("the blob is %q, %v", content, err)
	}
	if files := driver.files; len(files.writers)+len(files.complete) > 0 {
		t.Errorf("%v and %v are left", files.writers, files.complete)
	}
}

func TestWritersOfAnUploadAtOnce(t *testing.T) {
	t.Parallel()
	driver := openDurable(t, t.TempDir())
	require.NoError(t, driver.PutContent(t.Context(), "/a/_uploads/1/data", nil))
	var writing sync.WaitGroup
	var written atomic.Int64
	for range 8 {
		writing.Go(func() {
			for range 50 {
				w, err := driver.Writer(t.Context(), "/a/_uploads/1/data", true)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := w.Write([]byte("x")); err == nil {
					written.Add(1)
				}
				_ = w.Close()
			}
		})
	}
	writing.Wait()
	// Otherwise one has overwritten what another has appended.
	if info, err := driver.Stat(t.Context(), "/a/_uploads/1/data"); err != nil || info.Size() != written.Load() {
		t.Errorf("written are %d bytes, stored is %v, %v", written.Load(), info, err)
	}
}

func TestAnUploadThatBecomesABlobIsNotOpened(t *testing.T) {
	t.Parallel()
	driver := openDurable(t, t.TempDir())
	w := require.Value(driver.Writer(t.Context(), "/a/_uploads/1/data", false))(t)
	older, files := w.(*durableWriter), driver.files
	older.mu.Lock() // as if it were committed
	opened := make(chan error)
	go func() {
		_, err := driver.Writer(t.Context(), "/a/_uploads/1/data", true)
		opened <- err
	}()
	for waiting := false; !waiting; time.Sleep(time.Millisecond) {
		files.mu.Lock()
		waiting = files.writers[older.name].Value() != older
		files.mu.Unlock()
	}
	require.NoError(t, driver.Move(t.Context(), "/a/_uploads/1/data", "/blob/data"))
	older.mu.Unlock()
	if <-opened == nil {
		t.Error("a blob is open for writing")
	}
}

// What is below a directory that another call has not synced yet needs that, too, also if that call has failed.
func TestDirectoriesInProgressAreSynced(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	driver := openDurable(t, root)
	for _, tt := range []struct {
		file string
		sync bool
		want []string
	}{
		{"x/_layers/1/link", false, []string{"x", "x/_layers", "x/_layers/1"}},
		{"x/_layers/2/link", true, []string{"x", "x/_layers", "x/_layers/2"}},
		{"x/_layers/1/link", true, []string{"x/_layers/1"}},
		{"x/_layers/1/link", true, nil},
	} {
		made, err := driver.files.makeParents(filepath.Join(root, tt.file), true)
		if err == nil && tt.sync {
			err = driver.files.syncMade(made)
		}
		var got []string
		for _, dir := range made {
			got = append(got, strings.TrimPrefix(dir.path, root+"/"))
		}
		if !slices.Equal(got, tt.want) || err != nil {
			t.Errorf("%s relies on %q, want %q; %v", tt.file, got, tt.want, err)
		}
	}
}
