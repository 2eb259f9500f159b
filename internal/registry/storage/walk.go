package storage

import (
	"context"
	"errors"
	"io/fs"
	"path"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
)

// WalkFiles visits the files below root, which may be missing, apart from unfinished uploads. Tags, and with them
// directories, may be deleted meanwhile. Drivers that list one directory after another abort their walk when one is
// missing, and everything after it would look like garbage. S3 has no directories and is listed as a whole.
func WalkFiles(ctx context.Context, driver storagedriver.StorageDriver, root string, visit storagedriver.WalkFn) error {
	visitFile := func(info storagedriver.FileInfo) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case info.IsDir() && path.Base(info.Path()) == "_uploads":
			return storagedriver.ErrSkipDir
		case info.IsDir():
			return nil
		}
		return visit(info)
	}
	if driver.Name() != DriverS3AWS {
		return storagedriver.WalkFallback(ctx, ignoreMissing{driver}, root, visitFile)
	}
	err := driver.Walk(ctx, root, visitFile)
	if missing := (storagedriver.PathNotFoundError{}); errors.As(err, &missing) && missing.Path == root {
		return nil // nothing was ever pushed
	}
	return err
}

// ignoreMissing lists a missing directory as empty.
type ignoreMissing struct{ storagedriver.StorageDriver }

func (d ignoreMissing) List(ctx context.Context, name string) ([]string, error) {
	names, err := d.StorageDriver.List(ctx, name)
	// The driver reports the latter if the directory is removed while it is read.
	if IsNotFound(err) || FailedWith(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// List returns the paths of what is in a directory; none if it is missing.
func List(ctx context.Context, driver storagedriver.StorageDriver, dir string) ([]string, error) {
	return ignoreMissing{driver}.List(ctx, dir)
}

// ListDigests returns the digests that the directories ALGORITHM/HEX in dir stand for; none if it is missing.
func ListDigests(
	ctx context.Context, driver storagedriver.StorageDriver, dir string,
) (digests []digest.Digest, err error) {
	driver = ignoreMissing{driver}
	algorithms, err := driver.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, algorithm := range algorithms {
		names, err := driver.List(ctx, algorithm)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if d := PathDigest(path.Base(algorithm), path.Base(name)); d.Validate() == nil {
				digests = append(digests, d)
			}
		}
	}
	return digests, nil
}
