package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
)

// Distribution's storage layout, which is versioned and documented in its registry/storage/paths.go.
const (
	RootPath         = "/docker/registry/v2"
	RepositoriesPath = RootPath + "/repositories"
	BlobsPath        = RootPath + "/blobs"
)

// The paths that an inventory needs. The first group of those in repositories is the repository; digests are two
// groups, algorithm and encoded. The second group of CurrentLink is the tag. That of NamedLink says what is linked, and
// its third is a tag that refers to it, or once did.
var (
	CurrentLink = regexp.MustCompile(`^` + RepositoriesPath + `/(.+)/_manifests/tags/([^/]+)/current/link$`)
	NamedLink   = regexp.MustCompile(`^` + RepositoriesPath + `/(.+)/(_layers|_manifests/revisions|` +
		`_manifests/tags/([^/]+)/index|(?:_referrers|_indexes)/[^/]+/[^/]+)/([^/]+)/([^/]+)/(?:link|descriptor\.json)$`)
	BlobData   = regexp.MustCompile(`^` + BlobsPath + `/([^/]+)/[^/]+/([^/]+)/data$`)
	DigestLink = regexp.MustCompile(`^` + BlobsPath + `/([^/]+)/[^/]+/([^/]+)/link$`)
)

// TagPath is the path of the link that is a tag.
func TagPath(repository, tag string) string { return TagDir(repository, tag) + "/current/link" }

// HistoryPath is the path of a link to a manifest that a tag refers to, or once did.
func HistoryPath(repository, tag string, d digest.Digest) string {
	return TagDir(repository, tag) + "/index/" + DigestPath(d) + "/link"
}

// TagDir is the directory of a tag.
func TagDir(repository, tag string) string { return TagsDir(repository) + "/" + tag }

// TagsDir is the directory of a repository's tags.
func TagsDir(repository string) string {
	return RepositoriesPath + "/" + repository + "/_manifests/tags"
}

// DigestLinkPath is the path of the link from a digest other than SHA-256 to the SHA-256 digest.
func DigestLinkPath(d digest.Digest) string { return blobDir(d) + "/link" }

// LayerPath and RevisionPath are the paths of links that make a blob or a manifest part of a repository.
func LayerPath(repository string, d digest.Digest) string {
	return RepositoriesPath + "/" + repository + "/_layers/" + DigestPath(d) + "/link"
}

func RevisionPath(repository string, d digest.Digest) string {
	return RevisionsDir(repository) + "/" + DigestPath(d) + "/link"
}

// UploadDir is the directory of an unfinished upload.
func UploadDir(repository, id string) string {
	return RepositoriesPath + "/" + repository + "/_uploads/" + id
}

func RevisionsDir(repository string) string {
	return RepositoriesPath + "/" + repository + "/_manifests/revisions"
}

// DigestPath is a digest as two directories.
func DigestPath(d digest.Digest) string { return d.Algorithm().String() + "/" + d.Encoded() }

// BlobPath is the path of a blob's data.
func BlobPath(d digest.Digest) string { return blobDir(d) + "/data" }

// SizePath is the path of the record of a blob's size.
func SizePath(d digest.Digest) string { return blobDir(d) + "/size.json" }

func blobDir(d digest.Digest) string {
	return BlobsPath + "/" + d.Algorithm().String() + "/" + d.Encoded()[:2] + "/" + d.Encoded()
}

func PathDigest(algorithm, encoded string) digest.Digest {
	return digest.NewDigestFromEncoded(digest.Algorithm(algorithm), encoded)
}

// clockPath is written to read the storage's clock.
const clockPath = RootPath + "/zarf-registry/clock"

// Now returns the time by the clock that stamps files.
func Now(ctx context.Context, driver storagedriver.StorageDriver, root string) (time.Time, error) {
	if err := PutRecord(ctx, driver, root, clockPath, []byte("\n")); err != nil {
		return time.Time{}, err
	}
	info, err := driver.Stat(ctx, clockPath)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// ReadJSON returns the record at a path, or the zero value if it is missing or damaged.
func ReadJSON[T any](ctx context.Context, driver storagedriver.StorageDriver, path string) (record T, err error) {
	content, err := driver.GetContent(ctx, path)
	if IsNotFound(err) {
		return record, nil
	}
	if err == nil && json.Unmarshal(content, &record) != nil {
		record = *new(T)
	}
	return record, err
}

// WriteJSON replaces the record at a path.
func WriteJSON(ctx context.Context, driver storagedriver.StorageDriver, path string, record any) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return driver.PutContent(ctx, path, content)
}

// ReadLink returns the digest in a link, or a [distribution.ErrBlobUnknown].
func ReadLink(ctx context.Context, driver storagedriver.StorageDriver, path string) (digest.Digest, error) {
	content, err := driver.GetContent(ctx, path)
	if err != nil {
		return "", AsUnknown(err)
	}
	d, err := digest.Parse(strings.TrimSpace(string(content)))
	if err != nil {
		return "", fmt.Errorf("link %s contains %q: %w: push its content again, or delete the link", path, content, err)
	}
	return d, nil
}
