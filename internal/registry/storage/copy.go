package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// copiedPath is the record of a copy in its destination, next to the record of garbage collection.
const copiedPath = "/docker/registry/v2/zarf-registry/copied.json"

// copyRecord is the content of copiedPath.
type copyRecord struct {
	// Complete is false from the beginning of a copy to its end.
	Complete bool `json:"complete"`
}

// copyConcurrency is how many blobs are copied at once. S3's driver buffers 10 MiB of each.
const copyConcurrency = 4

// Copied is what a copy between storages has done.
type Copied struct {
	// Already is set if an earlier copy was complete. Nothing was copied.
	Already bool
	// Blobs are those that the destination lacked, and Bytes their size. Links are tags and all other small files.
	Blobs, Links int
	Bytes        int64
}

// Copy copies the images that a directory stores into an empty storage, with all that the registry keeps about
// them: everything but unfinished uploads. It calls report after each blob. Nobody may write to either meanwhile.
//
// If it is interrupted, it copies only missing blobs the next time. After it has succeeded, it does nothing any more,
// because the destination may have changed. It checks the content of each blob, and refuses a destination that has
// images from elsewhere.
func Copy(
	ctx context.Context, directory string, to *configuration.Configuration, report func(Copied),
) (Copied, error) {
	source, err := Open(ctx, configuration.Storage{DriverFilesystem: {"rootdirectory": directory}})
	if err != nil {
		return Copied{}, err
	}
	destination, err := Open(ctx, to.Storage)
	if err != nil {
		return Copied{}, err
	}
	c := &storageCopy{source: source, destination: destination, report: report}
	if c.copied.Already, err = c.prepare(ctx); err != nil || c.copied.Already {
		return c.copied, explain(to.Storage, err)
	}
	// Blobs first, so that an interrupted copy contains no image that lacks some.
	if err := c.tree(ctx, BlobsPath); err != nil {
		return c.copied, err
	}
	if err := c.tree(ctx, RepositoriesPath); err != nil {
		return c.copied, err
	}
	return c.copied, c.record(ctx, copyRecord{Complete: true})
}

type storageCopy struct {
	source, destination storagedriver.StorageDriver
	report              func(Copied)

	mu     sync.Mutex
	copied Copied
}

// prepare reports whether an earlier copy was complete. Otherwise it removes the repositories of that copy, because the
// source may have been in use since.
func (c *storageCopy) prepare(ctx context.Context) (already bool, err error) {
	var last copyRecord
	content, err := c.destination.GetContent(ctx, copiedPath)
	switch {
	case IsNotFound(err):
		names, err := ignoreMissing{c.destination}.List(ctx, RepositoriesPath)
		if err != nil {
			return false, fmt.Errorf("reading the destination: %w", err)
		}
		if len(names) > 0 {
			return false, exitcode.Refuse("the destination already has images that were not copied from here: " +
				"use another bucket or rootdirectory, or remove them")
		}
		return false, c.record(ctx, copyRecord{})
	case err != nil:
		return false, fmt.Errorf("reading %s in the destination: %w", copiedPath, err)
	}
	if err := json.Unmarshal(content, &last); err != nil {
		return false, fmt.Errorf("%s in the destination: %w", copiedPath, err)
	}
	if last.Complete {
		return true, nil
	}
	err = c.destination.Delete(ctx, RepositoriesPath)
	if IsNotFound(err) {
		err = nil
	}
	return false, err
}

func (c *storageCopy) record(ctx context.Context, r copyRecord) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := c.destination.PutContent(ctx, copiedPath, content); err != nil {
		return fmt.Errorf("writing to the destination: %w", err)
	}
	return nil
}

// tree copies the files below root.
func (c *storageCopy) tree(ctx context.Context, root string) error {
	var blobs, links []string
	err := WalkFiles(ctx, c.source, root, func(info storagedriver.FileInfo) error {
		if BlobData.MatchString(info.Path()) {
			blobs = append(blobs, info.Path())
		} else {
			links = append(links, info.Path())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the source: %w", err)
	}
	if err := InParallel(ctx, blobs, copyConcurrency, c.blob); err != nil {
		return err
	}
	return InParallel(ctx, links, Concurrency, c.link)
}

func (c *storageCopy) link(ctx context.Context, name string) error {
	content, err := c.source.GetContent(ctx, name)
	if err == nil {
		err = c.destination.PutContent(ctx, name, content)
	}
	if err != nil {
		return fmt.Errorf("copying %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copied.Links++
	return nil
}

// blob copies the data of a blob, unless the destination has it: writers show their content only when it is complete.
func (c *storageCopy) blob(ctx context.Context, name string) error {
	info, err := c.source.Stat(ctx, name)
	if err != nil {
		return fmt.Errorf("copying %s: %w", name, err)
	}
	there, err := c.destination.Stat(ctx, name)
	if err == nil && there.Size() == info.Size() {
		return nil
	}
	if err != nil && !IsNotFound(err) {
		return fmt.Errorf("reading %s in the destination: %w", name, err)
	}
	if err := c.data(ctx, name); err != nil {
		return fmt.Errorf("copying %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copied.Blobs++
	c.copied.Bytes += info.Size()
	c.report(c.copied)
	return nil
}

func (c *storageCopy) data(ctx context.Context, name string) error {
	reader, err := c.source.Reader(ctx, name, 0)
	if err != nil {
		return err
	}
	defer reader.Close()
	writer, err := c.destination.Writer(ctx, name, false)
	if err != nil {
		return err
	}
	want := BlobData.FindStringSubmatch(name)
	verifier := PathDigest(want[1], want[2]).Verifier()
	_, err = io.Copy(io.MultiWriter(writer, verifier), reader)
	if err == nil && !verifier.Verified() {
		err = fmt.Errorf("its content has another digest: push the images that need blob %s again, or delete them and %s",
			PathDigest(want[1], want[2]), path.Dir(name))
	}
	if err != nil {
		return errors.Join(err, writer.Cancel(context.WithoutCancel(ctx)))
	}
	return errors.Join(writer.Commit(ctx), writer.Close())
}
