package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/blob"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// Archive is an OCI archive that images are written to. [Pull] creates or replaces the file. It is safe for concurrent
// use.
//
// Blobs are written to their final places in a file next to the archive while they are downloaded, in any order:
// descriptors tell how large the tar becomes. What incomplete images leave empty is closed up at the end.
type Archive struct {
	path   string
	omit   func(digest.Digest) bool
	file   *os.File // locked; nil after finish
	places map[digest.Digest]*place

	mu     sync.Mutex
	images []*imagePull // that are complete
}

// place is where a blob's content is in an archive.
type place struct {
	at   int64
	lock chan struct{} // held while the blob is written
	full bool
}

var _ Output = (*Archive)(nil)

// CreateArchive prepares an archive at path. The file at path does not change before the end of [Pull].
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

// WriteArchive writes whole images as an OCI archive, a tar of an OCI layout. ctr, nerdctl, docker
// (since 25), podman, skopeo and [Open] read it. Equal images give equal bytes.
func WriteArchive(ctx context.Context, path string, src Content, images ...Image) error {
	archive, err := CreateArchive(path)
	if err != nil {
		return err
	}
	_, err = Pull(ctx, Items(src, images...), archive, Options{FailFast: true})
	return errors.Join(err, archive.Close())
}

// Omit makes the archive thin: it has all manifests, but not the other blobs for which omit returns true. [Push] has
// the registry complete the images from what it has. Other tools cannot read a thin archive. Call it before [Pull].
func (a *Archive) Omit(omit func(digest.Digest) bool) { a.omit = omit }

func (a *Archive) omits(desc ocispec.Descriptor) bool {
	return a.omit != nil && !oci.IsManifestOrIndex(desc.MediaType) && a.omit(desc.Digest)
}

// plan gives each blob its place, and reserves the disk space of all.
func (a *Archive) plan(ctx context.Context, images []*imagePull) error {
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
			a.places[e.desc.Digest] = &place{at: at, lock: make(chan struct{}, 1)}
		}
		at += padded(e.desc.Size)
	}
	return a.wrap(reserve(ctx, a.file, at+2*tarBlock))
}

// sorted makes an archive independent of the order of its images.
func sorted(images []*imagePull) []*imagePull {
	return slices.SortedStableFunc(slices.Values(images), func(x, y *imagePull) int {
		return strings.Compare(x.Reference, y.Reference)
	})
}

// blob writes a blob to its place, unless another image has done so.
func (a *Archive) blob(ctx context.Context, from Content, desc ocispec.Descriptor, t *imageProgress) error {
	if a.omits(desc) {
		t.skip(desc)
		return nil
	}
	p := a.places[desc.Digest]
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.full {
		t.skip(desc)
		return nil
	}
	_, remote := from.(*remoteContent)
	moved := !remote
	received := t.received(desc)
	rc, err := openVerified(ctx, from, desc, func(offset, n int64) {
		moved = true
		received(offset, n)
	})
	if err != nil {
		return err
	}
	defer rc.Close()
	n, err := io.Copy(io.NewOffsetWriter(a.file, p.at), contextReader{ctx, rc})
	if err != nil {
		return a.wrap(err)
	}
	if n < desc.Size {
		return blob.ShortError(desc.Size - n)
	}
	p.full = true
	if moved {
		t.done(desc)
	} else {
		t.skip(desc)
	}
	return nil
}

func (a *Archive) image(_ context.Context, image *imagePull) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.images = append(a.images, image)
	return nil
}

// finish completes the archive with the images that were pulled to it completely; there must be one. Equal images give
// equal bytes.
func (a *Archive) finish(ctx context.Context, ended bool) (bool, error) {
	if ended {
		return false, nil // an existing archive stays
	}
	if err := a.write(ctx); err != nil {
		return false, a.wrap(err)
	}
	name := a.file.Name()
	err := errors.Join(a.file.Chmod(0o644), a.file.Close())
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

// Close removes what an incomplete [Pull] has left.
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
