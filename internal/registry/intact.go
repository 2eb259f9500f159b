package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	storagemiddleware "github.com/distribution/distribution/v3/registry/storage/driver/middleware"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
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
// Damage that does not change the size is found by reading everything (scrub.go), which marks it in the record.
// Manifests have no record: they are small, and compared with their digest whenever they are read.

// intactContent is the name of the storage middleware.
const intactContent = "zarf-registry-intact-content"

func init() {
	err := storagemiddleware.Register(intactContent, func(
		_ context.Context, driver storagedriver.StorageDriver, _ map[string]any,
	) (storagedriver.StorageDriver, error) {
		return contentDriver{driver}, nil
	})
	if err != nil {
		panic(err) // another package of this program uses the name
	}
}

// contentDriver makes distribution replace stored content, which it otherwise keeps whatever its state, and records the
// size of blobs.
type contentDriver struct{ storagedriver.StorageDriver }

// replaceKey is the context key of the path of the data that is being replaced, or of anyBlob.
type replaceKey struct{}

// anyBlob stands for the data of each blob. The SHA-256 digest of an upload may only be known at its end.
const anyBlob = "any"

// replacing makes distribution write the data at a path although it exists. Drivers replace files atomically.
func replacing(ctx context.Context, path string) context.Context {
	return context.WithValue(ctx, replaceKey{}, path)
}

// Stat implements [storagedriver.StorageDriver].
func (d contentDriver) Stat(ctx context.Context, name string) (storagedriver.FileInfo, error) {
	replaced, _ := ctx.Value(replaceKey{}).(string)
	if replaced == name || replaced == anyBlob && storage.BlobData.MatchString(name) {
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

// readSizeRecord returns the zero value if there is no valid record.
func readSizeRecord(ctx context.Context, driver storagedriver.StorageDriver, d digest.Digest) (sizeRecord, error) {
	content, err := driver.GetContent(ctx, storage.SizePath(d))
	if storage.IsNotFound(err) {
		return sizeRecord{}, nil
	}
	var record sizeRecord
	if err == nil && json.Unmarshal(content, &record) != nil {
		record = sizeRecord{} // it is damaged itself
	}
	return record, err
}

func (r sizeRecord) write(ctx context.Context, driver storagedriver.StorageDriver, d digest.Digest) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return driver.PutContent(ctx, storage.SizePath(d), content)
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

// size returns the size of a blob with a SHA-256 digest, and whether its record has it; or a
// [distribution.ErrBlobUnknown] if the blob is missing or known to be damaged. Other errors are the storage's. It asks
// the driver, because a cache may still contain blobs that were garbage-collected.
func (s *contentStore) size(ctx context.Context, d digest.Digest) (size int64, recorded bool, err error) {
	data, err := s.driver.Stat(ctx, storage.BlobPath(d))
	if storage.IsNotFound(err) {
		return 0, false, distribution.ErrBlobUnknown
	}
	if err != nil {
		return 0, false, err
	}
	record, err := readSizeRecord(ctx, s.driver, d)
	if err != nil {
		return 0, false, err
	}
	if !record.fits(d, data) {
		return 0, false, distribution.ErrBlobUnknown
	}
	return data.Size(), record.Size != 0, nil
}

// examine reads a blob's data through read, which may be slow, and records whether it is intact. It is unknown, for
// a moment, if the data was replaced meanwhile. A missing blob is a [distribution.ErrBlobUnknown].
func examine(
	ctx context.Context, driver storagedriver.StorageDriver, d digest.Digest, read func(io.Reader) io.Reader,
) (intact bool, err error) {
	before, err := driver.Stat(ctx, storage.BlobPath(d))
	if storage.IsNotFound(err) {
		return false, distribution.ErrBlobUnknown
	}
	if err != nil || before.IsDir() {
		return false, err
	}
	reader, err := driver.Reader(ctx, storage.BlobPath(d), 0)
	if storage.IsNotFound(err) {
		return false, distribution.ErrBlobUnknown
	}
	if err != nil {
		return false, err
	}
	defer reader.Close()
	verifier := d.Verifier()
	if _, err := io.Copy(verifier, read(reader)); err != nil {
		return false, err
	}
	after, err := driver.Stat(ctx, storage.BlobPath(d))
	if storage.IsNotFound(err) {
		return false, distribution.ErrBlobUnknown
	}
	if err != nil {
		return false, err
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return true, nil // replaced by what an upload has verified
	}
	record, err := readSizeRecord(ctx, driver, d)
	if err != nil {
		return false, err
	}
	want := sizeRecord{Size: after.Size()}
	if !verifier.Verified() {
		want = sizeRecord{Size: record.Size, Damaged: &storedData{after.Size(), after.ModTime()}}
		if record.Damaged != nil && *record.Damaged == *want.Damaged {
			return false, nil
		}
	} else if record == want {
		return true, nil
	}
	return verifier.Verified(), want.write(ctx, driver, d)
}

// lacking returns a [distribution.ErrManifestBlobUnknown] for something that a manifest in a repository needs and that
// is missing or damaged, or nil. Other errors are about the manifest's descriptors, or the storage's. It leaves out
// layers that are not distributed and, if indexes may be sparse, their manifests that the repository does not have.
func (s *contentStore) lacking(ctx context.Context, repository string, m described) error {
	seen := map[digest.Digest]bool{}
	unseen := func(all []v1.Descriptor) (list []v1.Descriptor) {
		for _, desc := range all {
			if !seen[desc.Digest] {
				seen[desc.Digest] = true
				list = append(list, desc)
			}
		}
		return list
	}
	for level := []described{m}; len(level) > 0; {
		var blobs, children []v1.Descriptor
		for _, m := range level {
			blobs = append(blobs, unseen(m.blobs)...)
			children = append(children, unseen(m.children)...)
		}
		err := storage.InParallel(ctx, blobs, storage.Concurrency, func(ctx context.Context, blob v1.Descriptor) error {
			return s.needsBlob(ctx, repository, blob)
		})
		if err != nil {
			return err
		}
		level = nil
		for batch := range slices.Chunk(children, storage.ManifestConcurrency) {
			found, err := storage.InOrder(ctx, batch, func(ctx context.Context, child v1.Descriptor) (described, error) {
				return s.needsChild(ctx, repository, child)
			})
			if err != nil {
				return err
			}
			level = append(level, found...)
		}
	}
	return nil
}

// needsChild returns what the manifest of an index says, or an error as lacking does.
func (s *contentStore) needsChild(ctx context.Context, repository string, child v1.Descriptor) (described, error) {
	_, err := s.readLink(ctx, storage.RevisionPath(repository, child.Digest))
	if errors.Is(err, distribution.ErrBlobUnknown) {
		// A sparse index may refer to blobs, too.
		if found, err := s.exists(ctx, storage.LayerPath(repository, child.Digest)); s.sparse && (err != nil || !found) {
			return described{}, err
		}
		return described{}, s.needsBlob(ctx, repository, child)
	}
	var content []byte
	if err == nil {
		content, err = s.manifest(ctx, repository, child.Digest)
	}
	if errors.Is(err, errUnknownManifest) || isDamaged(err) {
		return described{}, distribution.ErrManifestBlobUnknown{Digest: child.Digest}
	}
	if err != nil {
		return described{}, err
	}
	m, err := describe(content)
	if err != nil {
		return described{}, nil //nolint:nilerr // not a manifest as this registry understands it
	}
	return m, nil
}

// needsBlob returns an error as lacking does.
func (s *contentStore) needsBlob(ctx context.Context, repository string, blob v1.Descriptor) error {
	if oci.IsNonDistributable(blob.MediaType) {
		return nil
	}
	var size int64
	recorded, intact := false, false
	stored, err := s.readLink(ctx, storage.LayerPath(repository, blob.Digest))
	if err == nil {
		size, recorded, err = s.size(ctx, stored)
	}
	if err == nil && size != blob.Size && !recorded {
		intact, err = examine(ctx, s.driver, stored, func(r io.Reader) io.Reader { return r })
		if err == nil && !intact {
			err = distribution.ErrBlobUnknown
		}
	}
	switch {
	case errors.Is(err, distribution.ErrBlobUnknown), isDamaged(err):
		return distribution.ErrManifestBlobUnknown{Digest: blob.Digest}
	case err == nil && size != blob.Size:
		return errcode.ErrorCodeManifestInvalid.WithMessage(fmt.Sprintf("%s has %d bytes, and the manifest says %d",
			blob.Digest, size, blob.Size))
	}
	return err
}

// errDamaged means that a manifest has another digest.
var errDamaged = errors.New("is damaged: push it again")

// isDamaged reports whether a lookup failed because a manifest or a link is damaged. A push replaces both.
func isDamaged(err error) bool {
	return errors.Is(err, errDamaged) || errors.Is(err, digest.ErrDigestInvalidFormat) ||
		errors.Is(err, digest.ErrDigestInvalidLength) || errors.Is(err, digest.ErrDigestUnsupported)
}

// completeKey is the context key of requests for which a manifest exists only if it is complete.
type completeKey struct{}

// withCompleteness lets clients that may push find manifests only if everything that these need exists: with HEAD they
// ask whether they have to push.
func withCompleteness(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			if caller := request.CallerOf(r.Context()); caller == nil || caller.Pushes {
				r = r.WithContext(context.WithValue(r.Context(), completeKey{}, true))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Get returns a manifest. It does not exist if it is damaged, or if it must be complete and is not.
func (m manifestStore) Get(
	ctx context.Context, d digest.Digest, options ...distribution.ManifestServiceOption,
) (distribution.Manifest, error) {
	name := m.repository.Named().Name()
	unknown := distribution.ErrManifestUnknownRevision{Name: name, Revision: d}
	manifest, err := m.ManifestService.Get(ctx, d, options...)
	var content []byte
	if err == nil {
		_, content, err = manifest.Payload()
	}
	if err != nil {
		if _, found := m.source.manifest(ctx, name, d); isDamaged(found) {
			err = unknown
		}
		return nil, err
	}
	if d.Algorithm().FromBytes(content) != d {
		return nil, unknown
	}
	if ctx.Value(completeKey{}) == nil {
		return manifest, nil
	}
	described, err := describe(content)
	if err != nil {
		return manifest, nil //nolint:nilerr // not a manifest as this registry understands it
	}
	err = m.source.lacking(ctx, name, described)
	var coded errcode.Error
	if errors.As(err, new(distribution.ErrManifestBlobUnknown)) || errors.As(err, &coded) {
		return nil, unknown
	}
	return manifest, err
}
