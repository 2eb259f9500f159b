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
	if info, err := os.Stat(s.dir); err == nil && !info.IsDir() {
		return errors.New("is not a directory")
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if err := s.checkLayout(); errors.Is(err, fs.ErrNotExist) {
		names, err := s.names()
		if err == nil && len(names) == 0 {
			err = s.writeNew(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
		} else if err == nil {
			err = s.checkLayout() // another process may have just created the layout
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("is neither empty nor an OCI layout (it has %s, but no %s): choose an empty or new directory",
				strings.Join(names, ", "), ocispec.ImageLayoutFile)
		}
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if s.maxSize > 0 {
		if err := s.checkNoImages(); err != nil {
			return err
		}
	}
	if err := s.writeNew(ocispec.ImageIndexFile, emptyIndex()); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.dir, ocispec.ImageBlobsDir, digest.SHA256.String()), 0o755); err != nil {
		return err
	}
	return unix.Access(s.dir, unix.W_OK)
}

// checkLayout reads oci-layout.
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

// newPrefix is the prefix of temporary files at the store's root.
const newPrefix = ".new-"

// names returns some names in the directory, except temporary files of an Open that was killed.
func (s *Store) names() ([]string, error) {
	f, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(name string) bool { return strings.HasPrefix(name, newPrefix) })
	slices.Sort(found)
	return found[:min(len(found), maxNames)], nil
}

// writeNew creates a file at the store's root atomically and durably, unless it exists: a directory that has lost its
// oci-layout would not be opened again.
func (s *Store) writeNew(name string, content any) error {
	path := filepath.Join(s.dir, name)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return err
	}
	temp, err := s.writeTemp(raw)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp) }()
	// Unlike a rename, a link does not replace a file that another process has just created. Not every file system
	// has links.
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		if err := os.Rename(temp, path); err != nil {
			return err
		}
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// replaceFile replaces a file at the store's root atomically.
func (s *Store) replaceFile(name string, raw []byte) error {
	temp, err := s.writeTemp(raw)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(s.dir, name)); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return nil
}

// writeTemp writes a temporary file at the store's root, synced to the disk, and returns its path.
func (s *Store) writeTemp(raw []byte) (string, error) {
	f, err := os.CreateTemp(s.dir, newPrefix)
	if err != nil {
		return "", err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", s.wrapDiskFull(err)
	}
	return f.Name(), nil
}

// UpdateIndex applies change to index.json and replaces it atomically. Concurrent updates, also those of other
// processes, wait for each other.
func (s *Store) UpdateIndex(change func(*ocispec.Index)) error {
	if err := s.updateIndex(change); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(s.dir, ocispec.ImageIndexFile), err)
	}
	return nil
}

func (s *Store) updateIndex(change func(*ocispec.Index)) error {
	return s.locked(func() error {
		index, err := s.readIndex()
		if err != nil {
			return err
		}
		change(&index)
		raw, err := json.Marshal(index)
		if err != nil {
			return err
		}
		return s.replaceFile(ocispec.ImageIndexFile, raw)
	})
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
