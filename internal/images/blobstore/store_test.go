package blobstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var ctx = context.Background()

func openStore(t testing.TB, dir string, opts Options) *Store {
	t.Helper()
	return require.Value(Open(dir, opts))(t)
}

// content is size bytes that are the same for the same seed, and their descriptor.
func content(seed byte, size int) ([]byte, ocispec.Descriptor) {
	raw := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(raw)
	return raw, ocispec.Descriptor{Digest: digest.FromBytes(raw), Size: int64(size)}
}

// Ensure is Fetch without opening the blob.
func (s *Store) Ensure(ctx context.Context, desc ocispec.Descriptor,
	fetch func(context.Context, int64) (io.ReadCloser, error)) (int64, error) {
	f, fetched, err := s.Fetch(ctx, desc, fetch)
	if err == nil {
		err = f.Close()
	}
	return fetched, err
}

// Put adds a blob.
func (s *Store) Put(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	_, err := s.Ensure(ctx, desc, from(raw, nil))
	return err
}

// Check is Open without opening the blob.
func (s *Store) Check(ctx context.Context, desc ocispec.Descriptor) error {
	f, err := s.Open(ctx, desc)
	if err == nil {
		err = f.Close()
	}
	return err
}

// Has reports whether there is a file of the blob's size.
func (s *Store) Has(desc ocispec.Descriptor) bool {
	if validate(desc) != nil {
		return false
	}
	info, err := os.Lstat(s.path(desc.Digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == desc.Size
}

func put(t testing.TB, s *Store, seed byte, size int) ocispec.Descriptor {
	t.Helper()
	raw, desc := content(seed, size)
	require.Value(s.Ensure(ctx, desc, from(raw, nil)))(t)
	return desc
}

// from is a fetch out of memory that notes the offsets that it was asked for.
func from(raw []byte, offsets *[]int64) func(context.Context, int64) (io.ReadCloser, error) {
	return func(_ context.Context, offset int64) (io.ReadCloser, error) {
		if offsets != nil {
			*offsets = append(*offsets, offset)
		}
		return io.NopCloser(bytes.NewReader(raw[offset:])), nil
	}
}

func noFetch(context.Context, int64) (io.ReadCloser, error) {
	return nil, errors.New("fetched what is in the store")
}

// mustRead reads a blob.
func mustRead(t testing.TB, s *Store, desc ocispec.Descriptor) []byte {
	t.Helper()
	f := require.Value(s.Open(ctx, desc))(t)
	defer f.Close()
	return require.Value(io.ReadAll(f))(t)
}

// mustBeSound fails where a file under blobs is not what its name says, and
// returns how many there are.
func mustBeSound(t testing.TB, dir string) int {
	t.Helper()
	paths := require.Value(filepath.Glob(filepath.Join(dir, "blobs", "*", "*")))(t)
	for _, path := range paths {
		info := require.Value(os.Lstat(path))(t)
		raw := require.Value(os.ReadFile(path))(t)
		algorithm := digest.Algorithm(filepath.Base(filepath.Dir(path)))
		if algorithm.FromBytes(raw).Encoded() != filepath.Base(path) {
			t.Errorf("%s is wrong", path)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o444 != 0o444 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	return len(paths)
}

// ingested are the names in ingest.
func ingested(t testing.TB, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, ingestDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOpenCreatesALayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := openStore(t, dir, Options{MaxSize: 1})
	for name, want := range map[string]string{
		"oci-layout": `{"imageLayoutVersion":"1.0.0"}`,
		"index.json": `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`,
	} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(raw) != want {
			t.Errorf("%s: %s %v", name, raw, err)
		}
	}
	if s.dir != dir {
		t.Error(s.dir)
	}
	require.NoError(t, s.Close())
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Error("a closed store has more than a layout:", entries, err)
	}
}

func TestOpenByManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			s, err := Open(dir, Options{MaxSize: 1 << 20})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestOpenKeepsAnIndex(t *testing.T) {
	const index = `{"schemaVersion":2,"manifests":[{"mediaType":"m","digest":"sha256:00","size":1}],"x":1}`
	dir := t.TempDir()
	openStore(t, dir, Options{})
	path := filepath.Join(dir, "index.json")
	require.NoError(t, os.WriteFile(path, []byte(index), 0o600))
	s := openStore(t, dir, Options{})
	desc := put(t, s, 1, 100)
	if _, err := s.Prune(ctx, 0); err == nil ||
		!strings.Contains(err.Error(), "holds images: its index.json lists 1 manifests") {
		t.Error("pruned a layout that has images:", err)
	}
	if _, err := Open(dir, Options{MaxSize: 1}); err == nil || !strings.Contains(err.Error(), "holds images") {
		t.Error("opened a layout that has images as a store:", err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != index {
		t.Error(string(raw), err)
	}
	if !s.Has(desc) {
		t.Error("the blob is gone")
	}
}

func TestOpenRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string // a name that ends in / is a directory
		path  string            // in the directory
		want  string
	}{
		"a file":       {map[string]string{"f": ""}, "f", "not a directory"},
		"below a file": {map[string]string{"f": ""}, "f/g", "not a directory"},
		"another directory": {map[string]string{"a": "", "b/": ""}, ".",
			"is neither empty nor an OCI layout (it has a, b, but no oci-layout): choose an empty or new directory"},
		"crane's cache": {map[string]string{"sha256:ba7816bf": "x"}, ".", "it has sha256:ba7816bf, but no oci-layout"},
		"containerd's content": {map[string]string{"blobs/": "", "ingest/": ""}, ".",
			"it has blobs, ingest, but no oci-layout"},
		"many files": {map[string]string{"a": "", "b": "", "c": "", "d": "", "e": ""}, ".", "it has a, b, c, d, but"},
		"a layout of the future": {map[string]string{"oci-layout": `{"imageLayoutVersion":"9"}`}, ".",
			`is an OCI layout of unsupported version "9": want "1.0.0"`},
		"an invalid oci-layout": {map[string]string{"oci-layout": "x"}, ".", "oci-layout: invalid character"},
		"an invalid index.json": {map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": "x"},
			".", "index.json: invalid character"},
		"a file in place of the blobs": {map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "blobs": "x"}, ".",
			"blobs: not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				var err error
				if path := filepath.Join(dir, name); strings.HasSuffix(name, "/") {
					err = os.Mkdir(path, 0o755)
				} else {
					err = os.WriteFile(path, []byte(text), 0o644)
				}
				require.NoError(t, err)
			}
			path := filepath.Join(dir, tt.path)
			_, err := Open(path, Options{MaxSize: 1})
			if err == nil || !strings.Contains(err.Error(), tt.want) ||
				!strings.HasPrefix(err.Error(), "blob store "+path+": ") {
				t.Errorf("%v\nwant: %s", err, tt.want)
			}
			for name := range tt.files {
				if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestOpenAfterAKillInTheMiddleOfOpen(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, newFile), nil, 0o600))
	openStore(t, dir, Options{})
}

func TestDigestsAndSizes(t *testing.T) {
	raw, desc := content(1, 1000)
	sha512 := ocispec.Descriptor{Digest: digest.SHA512.FromBytes(raw), Size: 1000}
	empty := ocispec.Descriptor{Digest: digest.FromBytes(nil)}
	for name, tt := range map[string]struct {
		desc ocispec.Descriptor
		raw  []byte
		want string // of the error
	}{
		"sha256":    {desc: desc, raw: raw},
		"sha512":    {desc: sha512, raw: raw},
		"empty":     {desc: empty},
		"no digest": {desc: ocispec.Descriptor{Size: 1000}, raw: raw, want: "invalid checksum digest format"},
		"a path": {desc: ocispec.Descriptor{Digest: digest.Digest("sha256:" + strings.Repeat("../", 21) + "a"),
			Size: 1000}, raw: raw, want: "invalid checksum digest format"},
		"a short digest": {desc: ocispec.Descriptor{Digest: "sha256:abcd", Size: 1000}, raw: raw,
			want: "invalid checksum digest length"},
		"sha384": {desc: ocispec.Descriptor{Digest: digest.SHA384.FromBytes(raw), Size: 1000}, raw: raw,
			want: "digest algorithm sha384 is not supported: want sha256 or sha512"},
		"unknown algorithm": {desc: ocispec.Descriptor{Digest: "md5:900150983cd24fb0d6963f7d28e17f72", Size: 1000}, raw: raw,
			want: "digest algorithm md5 is not supported: want sha256 or sha512"},
		"upper case": {desc: ocispec.Descriptor{Digest: digest.Digest("sha256:" +
			strings.ToUpper(desc.Digest.Encoded())), Size: 1000}, raw: raw, want: "invalid checksum digest format"},
		"negative size": {desc: ocispec.Descriptor{Digest: desc.Digest, Size: -1}, raw: raw,
			want: "descriptor with size -1"},
		"another digest": {desc: ocispec.Descriptor{Digest: empty.Digest, Size: 1000}, raw: raw,
			want: "does not match its digest"},
		"empty, another": {desc: ocispec.Descriptor{Digest: desc.Digest}, want: "does not match its digest"},
		"larger than it is": {desc: ocispec.Descriptor{Digest: desc.Digest, Size: 1001}, raw: raw,
			want: "ends 1 bytes early"},
		"smaller than it is": {desc: ocispec.Descriptor{Digest: desc.Digest, Size: 999}, raw: raw,
			want: "does not match its digest"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), Options{})
			fetched, err := s.Ensure(ctx, tt.desc, from(tt.raw, nil))
			var wrong *blob.Error
			switch {
			case tt.want == "":
				if err != nil || fetched != tt.desc.Size || !bytes.Equal(mustRead(t, s, tt.desc), tt.raw) || !s.Has(tt.desc) {
					t.Fatal(fetched, err)
				}
				if fetched, err := s.Ensure(ctx, tt.desc, noFetch); err != nil || fetched != 0 {
					t.Error(fetched, err)
				}
			case err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &wrong):
				t.Fatal(err)
			default:
				if err := s.Check(ctx, tt.desc); err == nil || s.Has(tt.desc) {
					t.Error("it is in the store")
				}
			}
			if mustBeSound(t, s.dir) == 0 && tt.want == "" {
				t.Error("there is no blob")
			}
		})
	}
}

func flipBit(path string) error {
	time.Sleep(20 * time.Millisecond) // before Linux 6.13, the times of a file are as coarse as the kernel's tick
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	raw[len(raw)/2] ^= 1
	return errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, raw, 0o644))
}

// damages are what can happen to a blob's file. Each leaves its size as it is where
// it can.
var damages = map[string]func(path string) error{
	"a flipped bit": flipBit,
	"truncated":     func(path string) error { return errors.Join(os.Chmod(path, 0o644), os.Truncate(path, 10)) },
	"emptied":       func(path string) error { return errors.Join(os.Chmod(path, 0o644), os.Truncate(path, 0)) },
	"grown":         func(path string) error { return errors.Join(os.Chmod(path, 0o644), os.Truncate(path, 1<<20)) },
	"replaced by an empty directory": func(path string) error {
		return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
	},
	"replaced by a directory": func(path string) error {
		return errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "a", "b"), 0o755))
	},
	"replaced by a link to a right file": func(path string) error {
		return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
	},
	"replaced by a link to nothing": func(path string) error {
		return errors.Join(os.Remove(path), os.Symlink("nowhere", path))
	},
	"replaced by a pipe": func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o644)) },
}

func TestDamagedBlobs(t *testing.T) {
	raw, desc := content(1, 30_000)
	for name, damage := range damages {
		for reader, reopen := range map[string]bool{"this Store": false, "another Store": true} {
			t.Run(name+", seen by "+reader, func(t *testing.T) {
				var log bytes.Buffer
				opts := Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
				dir := t.TempDir()
				setUp := func() *Store {
					s := openStore(t, dir, opts)
					require.NoError(t, s.Put(ctx, desc, raw))
					mustRead(t, s, desc)
					require.NoError(t, damage(s.path(desc.Digest)))
					if reopen {
						s = openStore(t, dir, opts)
					}
					return s
				}
				mustBeRight := func(s *Store) {
					t.Helper()
					if !bytes.Equal(mustRead(t, s, desc), raw) {
						t.Error("not repaired")
					}
					_ = os.Remove(s.path(desc.Digest) + ".moved")
					if n := mustBeSound(t, dir); n != 1 || len(ingested(t, s)) > 0 {
						t.Error(n, ingested(t, s))
					}
				}

				s := setUp()
				if err := s.Check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
					t.Fatal("Get:", err)
				}
				if !strings.Contains(log.String(), desc.Digest.Encoded()) {
					t.Error("the log does not tell:", log.String())
				}
				require.Value(s.Ensure(ctx, desc, from(raw, nil)))(t)
				mustBeRight(s)

				s = setUp()
				if fetched, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil || fetched != desc.Size {
					t.Fatal("Ensure:", fetched, err)
				}
				mustBeRight(s)

				s = setUp()
				source := openStore(t, t.TempDir(), Options{})
				put(t, source, 1, len(raw))
				require.NoError(t, s.Link(ctx, desc, source))
				mustBeRight(s)

				source = setUp()
				if err := openStore(t, t.TempDir(), Options{}).Link(ctx, desc, source); !errors.Is(err, fs.ErrNotExist) {
					t.Error("Link of a damaged one:", err)
				}
			})
		}
	}
}

func TestDamageRepairedByManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	raw, desc := content(1, 10_000)
	put(t, openStore(t, dir, Options{}), 1, len(raw))
	for range 20 {
		var stores []*Store
		for range 8 {
			stores = append(stores, openStore(t, dir, Options{}))
		}
		require.NoError(t, flipBit(stores[0].path(desc.Digest)))
		var wg sync.WaitGroup
		for _, s := range stores {
			wg.Go(func() {
				// More than one may fetch: while one moves the damaged file away, it may move a new one for a moment.
				if _, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := mustBeSound(t, dir); n != 1 || len(ingested(t, stores[0])) > 0 {
			t.Fatal(n, ingested(t, stores[0]))
		}
	}
}

// A descriptor that lies about the size must not cost the store a right blob.
func TestAWrongSizeRemovesNothing(t *testing.T) {
	dir := t.TempDir()
	desc := put(t, openStore(t, dir, Options{}), 1, 1000)
	s := openStore(t, dir, Options{})
	lie := desc
	lie.Size = 7
	var wrong *blob.Error
	if err := s.Check(ctx, lie); !errors.As(err, &wrong) || s.Has(lie) {
		t.Error(err)
	}
	if _, err := s.Ensure(ctx, lie, noFetch); !errors.As(err, &wrong) {
		t.Error(err)
	}
	if err := s.Check(ctx, desc); err != nil {
		t.Error(err)
	}
}

func TestVerifiedOnce(t *testing.T) {
	dir := t.TempDir()
	desc := put(t, openStore(t, dir, Options{}), 1, 1000)
	old := time.Now().Add(-time.Hour)
	path := openStore(t, dir, Options{}).path(desc.Digest)
	require.NoError(t, os.Chtimes(path, old, old))
	// It is not hashed if a change remains unseen that leaves the time as it was.
	s := openStore(t, dir, Options{})
	unseen := func(s *Store) bool {
		path := s.path(desc.Digest)
		info, err := os.Stat(path)
		if err == nil {
			err = errors.Join(flipBit(path), os.Chtimes(path, info.ModTime(), info.ModTime()))
		}
		require.NoError(t, err)
		trusted := s.Check(ctx, desc) == nil
		if trusted {
			err = errors.Join(flipBit(path), os.Chtimes(path, info.ModTime(), info.ModTime()))
		} else {
			put(t, s, 1, 1000)
		}
		require.NoError(t, err)
		return trusted
	}
	if unseen(openStore(t, dir, Options{})) {
		t.Error("another Store trusts it")
	}
	require.NoError(t, os.Chtimes(path, old, old))
	if mustRead(t, s, desc); !unseen(s) {
		t.Error("it is verified again after it was marked as used")
	}
	other := openStore(t, t.TempDir(), Options{})
	if err := other.Link(ctx, desc, s); err != nil || !unseen(s) || !unseen(other) {
		t.Error("it is verified again after it was linked:", err)
	}
	if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) > time.Minute {
		t.Error("it is not marked as used:", info.ModTime(), err)
	}
	require.NoError(t, os.Chtimes(path, old, old))
	require.NoError(t, flipBit(path))
	if err := s.Check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it is not verified again after somebody changed it:", err)
	}
}

func TestEnsureResumes(t *testing.T) {
	raw, desc := content(1, 1<<20)
	broken := errors.New("connection reset")
	half := func(_ context.Context, offset int64) (io.ReadCloser, error) {
		end := (offset + desc.Size + 1) / 2
		return io.NopCloser(io.MultiReader(bytes.NewReader(raw[offset:end]), iotest.ErrReader(broken))), nil
	}
	partial := func(content []byte) func(*Store) error {
		return func(s *Store) error {
			return errors.Join(os.MkdirAll(filepath.Join(s.dir, ingestDir), 0o755),
				os.WriteFile(filepath.Join(s.dir, ingestDir, partialName(desc.Digest)), content, 0o644))
		}
	}
	wrong := bytes.Repeat([]byte{1}, 1000)
	for name, tt := range map[string]struct {
		before func(*Store) error
		want   []int64 // offsets
	}{
		"from the beginning": {func(*Store) error { return nil }, []int64{0}},
		"from where the reader broke": {func(s *Store) error {
			n, err := s.Ensure(ctx, desc, half)
			if err != broken || n != desc.Size/2 {
				return fmt.Errorf("%d %w", n, err)
			}
			return nil
		}, []int64{desc.Size / 2}},
		"from where it broke for the second time": {func(s *Store) error {
			_, err := s.Ensure(ctx, desc, half)
			n, err2 := s.Ensure(ctx, desc, half)
			if err != broken || err2 != broken || n != desc.Size/4 {
				return fmt.Errorf("%d %w %w", n, err, err2)
			}
			return nil
		}, []int64{desc.Size * 3 / 4}},
		"from where it ended early": {func(s *Store) error {
			_, err := s.Ensure(ctx, desc, from(raw[:1000], nil))
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				return err
			}
			return nil
		}, []int64{1000}},
		"from an empty one":                            {partial(nil), []int64{0}},
		"not, when all was there":                      {partial(raw), nil},
		"restarts if the partial download is too long": {partial(append(slices.Clone(raw), 1)), []int64{0}},
		"restarts if the partial download is wrong":    {partial(wrong), []int64{1000, 0}},
		"restarts if the complete download is wrong":   {partial(bytes.Repeat([]byte{1}, len(raw))), []int64{0}},
		"from the beginning, when asking for it fails": {func(s *Store) error {
			_, err := s.Ensure(ctx, desc, func(context.Context, int64) (io.ReadCloser, error) { return nil, broken })
			if err != broken || len(ingested(t, s)) > 0 {
				return fmt.Errorf("%v %w", ingested(t, s), err)
			}
			return nil
		}, []int64{0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), Options{})
			require.NoError(t, tt.before(s))
			if err := s.Check(ctx, desc); !errors.Is(err, fs.ErrNotExist) {
				t.Fatal("half a blob is got:", err)
			}
			var offsets []int64
			fetched, err := s.Ensure(ctx, desc, from(raw, &offsets))
			if err != nil || !slices.Equal(offsets, tt.want) || !bytes.Equal(mustRead(t, s, desc), raw) {
				t.Fatal(fetched, offsets, err)
			}
			want := int64(0)
			for _, offset := range offsets {
				want += desc.Size - offset
			}
			if fetched != want || len(ingested(t, s)) > 0 {
				t.Error(fetched, ingested(t, s))
			}
			mustBeSound(t, s.dir)
		})
	}
}

func TestEnsureFailsAfterOneRetry(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	raw, desc := content(1, 1<<20)
	_, _ = s.Ensure(ctx, desc, from(raw[:1000], nil))
	other, _ := content(2, 1<<20)
	var offsets []int64
	_, err := s.Ensure(ctx, desc, from(other, &offsets))
	var wrong *blob.Error
	if !errors.As(err, &wrong) || !slices.Equal(offsets, []int64{1000, 0}) || len(ingested(t, s)) > 0 {
		t.Error(err, offsets, ingested(t, s))
	}
}

func TestEnsureStopsWithItsContext(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	raw, desc := content(1, 8<<20)
	ctx, cancel := context.WithCancel(ctx)
	n, err := s.Ensure(ctx, desc, func(_ context.Context, offset int64) (io.ReadCloser, error) {
		r := io.TeeReader(bytes.NewReader(raw), writerFunc(func([]byte) { cancel() }))
		return io.NopCloser(r), nil
	})
	if err != context.Canceled || n == 0 || n == desc.Size || len(ingested(t, s)) != 1 {
		t.Fatal(n, err)
	}
	var offsets []int64
	if _, err := s.Ensure(context.Background(), desc, from(raw, &offsets)); err != nil ||
		!slices.Equal(offsets, []int64{n}) {
		t.Error(offsets, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func TestEnsureFetchesOnce(t *testing.T) {
	for name, one := range map[string]bool{"one Store": true, "a Store each": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			shared := openStore(t, dir, Options{})
			raw, desc := content(1, 1<<20)
			var fetches, bytesFetched atomic.Int64
			var wg sync.WaitGroup
			for range 12 {
				s := shared
				if !one {
					s = openStore(t, dir, Options{})
				}
				wg.Go(func() {
					n, err := s.Ensure(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
						fetches.Add(1)
						time.Sleep(20 * time.Millisecond) // so that the others arrive during the download
						return from(raw, nil)(ctx, offset)
					})
					bytesFetched.Add(n)
					if err != nil {
						t.Error(err)
						return
					}
					if err := s.Check(ctx, desc); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if fetches.Load() != 1 || bytesFetched.Load() != desc.Size {
				t.Error(fetches.Load(), bytesFetched.Load())
			}
			if mustBeSound(t, dir) != 1 || len(ingested(t, shared)) > 0 {
				t.Error(ingested(t, shared))
			}
		})
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	for name, one := range map[string]bool{"for a goroutine": true, "for a lock": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := openStore(t, dir, Options{})
			second := first
			if !one {
				second = openStore(t, dir, Options{})
			}
			raw, desc := content(1, 1000)
			started, goOn := make(chan struct{}), make(chan struct{})
			done := make(chan error, 1)
			go func() {
				_, err := first.Ensure(ctx, desc, func(ctx context.Context, offset int64) (io.ReadCloser, error) {
					close(started)
					<-goOn
					return from(raw, nil)(ctx, offset)
				})
				done <- err
			}()
			<-started
			waiting, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			if _, err := second.Ensure(waiting, desc, noFetch); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			close(goOn)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if _, err := second.Ensure(ctx, desc, noFetch); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDiskFullInjected(t *testing.T) {
	for name, full := range map[string]error{"no space": syscall.ENOSPC, "quota": syscall.EDQUOT} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), Options{})
			raw, desc := content(1, 4<<20)
			var room int
			s.write = func(f *os.File, b []byte) (int, error) {
				if room -= len(b); room < 0 {
					n, _ := f.Write(b[:len(b)/2])
					return n, &fs.PathError{Op: "write", Path: f.Name(), Err: full}
				}
				return f.Write(b)
			}
			mustSay := func(err error) {
				t.Helper()
				if !errors.Is(err, full) || !strings.Contains(err.Error(), "the disk of "+s.dir+" is full") ||
					len(ingested(t, s)) > 0 {
					t.Error(err, ingested(t, s))
				}
			}
			room = 2 << 20
			_, err := s.Ensure(ctx, desc, from(raw, nil))
			mustSay(err)
			room = 1 << 30
			if _, err := s.Ensure(ctx, desc, from(raw, nil)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMemoryIsFlat(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	const size = 64 << 20
	d := require.Value(digest.FromReader(io.LimitReader(zeros{}, size)))(t)
	desc := ocispec.Descriptor{Digest: d, Size: size}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Value(s.Ensure(ctx, desc, func(context.Context, int64) (io.ReadCloser, error) {
		return io.NopCloser(zeros{}), nil
	}))(t)
	clear(s.verified)
	require.NoError(t, s.Check(ctx, desc))
	to := openStore(t, t.TempDir(), Options{})
	to.link = func(string, string) error { return syscall.EXDEV }
	require.NoError(t, to.Link(ctx, desc, s))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > size/8 {
		t.Errorf("%d bytes were allocated for a blob of %d", got, size)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestLink(t *testing.T) {
	linked := func(t *testing.T, a, b *Store, desc ocispec.Descriptor) bool {
		t.Helper()
		one := require.Value(os.Stat(a.path(desc.Digest)))(t)
		return os.SameFile(one, require.Value(os.Stat(b.path(desc.Digest)))(t))
	}
	for name, tt := range map[string]struct {
		before func(t *testing.T, s *Store, raw []byte, desc ocispec.Descriptor)
		link   error // instead of a link
		want   bool  // the same file
	}{
		"into an empty store":   {want: true},
		"to another device":     {link: syscall.EXDEV},
		"where it is forbidden": {link: syscall.EPERM},
		"with too many links":   {link: syscall.EMLINK},
		"a right one stays": {before: func(t *testing.T, s *Store, raw []byte, desc ocispec.Descriptor) {
			require.NoError(t, s.Put(ctx, desc, raw))
		}},
		"a wrong one goes": {before: func(t *testing.T, s *Store, raw []byte, desc ocispec.Descriptor) {
			_ = os.Mkdir(filepath.Dir(s.path(desc.Digest)), 0o755)
			require.NoError(t, os.WriteFile(s.path(desc.Digest), make([]byte, len(raw)), 0o444))
		}, want: true},
		"a wrong one goes to another device": {before: func(t *testing.T, s *Store, raw []byte, desc ocispec.Descriptor) {
			_ = os.Mkdir(filepath.Dir(s.path(desc.Digest)), 0o755)
			require.NoError(t, os.WriteFile(s.path(desc.Digest), make([]byte, len(raw)), 0o444))
		}, link: syscall.EXDEV},
	} {
		t.Run(name, func(t *testing.T) {
			source, target := openStore(t, t.TempDir(), Options{}), openStore(t, t.TempDir(), Options{})
			raw, _ := content(1, 300<<10)
			desc := ocispec.Descriptor{Digest: digest.SHA512.FromBytes(raw), Size: int64(len(raw))}
			if err := target.Link(ctx, desc, source); !errors.Is(err, fs.ErrNotExist) {
				t.Fatal("of a blob that is not there:", err)
			}
			require.NoError(t, source.Put(ctx, desc, raw))
			if tt.before != nil {
				tt.before(t, target, raw, desc)
			}
			if tt.link != nil {
				target.link = func(from, to string) error { return &os.LinkError{Op: "link", Old: from, New: to, Err: tt.link} }
			}
			for range 2 {
				require.NoError(t, target.Link(ctx, desc, source))
			}
			if linked(t, source, target, desc) != tt.want || !bytes.Equal(mustRead(t, target, desc), raw) ||
				len(ingested(t, target)) > 0 {
				t.Error("unexpected state", ingested(t, target))
			}
			mustBeSound(t, target.dir)
			if err := target.Link(ctx, desc, target); err != nil {
				t.Error("to itself:", err)
			}
			if err := source.Link(ctx, desc, target); err != nil {
				t.Error("back:", err)
			}
		})
	}
}

func TestLinkBothWaysAtOnce(t *testing.T) {
	a, b := openStore(t, t.TempDir(), Options{}), openStore(t, t.TempDir(), Options{})
	var wg sync.WaitGroup
	for seed := range byte(20) {
		desc := put(t, a, seed, 1000)
		put(t, b, seed, 1000)
		wg.Go(func() {
			if err := a.Link(ctx, desc, b); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := b.Link(ctx, desc, a); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Another process uses a cache's blobs while they are linked.
func TestLinkWhileOthersUseTheBlob(t *testing.T) {
	dir := t.TempDir()
	source := openStore(t, dir, Options{})
	raw, desc := content(1, 1000)
	put(t, source, 1, 1000)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for at := time.Now(); ; at = at.Add(time.Second) {
			select {
			case <-stop:
				return
			default:
				_ = os.Chtimes(source.path(desc.Digest), at, at)
				time.Sleep(time.Millisecond)
			}
		}
	})
	for range 30 {
		target := openStore(t, t.TempDir(), Options{})
		if err := target.Link(ctx, desc, source); err != nil || !bytes.Equal(mustRead(t, target, desc), raw) {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestJSON(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	info := require.Value(s.Info(ctx))(t)
	raw, err := json.Marshal(info)
	want := fmt.Sprintf(`{"dir":%q,"blobs":0,"bytes":0,"partialDownloads":0,"partialBytes":0}`, s.dir)
	if err != nil || string(raw) != want {
		t.Error(string(raw), err)
	}
}
