package blobstore

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// TestTrust shows who reads a blob again: for want of another way to see it, by
// damaged blobs that a record says are right.
func TestTrust(t *testing.T) {
	content := []byte("what was verified")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))}
	wrong := []byte("what was VERIFIED")
	put := func(t *testing.T, dir string) *Store {
		t.Helper()
		s, err := Open(dir, Options{Trust: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), desc, content); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * minAge)
		return s
	}
	overwrite := func(t *testing.T, path string, b []byte) {
		t.Helper()
		if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// lie has the record say that the file is right as it is.
	lie := func(t *testing.T, s *Store, at time.Time) {
		t.Helper()
		st, err := stampOf(s.path(desc.Digest))
		if err != nil {
			t.Fatal(err)
		}
		s.verified[desc.Digest], s.verifiedAt[desc.Digest] = st, at.UnixNano()
	}
	for name, c := range map[string]struct {
		between func(t *testing.T, s *Store)
		after   func(t *testing.T, path string)
		trust   time.Duration
		taken   bool // as it is, though it is wrong
	}{
		"what is as it was is not read again": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				time.Sleep(2 * minAge)
				lie(t, s, time.Now())
			},
			trust: time.Hour, taken: true,
		},
		"without trust it is": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				time.Sleep(2 * minAge)
				lie(t, s, time.Now())
			},
		},
		"what was verified long ago is read again": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				time.Sleep(2 * minAge)
				lie(t, s, time.Now().Add(-2*time.Hour))
			},
			trust: time.Hour,
		},
		"what was verified in the future is read again": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				time.Sleep(2 * minAge)
				lie(t, s, time.Now().Add(2*time.Hour))
			},
			trust: time.Hour,
		},
		"what may have changed within a tick of the clock is read again": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				lie(t, s, time.Now())
				st := s.verified[desc.Digest]
				changed := time.Unix(0, max(unix.TimespecToNsec(st.mtime), unix.TimespecToNsec(st.ctime)))
				s.now = func() time.Time { return changed.Add(minAge / 2) } // when it is closed
			},
			trust: time.Hour,
		},
		"what was verified before the last boot is read again": {
			between: func(t *testing.T, s *Store) {
				overwrite(t, s.path(desc.Digest), wrong)
				time.Sleep(2 * minAge)
				lie(t, s, time.Now())
				s.boot = func() string { return "an earlier one" }
			},
			trust: time.Hour,
		},
		"what was written to is read again": {
			after: func(t *testing.T, path string) { overwrite(t, path, wrong) },
			trust: time.Hour,
		},
		"and if it pretends to be old, too": {
			after: func(t *testing.T, path string) {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				overwrite(t, path, wrong)
				if err := errors.Join(os.Chmod(path, info.Mode()), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
					t.Fatal(err)
				}
			},
			trust: time.Hour,
		},
		"a record that cannot be read is none": {
			between: func(t *testing.T, s *Store) { overwrite(t, s.path(desc.Digest), wrong) },
			after: func(t *testing.T, path string) {
				file := filepath.Join(filepath.Dir(path), "..", "..", verifiedFile)
				if err := os.WriteFile(file, []byte(`{"sha256:`), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			trust: time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := put(t, dir)
			if c.between != nil {
				c.between(t, s)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if c.after != nil {
				c.after(t, s.path(desc.Digest))
			}
			var log bytes.Buffer
			again, err := Open(dir, Options{Trust: c.trust, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			_, err = again.Get(t.Context(), desc)
			if c.taken != (err == nil) || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("error: %v", err)
			}
			if !c.taken && !strings.Contains(log.String(), "removed a damaged blob") {
				t.Errorf("log: %s", log.String())
			}
		})
	}

	t.Run("using, linking and verifying it do not change it", func(t *testing.T) {
		dir := t.TempDir()
		s := put(t, dir)
		long := time.Now().Add(-time.Hour)
		if err := os.Chtimes(s.path(desc.Digest), long, long); err != nil {
			t.Fatal(err)
		}
		other, err := Open(t.TempDir(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Link(t.Context(), desc, s); err != nil { // it is read, marked as used, and linked
			t.Fatal(err)
		}
		time.Sleep(2 * minAge)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Open(dir, Options{Trust: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		st, err := stampOf(again.path(desc.Digest))
		if err != nil || again.verified[desc.Digest] != st {
			t.Errorf("the file is %+v, the record %+v, %v", st, again.verified[desc.Digest], err)
		}
	})
	t.Run("a broken record causes no failure", func(t *testing.T) {
		for _, record := range []string{"", "null", "[]", `{"zz": {"at": 1}}`, `{"sha256": null}`} {
			dir := t.TempDir()
			s := put(t, dir)
			if err := os.WriteFile(filepath.Join(dir, verifiedFile), []byte(record), 0o600); err != nil {
				t.Fatal(err)
			}
			again, err := Open(dir, Options{Trust: 1 << 62})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := again.Get(t.Context(), desc); err != nil {
				t.Errorf("%s: %v", record, err)
			}
			if err := errors.Join(again.Close(), s.Close()); err != nil {
				t.Errorf("%s: %v", record, err)
			}
		}
		dir := t.TempDir()
		s := put(t, dir)
		if err := os.Mkdir(filepath.Join(dir, verifiedFile), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("a record that cannot be written: %v", err)
		}
	})
	t.Run("removed blobs are forgotten", func(t *testing.T) {
		dir := t.TempDir()
		s := put(t, dir)
		if err := errors.Join(os.Remove(s.path(desc.Digest)), s.Close()); err != nil {
			t.Fatal(err)
		}
		if raw, err := os.ReadFile(filepath.Join(dir, verifiedFile)); err != nil || string(raw) != "{}" {
			t.Errorf("the record is %s, %v", raw, err)
		}
	})
}
