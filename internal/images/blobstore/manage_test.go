package blobstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// aged is a new directory with ten blobs of 100 bytes, blob i last used i+1 hours
// ago, and a partial download of 50 bytes that was begun 20 hours ago.
func aged(t *testing.T) (dir string, blobs []ocispec.Descriptor) {
	t.Helper()
	dir = t.TempDir()
	s := openStore(t, dir, Options{})
	for i := range 10 {
		desc := put(t, s, byte(i), 100)
		age(t, s.path(desc.Digest), time.Duration(i+1)*time.Hour)
		blobs = append(blobs, desc)
	}
	raw, desc := content(100, 100)
	_, _ = s.Ensure(ctx, desc, from(raw[:50], nil))
	age(t, filepath.Join(dir, ingestDir, partialName(desc.Digest)), 20*time.Hour)
	return dir, blobs
}

func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	at := time.Now().Add(-d)
	require.NoError(t, os.Chtimes(path, at, at))
}

// left are the numbers of the blobs that are there.
func left(t *testing.T, dir string, blobs []ocispec.Descriptor) []int {
	t.Helper()
	var found []int
	for i, desc := range blobs {
		if _, err := os.Stat(filepath.Join(dir, "blobs", "sha256", desc.Digest.Encoded())); err == nil {
			found = append(found, i)
		}
	}
	return found
}

func TestPrune(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, tt := range map[string]struct {
		size int64
		want Pruned
		left []int
	}{
		"nothing where there is room":     {1050, Pruned{RemainingBytes: 1050}, all},
		"first the oldest, here half one": {1049, Pruned{Partials: 1, PartialBytes: 50, RemainingBytes: 1000}, all},
		"down to a size": {350, Pruned{Blobs: 7, Bytes: 700, Partials: 1, PartialBytes: 50, RemainingBytes: 300},
			[]int{0, 1, 2}},
		"all": {0, Pruned{Blobs: 10, Bytes: 1000, Partials: 1, PartialBytes: 50}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir, blobs := aged(t)
			s := openStore(t, dir, Options{})
			if got, err := s.Prune(ctx, tt.size); err != nil || got != tt.want || !slices.Equal(left(t, dir, blobs), tt.left) {
				t.Error(got, err, left(t, dir, blobs))
			}
			if n := len(ingested(t, s)); n != 1-tt.want.Partials {
				t.Error(ingested(t, s))
			}
			mustBeSound(t, dir)
		})
	}
}

func TestUse(t *testing.T) {
	for name, use := range map[string]func(s *Store, desc ocispec.Descriptor) error{
		"Open":   func(s *Store, desc ocispec.Descriptor) error { return s.Check(ctx, desc) },
		"Ensure": func(s *Store, desc ocispec.Descriptor) error { _, err := s.Ensure(ctx, desc, noFetch); return err },
		"Link": func(s *Store, desc ocispec.Descriptor) error {
			return openStore(t, t.TempDir(), Options{}).Link(ctx, desc, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, blobs := aged(t)
			require.NoError(t, use(openStore(t, dir, Options{}), blobs[9]))
			// Of another process, to which it is not in use.
			require.NoError(t, openStore(t, dir, Options{MaxSize: 350}).Close())
			if got := left(t, dir, blobs); !slices.Equal(got, []int{0, 1, 9}) {
				t.Error(got)
			}
		})
	}
}

// A store whose limit was higher before is not left like that.
func TestCloseKeepsTheLimit(t *testing.T) {
	dir, _ := aged(t)
	require.NoError(t, openStore(t, dir, Options{MaxSize: 350}).Close())
	if info, err := openStore(t, dir, Options{}).Info(ctx); err != nil || info.Bytes+info.PartialBytes > 350 ||
		info.Blobs == 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestPruneKeepsRunningDownloads(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	raw, desc := content(1, 100)
	_, err := s.Ensure(ctx, desc, func(ctx context.Context, _ int64) (io.ReadCloser, error) {
		other := openStore(t, s.dir, Options{})
		if got, err := other.Prune(ctx, 0); err != nil || got != (Pruned{}) {
			t.Error(got, err)
		}
		return io.NopCloser(bytes.NewReader(raw)), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The limit holds while downloads run, whatever a run uses.
func TestACacheKeepsItsLimit(t *testing.T) {
	dir, blobs := aged(t)
	s := openStore(t, dir, Options{Cache: true, MaxSize: 1000})
	check := func() {
		s.room.mu.Lock() // nothing is evicted while the files are listed
		defer s.room.mu.Unlock()
		if info, err := s.Info(ctx); err != nil || info.Bytes+info.PartialBytes > 1000 {
			t.Errorf("%+v, %v", info, err)
		}
	}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for seed := range 10 {
				raw, desc := content(byte(50+10*worker+seed), 100)
				_, err := s.Ensure(ctx, desc, func(context.Context, int64) (io.ReadCloser, error) {
					check()
					return io.NopCloser(&observed{bytes.NewReader(raw), check}), nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	check()
	if got := left(t, dir, blobs); len(got) > 0 {
		t.Error("older blobs are left:", got)
	}
	raw, large := content(99, 1001)
	if _, err := s.Ensure(ctx, large, from(raw, nil)); !errors.Is(err, ErrNoRoom) {
		t.Error("a blob larger than the limit:", err)
	}
	// A running download may count twice: what it has written, and what it has reserved.
	for seed := range 10 {
		raw, desc := content(byte(100+seed), 100)
		if _, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil {
			t.Error(err)
		}
	}
	if info, err := s.Info(ctx); err != nil || info.Blobs < 8 {
		t.Errorf("it evicts more than it must: %+v, %v", info, err)
	}
}

// observed calls a function for every few bytes.
type observed struct {
	io.Reader
	each func()
}

func (r *observed) Read(p []byte) (int, error) {
	r.each()
	return r.Reader.Read(p[:min(len(p), 30)])
}

// What does not fit into the file system is not fetched.
func TestACacheLeavesSpaceToOthers(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{Cache: true})
	_, desc := content(1, 100)
	desc.Size = 1 << 60
	if _, err := s.Ensure(ctx, desc, noFetch); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
	raw, desc := content(1, 100)
	s.write = func(*os.File, []byte) (int, error) { return 0, unix.ENOSPC }
	if _, err := s.Ensure(ctx, desc, from(raw, nil)); !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
}

func TestInfo(t *testing.T) {
	dir, _ := aged(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "blobs", "sha256", "README"), []byte("foreign"), 0o644))
	got, err := openStore(t, dir, Options{}).Info(ctx)
	want := Info{Dir: dir, Blobs: 10, Bytes: 1000, Partials: 1, PartialBytes: 50}
	if err != nil || got != want {
		t.Error(got, err)
	}
}
