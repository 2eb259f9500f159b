package blobstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// init checks or creates the layout, and checks that the directory is writable.
func (s *Store) init() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	return s.locked(func(dir *os.File) error {
		err := s.checkLayout()
		if errors.Is(err, fs.ErrNotExist) {
			err = s.create(dir)
		}
		if err == nil && s.maxSize > 0 {
			err = s.checkNoImages()
		}
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(s.dir, ocispec.ImageBlobsDir, digest.SHA256.String()), 0o755); err != nil {
			return err
		}
		return unix.Access(s.dir, unix.W_OK)
	})
}

// create makes the locked directory a layout, durably: one that has lost its oci-layout would not be opened again.
func (s *Store) create(dir *os.File) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == newFile }) // of an Open that was killed
	if slices.Sort(names); len(names) > 0 {
		return fmt.Errorf("is neither empty nor an OCI layout (it has %s, but no %s): choose an empty or new directory",
			strings.Join(names[:min(len(names), maxNames)], ", "), ocispec.ImageLayoutFile)
	}
	layout := ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}
	if err := s.replaceFile(ocispec.ImageLayoutFile, layout); err != nil {
		return err
	}
	return errors.Join(s.replaceFile(ocispec.ImageIndexFile, emptyIndex()), dir.Sync())
}

func (s *Store) checkLayout() error {
	raw, err := s.readFile(ocispec.ImageLayoutFile)
	if err != nil {
		return err
	}
	var layout ocispec.ImageLayout
	if err := json.Unmarshal(raw, &layout); err != nil {
		return fmt.Errorf("%s: %w", ocispec.ImageLayoutFile, err)
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("is an OCI layout of unsupported version %q: want %q: choose an empty or new directory",
			layout.Version, ocispec.ImageLayoutVersion)
	}
	return nil
}

// readFile reads a file at the store's root. Reading a pipe or a device might not end.
func (s *Store) readFile(name string) ([]byte, error) {
	path := filepath.Join(s.dir, name)
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", name)
	}
	return os.ReadFile(path)
}

// maxNames is how many names an error message lists: enough to recognize the directory.
const maxNames = 4

// newFile is a file at the store's root that replaces another one.
const newFile = ".new"

// replaceFile replaces a file at the store's root atomically. The caller holds the lock.
func (s *Store) replaceFile(name string, content any) error {
	raw, err := json.Marshal(content)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(s.dir, newFile))
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return s.wrapDiskFull(err)
	}
	return os.Rename(f.Name(), filepath.Join(s.dir, name))
}

// UpdateIndex applies change to index.json and replaces it atomically. Concurrent updates, also those of other
// processes, wait for each other.
func (s *Store) UpdateIndex(change func(*ocispec.Index)) error {
	err := s.locked(func(*os.File) error {
		index, err := s.readIndex()
		if err != nil {
			return err
		}
		change(&index)
		return s.replaceFile(ocispec.ImageIndexFile, index)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(s.dir, ocispec.ImageIndexFile), err)
	}
	return nil
}

func emptyIndex() ocispec.Index {
	return ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
}

// readIndex reads index.json. A missing file is an empty index.
func (s *Store) readIndex() (ocispec.Index, error) {
	index := emptyIndex()
	raw, err := s.readFile(ocispec.ImageIndexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return index, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &index)
	}
	return index, err
}

// checkNoImages returns an error if index.json lists images.
func (s *Store) checkNoImages() error {
	index, err := s.readIndex()
	if err != nil {
		return fmt.Errorf("%s: %w", ocispec.ImageIndexFile, err)
	}
	if n := len(index.Manifests); n > 0 {
		return fmt.Errorf("holds images: its %s lists %d manifests, which must stay: choose another directory",
			ocispec.ImageIndexFile, n)
	}
	return nil
}
