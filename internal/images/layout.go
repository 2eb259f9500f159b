package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Layout is an OCI layout directory that images are written to. It keeps existing images, except those
// whose name a new image has. It is safe for concurrent use, also by several processes.
type Layout struct {
	store *blobstore.Store
}

var _ Output = (*Layout)(nil)

// OpenLayout opens a layout and creates it if necessary.
func OpenLayout(dir string) (*Layout, error) {
	store, err := blobstore.Open(dir, blobstore.Options{})
	if err != nil {
		return nil, err
	}
	return &Layout{store: store}, nil
}

// Store returns the layout's blobs. It can be [ResolveOptions.Store] if there is no local store.
func (l *Layout) Store() *blobstore.Store { return l.store }

// Close releases the layout's resources.
func (l *Layout) Close() error { return l.store.Close() }

// blob links or copies a blob from the store that it was downloaded to.
func (l *Layout) blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error {
	remote, ok := from.(*remoteContent)
	if !ok {
		return copyBlob(ctx, from, desc, l.store, t)
	}
	// The layout may hold a blob that the local store has evicted.
	if remote.store != l.store && !remote.store.Has(desc) && l.store.Has(desc) {
		if _, err := l.store.Get(ctx, desc); err == nil {
			t.skip(desc)
			return nil
		}
	}
	for attempt := 0; ; attempt++ {
		if err := fetchBlob(ctx, from, desc, t); err != nil {
			return err
		}
		if remote.store == l.store {
			return nil
		}
		err := l.store.Link(ctx, desc, remote.store)
		if !errors.Is(err, fs.ErrNotExist) || attempt == maxRefetches {
			return err
		}
	}
}

// image adds an image to index.json.
func (l *Layout) image(_ context.Context, item Item) error {
	desc, err := named(item.Image)
	if err != nil {
		return err
	}
	return l.store.UpdateIndex(func(index *ocispec.Index) { addToIndex(index, desc) })
}

// Archive is an OCI archive that images are written to. [Archive.Write] creates or replaces the file.
// It is safe for concurrent use.
type Archive struct {
	path  string
	omit  func(digest.Digest) bool
	mu    sync.Mutex
	items []Item
}

var _ Output = (*Archive)(nil)

// CreateArchive prepares an archive at path. It writes nothing, but checks that the directory is
// writable.
func CreateArchive(path string) (*Archive, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("archive %s: exists and is not a regular file", path)
	}
	f, err := temporary(path)
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", path, err)
	}
	return &Archive{path: path}, errors.Join(f.Close(), os.Remove(f.Name()))
}

// Omit makes the archive thin: it has all manifests, but not the other blobs for which omit returns true. [Push] has
// the registry complete the images from what it has. Other tools cannot read a thin archive. Call it before [Pull].
func (a *Archive) Omit(omit func(digest.Digest) bool) { a.omit = omit }

func (a *Archive) omits(desc ocispec.Descriptor) bool {
	return a.omit != nil && !oci.IsManifestOrIndex(desc.MediaType) && a.omit(desc.Digest)
}

func temporary(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
}

// blob downloads a blob. [Archive.Write] writes it.
func (a *Archive) blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error {
	if a.omits(desc) {
		t.skip(desc)
		return nil
	}
	if _, ok := from.(*remoteContent); ok {
		return fetchBlob(ctx, from, desc, t)
	}
	// Write verifies it.
	if _, err := from.Blob(ctx, desc, nil); err != nil {
		return err
	}
	t.done(desc)
	return nil
}

func (a *Archive) image(_ context.Context, item Item) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items = append(a.items, item)
	return nil
}

// Write writes the archive with all images that were pulled to it. Equal images give equal bytes.
func (a *Archive) Write(ctx context.Context) error {
	err := a.writeFile(ctx)
	if blobstore.IsDiskFull(err) {
		return fmt.Errorf("archive %s: the disk of %s is full: make room there, or write it elsewhere: %w", a.path,
			filepath.Dir(a.path), err)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", a.path, err)
	}
	return nil
}

func (a *Archive) writeFile(ctx context.Context) (err error) {
	f, err := temporary(a.path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(a.writeTo(ctx, f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), a.path)
}

func (a *Archive) writeTo(ctx context.Context, to io.Writer) error {
	// Images that are pulled concurrently arrive in any order.
	slices.SortStableFunc(a.items, func(x, y Item) int { return strings.Compare(x.Reference, y.Reference) })
	w := bufio.NewWriterSize(to, 1<<20)
	if err := writeArchive(ctx, w, a.items, a.omits); err != nil {
		return err
	}
	return w.Flush()
}
