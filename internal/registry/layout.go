package registry

import (
	"regexp"

	"github.com/opencontainers/go-digest"
)

// Distribution's storage layout, which is versioned and documented in its registry/storage/paths.go.
const (
	storagePath      = "/docker/registry/v2"
	repositoriesPath = storagePath + "/repositories"
	blobsPath        = storagePath + "/blobs"
)

// The paths that garbage collection needs. The first group of those in repositories is the repository;
// digests are two groups, algorithm and encoded; the second group of currentLink is the tag.
var (
	revisionLink = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/revisions/([^/]+)/([^/]+)/link$`)
	currentLink  = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/tags/([^/]+)/current/link$`)
	historyLink  = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/tags/[^/]+/index/([^/]+)/([^/]+)/link$`)
	layerLink    = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_layers/([^/]+)/([^/]+)/link$`)
	digestLink   = regexp.MustCompile(`^` + blobsPath + `/([^/]+)/[^/]+/([^/]+)/link$`)
	backLink     = regexp.MustCompile(
		`^` + repositoriesPath + `/(.+)/(?:_referrers|_indexes)/[^/]+/[^/]+/([^/]+)/([^/]+)/descriptor\.json$`)
	blobData = regexp.MustCompile(`^` + blobsPath + `/([^/]+)/[^/]+/([^/]+)/data$`)
)

// tagPath is the path of the link that is a tag.
func tagPath(repository, tag string) string {
	return repositoriesPath + "/" + repository + "/_manifests/tags/" + tag + "/current/link"
}

// digestLinkPath is the path of the link from a digest other than SHA-256 to the SHA-256 digest.
func digestLinkPath(d digest.Digest) string {
	return blobDir(d) + "/link"
}

// layerPath and revisionPath are the paths of links that make a blob or a manifest part of a repository.
func layerPath(repository string, d digest.Digest) string {
	return repositoriesPath + "/" + repository + "/_layers/" + digestPath(d) + "/link"
}

func revisionPath(repository string, d digest.Digest) string {
	return revisionsDir(repository) + "/" + digestPath(d) + "/link"
}

// uploadDir is the directory of an unfinished upload.
func uploadDir(repository, id string) string {
	return repositoriesPath + "/" + repository + "/_uploads/" + id
}

func revisionsDir(repository string) string {
	return repositoriesPath + "/" + repository + "/_manifests/revisions"
}

// digestPath is a digest as two directories.
func digestPath(d digest.Digest) string { return d.Algorithm().String() + "/" + d.Encoded() }

// blobPath is the path of a blob's data.
func blobPath(d digest.Digest) string {
	return blobDir(d) + "/data"
}

// sizePath is the path of the record of a blob's size.
func sizePath(d digest.Digest) string {
	return blobDir(d) + "/size.json"
}

func blobDir(d digest.Digest) string {
	return blobsPath + "/" + d.Algorithm().String() + "/" + d.Encoded()[:2] + "/" + d.Encoded()
}
