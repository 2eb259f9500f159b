package content

import (
	"context"
	"errors"
	"io"
	"reflect"
	"time"

	"github.com/distribution/distribution/v3"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

// Stored content can be lost or cut off, for instance after a crash. Only its digest tells for certain, but reading a
// layer takes too long for each request. So there is a record of its size next to each blob, which is compared with
// the size of the data whenever a client asks for the blob: a HEAD request or a mount before an upload, a GET, and the
// upload of a manifest that needs it. Content that does not fit its record does not exist for clients, so they upload
// it, and every upload replaces what is stored. Reading a record costs one small file, and on S3 one request.
//
// Clients that find a manifest do not ask for its blobs. So for clients that may push, a manifest exists only if
// everything that it needs does. Nodes are not affected, whose requests are many.
//
// Damage that does not change the size is found by reading everything (package inspect), which marks it in the record.
// Manifests have no record: they are small, and compared with their digest whenever they are read.

// ForUploads returns what distribution uses of a driver.
func ForUploads(driver storagedriver.StorageDriver) storagedriver.StorageDriver {
	return contentDriver{driver}
}

// contentDriver makes distribution replace stored blobs, whatever their state, and records their size.
type contentDriver struct{ storagedriver.StorageDriver }

// replaceKey is the context key of an upload whose blob is replaced.
type replaceKey struct{}

// Replacing makes distribution write the data of a blob although it exists. Drivers replace files atomically.
func Replacing(ctx context.Context) context.Context {
	return context.WithValue(ctx, replaceKey{}, true)
}

// Stat implements [storagedriver.StorageDriver].
func (d contentDriver) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	if ctx.Value(replaceKey{}) != nil && storage.BlobData.MatchString(name) {
		return nil, storagedriver.PathNotFoundError{Path: name, DriverName: d.Name()}
	}
	return d.StorageDriver.Stat(ctx, name)
}

// Move implements [storagedriver.StorageDriver]. Distribution moves verified uploads to where blobs are.
func (d contentDriver) Move(ctx context.Context, from, to string) error {
	m := storage.BlobData.FindStringSubmatch(to)
	if m == nil {
		return d.StorageDriver.Move(ctx, from, to)
	}
	blob := storage.PathDigest(m[1], m[2])
	upload, err := d.StorageDriver.Stat(ctx, from)
	if err != nil {
		return err
	}
	record, err := readSizeRecord(ctx, d, blob)
	if err != nil {
		return err
	}
	// The record comes first, so that there is no data without it.
	if record.Size != upload.Size() {
		record.Size = upload.Size()
		if err := record.write(ctx, d, blob); err != nil {
			return err
		}
	}
	if err := d.StorageDriver.Move(ctx, from, to); err != nil || record.Damaged == nil {
		return err
	}
	record.Damaged = nil
	return record.write(ctx, d, blob)
}

// sizeRecord is the content of the file next to a blob's data.
type sizeRecord struct {
	// Size is the blob's, in bytes. Zero is unknown: distribution itself writes no record.
	Size int64 `json:"size,omitempty"`
	// Damaged is data that has another digest. The record does not describe other data.
	Damaged *storedData `json:"damaged,omitempty"`
}

// storedData identifies what a file contained at a time.
type storedData struct {
	Size    int64     `json:"size"`
	Written time.Time `json:"written"`
}

func readSizeRecord(ctx context.Context, driver storagedriver.StorageDriver, d digest.Digest) (sizeRecord, error) {
	return storage.ReadJSON[sizeRecord](ctx, driver, storage.SizePath(d))
}

func (r sizeRecord) write(ctx context.Context, driver storagedriver.StorageDriver, d digest.Digest) error {
	return storage.WriteJSON(ctx, driver, storage.SizePath(d), r)
}

// fits reports whether a blob's data may be what its digest says.
func (r sizeRecord) fits(d digest.Digest, data storagedriver.FileInfo) bool {
	switch {
	case data.IsDir():
		return false
	case data.Size() == 0 || d == digest.FromBytes(nil):
		return data.Size() == 0 && d == digest.FromBytes(nil)
	case r.Size != 0 && r.Size != data.Size():
		return false
	}
	return r.Damaged == nil || r.Damaged.Size != data.Size() || !r.Damaged.Written.Equal(data.ModTime())
}

// Size returns the size of a blob with a SHA-256 digest, and whether its record has it; or a
// [distribution.ErrBlobUnknown] if the blob is missing or known to be damaged. Other errors are the storage's. It asks
// the driver, because a cache may still contain blobs that were garbage-collected.
func (s *Store) Size(ctx context.Context, d digest.Digest) (size int64, recorded bool, err error) {
	data, err := s.statBlob(ctx, d)
	if err != nil {
		return 0, false, err
	}
	record, err := readSizeRecord(ctx, s.Driver, d)
	if err != nil {
		return 0, false, err
	}
	if !record.fits(d, data) {
		return 0, false, distribution.ErrBlobUnknown
	}
	return data.Size(), record.Size != 0, nil
}

// statBlob returns a [distribution.ErrBlobUnknown] if a blob is missing.
func (s *Store) statBlob(ctx context.Context, d digest.Digest) (storagedriver.FileInfo, error) {
	data, err := s.Driver.Stat(ctx, storage.BlobPath(d))
	return data, storage.AsUnknown(err)
}

// Examine reads a blob's data through read, which may be slow, and records whether it is intact. It is unknown, for
// a moment, if the data was replaced meanwhile. A missing blob is a [distribution.ErrBlobUnknown].
func (s *Store) Examine(ctx context.Context, d digest.Digest, read func(io.Reader) io.Reader) (intact bool, err error) {
	before, err := s.statBlob(ctx, d)
	if err != nil || before.IsDir() {
		return false, err
	}
	reader, err := s.Driver.Reader(ctx, storage.BlobPath(d), 0)
	if err != nil {
		return false, storage.AsUnknown(err)
	}
	defer reader.Close()
	verifier := d.Verifier()
	if _, err := io.Copy(verifier, read(reader)); err != nil {
		return false, err
	}
	after, err := s.statBlob(ctx, d)
	if err != nil {
		return false, err
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return true, nil // replaced by what an upload has verified
	}
	record, err := readSizeRecord(ctx, s.Driver, d)
	if err != nil {
		return false, err
	}
	want := sizeRecord{Size: after.Size()}
	if !verifier.Verified() {
		want = sizeRecord{Size: record.Size, Damaged: &storedData{after.Size(), after.ModTime()}}
	}
	if reflect.DeepEqual(record, want) {
		return verifier.Verified(), nil
	}
	if err := want.write(ctx, s.Driver, d); err != nil {
		return false, err
	}
	// A collection may have removed the blob meanwhile, and the record would stay.
	if _, err := s.statBlob(ctx, d); errors.Is(err, distribution.ErrBlobUnknown) {
		_ = s.Driver.Delete(ctx, storage.SizePath(d)) // the record of a blob that is just pushed again may be missing
		return false, err
	}
	return verifier.Verified(), nil
}
