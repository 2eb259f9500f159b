package output

import (
	"cmp"
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

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Archive is an OCI archive that images are written to. It creates or replaces the file at the end. It is safe for
// concurrent use.
//
// Blobs are written to their final places in a file next to the archive while they are downloaded, in any order:
// descriptors tell how large the tar becomes. What incomplete images leave empty is closed up at the end.
type Archive struct {
	path   string
	omit   func(digest.Digest) bool
	file   *os.File // locked; nil after Finish
	places map[digest.Digest]*place

	mu     sync.Mutex
	images []Image // that are complete
}

// place is where a blob's content is in an archive.
type place struct {
	at   int64
	mu   sync.Mutex // held while the blob is written
	full bool
}

// CreateArchive prepares an archive at path. The file at path does not change before [Archive.Finish].
func CreateArchive(path string) (*Archive, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("archive %s: exists and is not a regular file", path)
	}
	// One name for all runs, so that one that was killed leaves nothing that stays.
	file, err := blobstore.LockFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".part"))
	if err == nil {
		err = file.Truncate(0)
	}
	if err != nil {
		return nil, fmt.Errorf("archive %s: %w", path, err)
	}
	return &Archive{path: path, file: file, places: map[digest.Digest]*place{}}, nil
}

// Omit makes the archive thin: it has all manifests, but not the other blobs for which omit returns true. A push has
// the registry complete the images from what it has. Other tools cannot read a thin archive. Call it before
// [Archive.Plan].
func (a *Archive) Omit(omit func(digest.Digest) bool) { a.omit = omit }

func (a *Archive) omits(desc ocispec.Descriptor) bool {
	return a.omit != nil && !oci.IsManifestOrIndex(desc.MediaType) && a.omit(desc.Digest)
}

// Plan gives each blob of the images its place, and reserves the disk space of all.
func (a *Archive) Plan(ctx context.Context, images []Image) error {
	entries, err := archiveEntries(sorted(images), a.omits)
	if err != nil {
		return a.wrap(err)
	}
	var at int64
	for _, e := range entries {
		header, err := e.header()
		if err != nil {
			return a.wrap(err)
		}
		at += int64(len(header))
		if e.metadata == nil {
			a.places[e.desc.Digest] = &place{at: at}
		}
		at += padded(e.desc.Size)
	}
	return a.wrap(reserve(ctx, a.file, at+2*tarBlock))
}

// sorted makes an archive independent of the order of its images.
func sorted(images []Image) []Image {
	return slices.SortedStableFunc(slices.Values(images), func(x, y Image) int {
		return strings.Compare(x.Reference, y.Reference)
	})
}

// Blob writes a blob to its place, unless another image has done so. moved reports whether it was transferred.
func (a *Archive) Blob(ctx context.Context, from graph.Content, desc ocispec.Descriptor,
	received func(offset, n int64)) (moved bool, err error) {
	if a.omits(desc) {
		return false, nil
	}
	p := a.places[desc.Digest]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return false, nil
	}
	rc, moved, err := open(ctx, from, desc, received)
	if err != nil {
		return false, err
	}
	defer rc.Close()
	n, err := io.Copy(io.NewOffsetWriter(a.file, p.at), blob.WithContext(ctx, rc))
	if err != nil {
		return false, a.wrap(err)
	}
	if n < desc.Size {
		return false, blob.ShortError(desc.Size - n)
	}
	p.full = true
	return moved, nil
}

// open opens content that is verified while it is read, or was verified in the store that keeps it.
func open(ctx context.Context, from graph.Content, desc ocispec.Descriptor, received func(offset, n int64)) (
	rc io.ReadCloser, moved bool, err error) {
	store, moved, err := keep(ctx, from, desc, received)
	if err == nil {
		f, err := store.Open(ctx, desc)
		if !errors.Is(err, fs.ErrNotExist) { // another process may have evicted it
			return f, moved, err
		}
	} else if !errors.Is(err, blobstore.ErrNoRoom) {
		return nil, false, err
	}
	b, err := from.Blob(ctx, desc, received)
	if err != nil {
		return nil, false, err
	}
	rc, err = b.Fetch(desc)
	return rc, true, err
}

// Image records that all blobs of an image are stored.
func (a *Archive) Image(image Image) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.images = append(a.images, image)
	return nil
}

// Finish completes the archive with the images that were pulled to it completely; there must be one. Equal images give
// equal bytes. If the run has ended, an existing archive stays. kept reports whether the archive has the images.
func (a *Archive) Finish(ctx context.Context, ended bool) (kept bool, err error) {
	if ended {
		return false, nil
	}
	if err := a.write(ctx); err != nil {
		return false, a.wrap(err)
	}
	name := a.file.Name()
	err = errors.Join(a.file.Chmod(0o644), a.file.Close())
	a.file = nil
	err = a.wrap(cmp.Or(err, os.Rename(name, a.path)))
	return err == nil, err
}

// write adds all that is not a blob, and moves blobs to the front if others are missing.
func (a *Archive) write(ctx context.Context) error {
	if len(a.images) == 0 {
		return errors.New("no image is complete")
	}
	entries, err := archiveEntries(sorted(a.images), a.omits)
	if err != nil {
		return err
	}
	var at int64
	for _, e := range entries {
		header, err := e.header()
		if err != nil {
			return err
		}
		content := at + int64(len(header))
		end := content + e.desc.Size
		at = content + padded(e.desc.Size)
		if e.metadata != nil {
			header = append(header, e.metadata...)
		} else if err := move(ctx, a.file, a.places[e.desc.Digest].at, content, e.desc.Size); err != nil {
			return err
		}
		if _, err := a.file.WriteAt(header, content-int64(len(header)-len(e.metadata))); err != nil {
			return err
		}
		if _, err := a.file.WriteAt(make([]byte, at-end), end); err != nil {
			return err
		}
	}
	if _, err := a.file.WriteAt(make([]byte, 2*tarBlock), at); err != nil {
		return err
	}
	if err := a.file.Truncate(at + 2*tarBlock); err != nil {
		return err
	}
	// It cannot be interrupted, and may take minutes.
	synced := make(chan error, 1)
	go func() { synced <- a.file.Sync() }()
	select {
	case err := <-synced:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// movePiece is how many bytes are moved between checks of the context.
const movePiece = 1 << 20

// move moves size bytes of a file to the front, from an offset to another.
func move(ctx context.Context, f *os.File, from, to, size int64) error {
	if from == to {
		return nil
	}
	if from < to {
		return errors.New("the list of its images became larger than planned: run the command again")
	}
	buffer := make([]byte, min(size, movePiece))
	for done := int64(0); done < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := buffer[:min(size-done, movePiece)]
		if _, err := f.ReadAt(piece, from+done); err != nil {
			return err
		}
		if _, err := f.WriteAt(piece, to+done); err != nil {
			return err
		}
		done += int64(len(piece))
	}
	return nil
}

// Close removes what an incomplete archive has left.
func (a *Archive) Close() error {
	if a.file == nil {
		return nil
	}
	return errors.Join(os.Remove(a.file.Name()), a.file.Close())
}

// wrap adds the archive's name to an error, and a remedy for a full disk.
func (a *Archive) wrap(err error) error {
	if err == nil {
		return nil
	}
	if blobstore.IsDiskFull(err) {
		return fmt.Errorf("archive %s: the disk of %s is full: make room there, or write it elsewhere: %w", a.path,
			filepath.Dir(a.path), err)
	}
	return fmt.Errorf("archive %s: %w", a.path, err)
}
