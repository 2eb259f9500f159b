package registry

import (
	"regexp"

	"github.com/opencontainers/go-digest"
)

// Where distribution keeps what it stores: a layout with a version, documented in
// its registry/storage/paths.go.
const (
	repositoriesPath = "/docker/registry/v2/repositories"
	blobsPath        = "/docker/registry/v2/blobs"
)

// The paths that matter to a collection; the first group of those in repositories is
// the repository. Digests are an algorithm and what it makes.
var (
	revisionLink = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/revisions/([^/]+)/([^/]+)/link$`)
	currentLink  = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/tags/[^/]+/current/link$`)
	historyLink  = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/tags/[^/]+/index/([^/]+)/([^/]+)/link$`)
	layerLink    = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_layers/([^/]+)/([^/]+)/link$`)
	blobData     = regexp.MustCompile(`^` + blobsPath + `/([^/]+)/[^/]+/([^/]+)/data$`)
)

// blobPath is where the bytes of a blob are.
func blobPath(d digest.Digest) string {
	return blobsPath + "/" + d.Algorithm().String() + "/" + d.Encoded()[:2] + "/" + d.Encoded() + "/data"
}
