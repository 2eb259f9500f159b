// Package request parses what a request refers to, once, and carries that with its client to all handlers. It has the
// forms of their responses.
//
// It does not decide who may do what, and serves nothing.
package request

import (
	"net/http"
	"regexp"
	"strings"

	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/distribution/reference"
	"github.com/gorilla/mux"
	"github.com/opencontainers/go-digest"
)

// Target is what a request refers to.
type Target struct {
	// Repository is empty for requests outside repositories, such as the catalog.
	Repository string
	// Upload means an existing or new upload. Reading its status is part of writing: the response
	// carries the signed state that continues it.
	Upload bool
	// Manifest is a tag or digest, Blob a digest. At most one is set.
	Manifest, Blob string
	// Tags means the list of the repository's tags.
	Tags bool
	// Subject is the digest of a list of referrers, as it is in the path.
	Subject string
	// Base means /v2/, where clients ask whether to log in, and Token the path where docker logs in.
	Base, Token bool
}

// routes are distribution's, without handlers.
var routes = v2.RouterWithPrefix("")

// Parse returns what the front end, or else distribution, will route a request to. It is the zero value for
// paths that distribution does not know, and for paths that are not clean, such as those with "..", for
// which distribution responds with a redirect.
func Parse(r *http.Request) Target {
	if r.URL.Path == TokenPath && r.Method == http.MethodGet {
		return Target{Token: true}
	}
	if repository, subject, ok := referrersPath(r.URL.Path); ok {
		return Target{Repository: repository, Subject: subject}
	}
	var match mux.RouteMatch
	if !routes.Match(r, &match) || match.Route == nil {
		return Target{}
	}
	name := match.Route.GetName()
	to := Target{
		Repository: match.Vars["name"],
		Upload:     name == v2.RouteNameBlobUpload || name == v2.RouteNameBlobUploadChunk,
		Base:       name == v2.RouteNameBase,
		Tags:       name == v2.RouteNameTags,
	}
	switch name {
	case v2.RouteNameManifest:
		to.Manifest = match.Vars["reference"]
	case v2.RouteNameBlob:
		to.Blob = match.Vars["digest"]
	}
	return to
}

// TokenPath is where docker exchanges its credential, or none, for a token. No repository has this path.
const TokenPath = "/v2/token"

var referrersRoute = regexp.MustCompile(`^/v2/(` + reference.NameRegexp.String() + `)/referrers/([^/]+)$`)

// referrersPath returns the parts of the path of a referrers list.
func referrersPath(path string) (repository, subject string, ok bool) {
	if !strings.Contains(path, "/referrers/") { // every request comes here
		return "", "", false
	}
	m := referrersRoute.FindStringSubmatch(path)
	if m == nil {
		return "", "", false
	}
	return m[1], m[len(m)-1], true
}

// Reference is the name of a manifest or blob, by tag or digest.
func Reference(repository, name string) string {
	if digest.Digest(name).Validate() == nil {
		return repository + "@" + name
	}
	return repository + ":" + name
}
