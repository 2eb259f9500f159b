package blobstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/test/powercut"
)

const recordedBlobs = 6

// fill does everything that changes a store, as a cache and then as a layout. It is recorded.
func fill(dir string, _ int) error {
	for _, layout := range []bool{false, true} {
		s, err := Open(dir, Options{})
		if err != nil {
			return err
		}
		other, err := Open(dir+".other", Options{})
		if err != nil {
			return err
		}
		for seed := range byte(recordedBlobs) {
			raw, desc := content(seed, 3000)
			switch seed % 3 {
			case 0:
				err = s.Put(ctx, desc, raw)
			case 1:
				if err = other.Put(ctx, desc, raw); err == nil {
					err = s.Link(ctx, desc, other)
				}
			case 2:
				_, _ = s.Ensure(ctx, desc, from(raw[:2000], nil)) // is resumed
				_, err = s.Ensure(ctx, desc, from(raw, nil))
			}
			if err == nil && layout {
				err = s.UpdateIndex(func(i *ocispec.Index) { i.Manifests = append(i.Manifests, desc) })
			}
			if err != nil {
				return fmt.Errorf("blob %d: %w", seed, err)
			}
		}
		if !layout {
			if _, err := s.Prune(ctx, 0); err != nil {
				return err
			}
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// After a cut of the power, blobs may be lost, but the store opens, returns no wrong content, and stores them again.
func TestPowerCutAtEveryCall(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	process := powercut.Start(t, root, []string{childVariable + "=fill|0|" + filepath.Join(root, "store")}, "/proc/self/exe")
	if err := process.Wait(); err != nil || process.Output() != "" {
		t.Fatalf("%v: %s", err, process.Output())
	}
	cuts := 0
	for cut := range process.Cuts(powercut.Options{Seed: 1, Random: 1, Alone: 5}) {
		cuts++
		left := cut.Restore(t)
		s, err := Open(filepath.Join(left, "store"), Options{})
		if err != nil {
			t.Errorf("%s: %v", cut, err)
			continue
		}
		for seed := range byte(recordedBlobs) {
			raw, desc := content(seed, 3000)
			if err := same(s, desc, raw); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: blob %d: %v", cut, seed, err)
			}
			if err := errors.Join(s.Put(ctx, desc, raw), same(s, desc, raw)); err != nil {
				t.Errorf("%s: blob %d is not stored again: %v", cut, seed, err)
			}
		}
		err = s.UpdateIndex(func(*ocispec.Index) {})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Errorf("%s: %v", cut, err)
		}
		_ = os.RemoveAll(left)
	}
	if cuts < process.Events() {
		t.Errorf("%d cuts after %d events", cuts, process.Events())
	}
	t.Logf("%d events, %d cuts", process.Events(), cuts)
}

// same compares a blob.
func same(s *Store, desc ocispec.Descriptor, want []byte) error {
	r, err := s.Open(ctx, desc)
	if err != nil {
		return err
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("wrong content: %d bytes, %w", len(got), err)
	}
	return nil
}
