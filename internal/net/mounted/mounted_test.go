package mounted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// The kubelet replaces the generation of a mounted Secret while files are read.
func TestFilesAreOfOneGeneration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount := func(n int) {
		t.Helper()
		generation := fmt.Sprintf("..%d", n)
		for _, err := range []error{
			os.Mkdir(filepath.Join(dir, generation), 0o700),
			os.WriteFile(filepath.Join(dir, generation, "a.pub"), []byte(fmt.Sprint(n)), 0o600),
			os.WriteFile(filepath.Join(dir, generation, "b.pub"), []byte(fmt.Sprint(n)), 0o600),
			os.Symlink(generation, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
			os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", n-1))),
		} {
			require.NoError(t, err)
		}
	}
	mount(0)
	for _, name := range []string{"a.pub", "b.pub"} {
		require.NoError(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			var a, b []byte
			_, err := Read(dir, func(generation string) (err error) {
				if a, err = os.ReadFile(filepath.Join(generation, "a.pub")); err == nil {
					b, err = os.ReadFile(filepath.Join(generation, "b.pub"))
				}
				return err
			})
			if err != nil && !errors.Is(err, errReplaced) {
				t.Error(err)
				return
			}
			if err == nil && string(a) != string(b) {
				t.Errorf("read %s and %s", a, b)
				return
			}
		}
	}()
	for n := 1; n < 300; n++ {
		mount(n)
	}
	close(stop)
	<-stopped
}

func TestPlainDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if _, err := ReadFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
	if data, err := ReadFile(path); string(data) != "content" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
}
