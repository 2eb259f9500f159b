package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// observedDriver notes at which sizes writers are opened, and what is cancelled.
type observedDriver struct {
	storagedriver.StorageDriver
	opened    *[]int64
	cancelled *[]string
}

func (d observedDriver) Writer(ctx context.Context, name string, extend bool) (storagedriver.FileWriter, error) {
	w, err := d.StorageDriver.Writer(ctx, name, extend)
	if err != nil {
		return nil, err
	}
	*d.opened = append(*d.opened, w.Size())
	return observedWriter{w, d, name}, nil
}

type observedWriter struct {
	storagedriver.FileWriter
	driver observedDriver
	name   string
}

func (w observedWriter) Cancel(ctx context.Context) error {
	*w.driver.cancelled = append(*w.driver.cancelled, w.name)
	return w.FileWriter.Cancel(ctx)
}

func TestLargeBlobsHaveLargeParts(t *testing.T) {
	t.Parallel()
	driver := filesystem.New(filesystem.DriverParameters{RootDirectory: t.TempDir(), MaxThreads: 25})
	var opened []int64
	d := &partsDriver{driver, observedDriver{driver, &opened, new([]string)}, 10, 25}
	content := bytes.Repeat([]byte("0123456789abcdefg"), 20)
	for _, step := range []int{1, 7, 64, 1000} {
		opened = nil
		name := fmt.Sprint("/blob-", step)
		w := require.Value(d.Writer(t.Context(), name, false))(t)
		for rest := content; len(rest) > 0; {
			n, err := w.Write(rest[:min(step, len(rest))])
			if err != nil || n != min(step, len(rest)) {
				t.Fatal(n, err)
			}
			rest = rest[n:]
		}
		require.NoError(t, errors.Join(w.Commit(t.Context()), w.Close()))
		if got, err := d.GetContent(t.Context(), name); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes at once: %d bytes, %v", step, len(got), err)
		}
		if len(opened) != 1 || opened[0] < 25 || opened[0] > 30 {
			t.Errorf("%d bytes at once: large parts from %d on", step, opened)
		}
	}
	if smallPart*2500 != largeFrom || largeFrom+7500*int64(largePart) < 1<<40 || 10_000*int64(copyPart) < 1<<40 {
		t.Error("1 TiB needs more than 10,000 parts")
	}
}

// D7: distribution's purge, and a client that cancels, remove the directory of an upload.
func TestPartsOfARemovedUploadAreAborted(t *testing.T) {
	t.Parallel()
	var cancelled []string
	d := &partsDriver{observedDriver{inmemory.New(), new([]int64), &cancelled}, nil, smallPart, largeFrom}
	upload := UploadDir("a", "01a22515-6a77-764f-b5ea-69ef1e791ae0")
	require.NoError(t, d.PutContent(t.Context(), upload+"/data", []byte("part")))
	require.NoError(t, d.Delete(t.Context(), upload))
	if len(cancelled) != 1 || cancelled[0] != upload+"/data" {
		t.Errorf("aborted %q", cancelled)
	}
}

// N4: two processes continue an upload on a shared volume.
func TestAnUploadHasOneWriterAcrossProcesses(t *testing.T) {
	t.Parallel()
	root, ctx := t.TempDir(), t.Context()
	process := func() storagedriver.StorageDriver {
		return durable(filesystem.New(filesystem.DriverParameters{RootDirectory: root, MaxThreads: 25}), root)
	}
	a, b := process(), process()
	data := UploadDir("a", "01a22515-6a77-764f-b5ea-69ef1e791ae0") + "/data"
	write := func(d storagedriver.StorageDriver, extend bool, text string) storagedriver.FileWriter {
		t.Helper()
		w, err := d.Writer(ctx, data, extend)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		require.NoError(t, err)
		return w
	}
	require.NoError(t, write(a, false, "first ").Close())
	stalled := write(b, true, "second ")
	if _, err := a.Writer(ctx, data, true); err == nil || !strings.Contains(err.Error(), "another replica") {
		t.Fatalf("a second writer: %v", err)
	}
	require.NoError(t, stalled.Close())
	w := write(a, true, "third")
	require.NoError(t, w.Commit(ctx))
	require.NoError(t, w.Close())
	// It is being verified.
	if _, err := b.Writer(ctx, data, true); err == nil {
		t.Fatal("a writer of a complete upload")
	}
	require.NoError(t, a.Move(ctx, data, "/blob"))
	if _, err := b.Writer(ctx, data, true); err == nil {
		t.Fatal("a writer of a finished upload")
	}
	if got, err := a.GetContent(ctx, "/blob"); err != nil || string(got) != "first second third" {
		t.Errorf("%q, %v", got, err)
	}
	if left, err := filepath.Glob(root + "/*"); err != nil || len(left) != 2 {
		t.Errorf("%q", left)
	}
}
