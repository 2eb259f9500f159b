package storage

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
)

func TestChangesAreSeenWhenTheyAreDurable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	driver, err := Open(t.Context(), configuration.Storage{DriverFilesystem: {"rootdirectory": root}})
	if err == nil {
		err = driver.PutContent(t.Context(), "/dir/file", []byte("content"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, changed := range []string{"dir/file", "dir"} {
		end := driver.(*durableDriver).files.change(filepath.Join(root, changed))
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
