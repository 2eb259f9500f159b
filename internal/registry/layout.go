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

var (
	blobDirectory     = regexp.MustCompile(`^` + blobsPath + `/([^/]+)/[^/]+/([^/]+)$`)
	revisionDirectory = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/revisions/([^/]+)/([^/]+)$`)
)

// blobPath is where the bytes of a blob are.
func blobPath(d digest.Digest) string {
	return blobsPath + "/" + d.Algorithm().String() + "/" + d.Encoded()[:2] + "/" + d.Encoded() + "/data"
}
