// Package request parses what a request refers to, once, and has the forms of responses and the audit trail.
//
// It does not decide who may do what, and serves nothing.
package request

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/distribution/reference"
	"github.com/gorilla/mux"
	"github.com/opencontainers/go-digest"
)

// Target is what a request refers to.
type Target struct {
	// Repository is empty for requests outside repositories, such as the catalog.
	Repository string
	// Upload means an upload. Reading its status is part of writing: it returns the signed state that continues it.
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

// Parse returns what a request will be routed to. It is the zero value for paths that distribution does not know, and
// for those that are not clean, such as those with "..", for which it responds with a redirect.
func Parse(r *http.Request) Target {
	if r.URL.Path == TokenPath && r.Method == http.MethodGet {
		return Target{Token: true}
	}
	if strings.Contains(r.URL.Path, "/referrers/") { // every request comes here
		if m := referrersRoute.FindStringSubmatch(r.URL.Path); m != nil {
			return Target{Repository: m[1], Subject: m[len(m)-1]}
		}
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

// Reference is the name of a manifest or blob, by tag or digest.
func Reference(repository, name string) string {
	if digest.Digest(name).Validate() == nil {
		return repository + "@" + name
	}
	return repository + ":" + name
}

// Caller is the client of a request.
type Caller struct {
	Listener, Remote string
	Roles            []string // of its certificate
	Certificate      string   // the subject of its certificate, or ""
	User             string   // if known, also with a wrong password
	Pushes           bool     // may push; known of HEAD requests for manifests
	HidesOwn         bool     // the project's own repositories are not listed
}

// contextKey is the context key of what is known about a request.
type contextKey struct{}

type known struct {
	target Target
	caller *Caller
}

// With returns the request with its target and its client, which handlers get with TargetOf and CallerOf.
func With(r *http.Request, to Target, by *Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, known{to, by}))
}

// TargetOf returns the target of a request, or parses its path. One that a handler passes on may have another path.
func TargetOf(r *http.Request) Target {
	if k, ok := r.Context().Value(contextKey{}).(known); ok {
		return k.target
	}
	return Parse(r)
}

// CallerOf returns the client of a request, or nil if no front end has served it.
func CallerOf(ctx context.Context) *Caller {
	k, _ := ctx.Value(contextKey{}).(known)
	return k.caller
}

// The actions of the audit trail. ActionPrune is the removal of a manifest or a blob by a garbage collection.
const (
	ActionPush   = "push"
	ActionDelete = "delete"
	ActionPrune  = "prune"
)

// Audit writes a line of the audit trail, whatever the log's level: what the client of ctx has done to the tag or
// digest in a repository, which is empty for blobs that belong to none; more says who it was without a client. The
// handlers of internal/logging quote values, so none can end the line or look like another attribute.
func Audit(ctx context.Context, log *slog.Logger, action, repository, name, digest string, more ...slog.Attr) {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	record.AddAttrs(slog.String("action", action))
	if repository != "" {
		record.AddAttrs(slog.String("reference", Reference(repository, name)))
	}
	record.AddAttrs(slog.String("digest", digest))
	if c := CallerOf(ctx); c != nil {
		record.AddAttrs(slog.String("user", c.User))
		if c.Certificate != "" {
			record.AddAttrs(slog.String("certificate", c.Certificate))
		}
		record.AddAttrs(slog.String("listener", c.Listener), slog.String("remote", c.Remote))
	}
	record.AddAttrs(more...)
	_ = log.Handler().Handle(ctx, record) // there is no other place to report that the log is broken
}
