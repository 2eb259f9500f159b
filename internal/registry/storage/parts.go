package storage

import (
	"context"
	"maps"
	"math"
	"path"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
)

// S3 stores a blob in at most 10,000 parts, which the driver holds in memory one by one: its default of 10 MiB suffices
// for 98 GiB. So a blob continues with larger parts when it has become large: 25 GiB in 2,500 small parts, and 1 TiB
// with the 7,500 others. S3 itself copies a finished blob, in parts of up to 5 GiB that need no memory here.
const (
	smallPart = 10 << 20
	largePart = 140 << 20
	copyPart  = 128 << 20
	largeFrom = 2500 * smallPart
)

// partsDriver is distribution's driver for S3, with these parts.
type partsDriver struct {
	storagedriver.StorageDriver
	large     storagedriver.StorageDriver // the same storage, with large parts
	part      int64                       // the size of small parts, in bytes
	largeFrom int64
}

// openS3 uses small parts only if the parameters set a size.
func openS3(ctx context.Context, parameters configuration.Parameters) (storagedriver.StorageDriver, error) {
	parameters = maps.Collect(maps.All(parameters))
	if parameters["multipartcopychunksize"] == nil {
		parameters["multipartcopychunksize"] = copyPart
	}
	driver, err := factory.Create(ctx, DriverS3, parameters)
	if err != nil || parameters["chunksize"] != nil {
		return &partsDriver{driver, nil, smallPart, math.MaxInt64}, err
	}
	parameters["chunksize"] = largePart
	large, err := factory.Create(ctx, DriverS3, parameters)
	return &partsDriver{driver, large, smallPart, largeFrom}, err
}

// Delete implements [storagedriver.StorageDriver]. It aborts what has arrived of an upload, which is in no directory:
// distribution's purge does not, and the parts would stay, and be paid for.
func (d *partsDriver) Delete(ctx context.Context, name string) error {
	if inUpload(name) && path.Base(path.Dir(name)) == "_uploads" {
		if writer, err := d.Writer(ctx, path.Join(name, "data"), true); err == nil {
			_ = writer.Cancel(ctx) // it may be complete
		}
	}
	return d.StorageDriver.Delete(ctx, name)
}

// Writer implements [storagedriver.StorageDriver]. An upload that is complete, because its process ended before it was
// a blob, cannot be continued, and does not exist: its client begins again.
func (d *partsDriver) Writer(ctx context.Context, name string, extend bool) (storagedriver.FileWriter, error) {
	writer, err := d.StorageDriver.Writer(ctx, name, extend)
	if err != nil {
		if info, missing := d.Stat(ctx, name); extend && missing == nil && info.Size() > 0 {
			err = storagedriver.PathNotFoundError{Path: name}
		}
		return nil, err
	}
	w := &partsWriter{FileWriter: writer, ctx: ctx, driver: d, name: name, total: writer.Size()}
	if w.total >= d.largeFrom {
		return w, w.enlarge()
	}
	return w, nil
}

// partsWriter continues with large parts.
type partsWriter struct {
	storagedriver.FileWriter
	ctx    context.Context
	driver *partsDriver // nil with large parts
	name   string
	total  int64 // with what is in memory
	began  int64 // bytes of small parts since the writer was opened
}

func (w *partsWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 && w.driver != nil {
		n, err := w.FileWriter.Write(p[:min(int64(len(p)), w.driver.part-w.began%w.driver.part)])
		written, p = written+n, p[n:]
		w.began += int64(n)
		w.total += int64(n)
		if err != nil {
			return written, err
		}
		// At the end of a part, nothing is in memory.
		if w.total >= w.driver.largeFrom && w.Size() == w.total {
			if err := w.enlarge(); err != nil {
				return written, err
			}
		}
	}
	if len(p) > 0 {
		n, err := w.FileWriter.Write(p)
		return written + n, err
	}
	return written, nil
}

func (w *partsWriter) enlarge() error {
	if err := w.Close(); err != nil {
		return err
	}
	large, err := w.driver.large.Writer(w.ctx, w.name, true)
	if err != nil {
		return err
	}
	w.FileWriter, w.driver = large, nil
	return nil
}
