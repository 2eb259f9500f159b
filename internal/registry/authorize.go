package registry

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/gorilla/mux"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
)

// Each probe repository is served over one path only: a pull from it verifies that path and no other.
const (
	probeProxy    = "zarf-registry/probe-proxy"    // through the proxies, with mutual TLS
	probeNodePort = "zarf-registry/probe-nodeport" // through the node port, without TLS
)

// policy is a listener's access policy.
type policy struct {
	// mutualTLS means that the listener has verified a client certificate.
	mutualTLS bool
	// anonymousPull lets every client read at a listener without mutual TLS.
	anonymousPull bool
	// exposed means that the listener serves clients outside the cluster, and no nodes.
	exposed bool
	// loopback means that the listener serves clients of port-forwards, and no nodes.
	loopback bool
}

// target is what a request refers to.
type target struct {
	// repository is empty for requests outside repositories, such as the catalog.
	repository string
	// upload means an existing or new upload. Reading its status is part of writing: the response
	// carries the signed state that continues it.
	upload bool
	// manifest is a tag or digest, blob a digest. At most one is set.
	manifest, blob string
	// base means /v2/, where clients ask whether to log in, and token the path where docker logs in.
	base, token bool
}

func (t target) describe(method string) string {
	if t.upload {
		return method + " of an upload"
	}
	return method
}

// login is what a request says about its sender.
type login struct {
	// sent means that there is an Authorization header.
	sent bool
	// anonymous means that the header says that the client has no credential.
	anonymous bool
	// verify returns the user, or nil without a valid credential. It is slow.
	verify func() (*users.User, error)
}

// open reports whether clients that are admitted read without a credential.
func (p policy) open() bool { return p.mutualTLS || p.anonymousPull }

// authorize returns nil if method is allowed on the target, or the error to respond with.
//
// With mutual TLS, the roles of the certificate (pki.Roles) identify the client: nodes, caches, pushers
// and clients read; pushers also write if they send a push credential, and clients too, but they neither
// collect garbage nor change the registry's own repositories ([catalog.Own]), because tools that prune a registry
// (zarf tools registry prune) delete every image that they do not know. Without it, only the credential counts. A push
// credential may write and delete in its repositories, or in all. Every reader may read everything, so
// mounting a blob from another repository needs no more than write access to the target. A probe
// repository is reachable over its own path only, except with a pusher's certificate: probes are filled
// before their path is open.
//
// Most clients send a credential only after a challenge at /v2/, also where they could read without one. So
// there, everyone but nodes is challenged. Clients without a credential then send an empty one, or an
// anonymous token, or go on without: these may read. A wrong credential is refused there, so that logging in
// tells, and nowhere else that is open to everyone.
//
// Because verifying a credential is slow, authorize does so only if the result matters.
func (p policy) authorize(method string, to target, roles []string, login login) error {
	read := !to.upload && (method == http.MethodGet || method == http.MethodHead)
	if p.mutualTLS {
		push, client := slices.Contains(roles, pki.OrganizationPush), slices.Contains(roles, pki.OrganizationClient)
		reader := slices.Contains(roles, pki.OrganizationNode) || slices.Contains(roles, pki.OrganizationCache)
		switch {
		case !push && !client && !reader:
			return denied("a client certificate with the roles %q has no access: "+
				"its organization, organizational unit or URI must be %q or %q", roles, pki.OrganizationNode, pki.OrganizationPush)
		case to.repository == probeNodePort && !push:
			return denied("repository %s is served without TLS only, and this request used TLS: pull %s instead",
				probeNodePort, probeProxy)
		case read && !push && !client:
			return nil
		case !push && !client:
			return denied("a client certificate with the roles %q may only read: %s needs %q and the push credential",
				roles, to.describe(method), pki.OrganizationPush)
		case !read && !push && (to.repository == "" || catalog.Own(to.repository)):
			return denied("a client certificate with the roles %q may not change what belongs to the registry itself: %s in %s "+
				"needs %q", roles, to.describe(method), cmp.Or(to.repository, "no repository"), pki.OrganizationPush)
		}
	} else if (p.exposed || p.loopback) && (to.repository == probeProxy || to.repository == probeNodePort) {
		return denied("repository %s is served to nodes only, and this request came from outside the cluster", to.repository)
	} else if !read && p.loopback && catalog.Own(to.repository) {
		return denied("repository %s belongs to the registry itself: only zarf-registry changes it", to.repository)
	} else if to.repository == probeProxy {
		return denied("repository %s is served with TLS only, and this request did not use TLS: pull %s instead",
			probeProxy, probeNodePort)
	}
	open := read && p.open()
	if open && (!to.base && !to.token || login.anonymous || to.token && !login.sent) {
		return nil
	}

	user, err := login.verify()
	switch {
	case err != nil:
		return err
	case user == nil && open:
		return errcode.ErrorCodeUnauthorized.WithMessage("logging in requires a valid user name and password; " +
			"reading requires none")
	case user == nil && read:
		return errcode.ErrorCodeUnauthorized.WithMessage("reading requires a user name and a password")
	case user == nil:
		return errcode.ErrorCodeUnauthorized.WithMessage("writing requires the push credential's user name and password")
	case read:
		return nil
	case user.Role < users.RolePush:
		return denied("this user may only pull: %s needs the push credential", to.describe(method))
	case !user.MayWrite(to.repository):
		return denied("credential %s may write to %s only: %s in %s needs another one", user.Name,
			strings.Join(user.Repositories, ", "), to.describe(method), cmp.Or(to.repository, "no repository"))
	}
	return nil
}

// routes are distribution's, without handlers.
var routes = v2.RouterWithPrefix("")

// targetOf returns what the front, or else distribution, will route the request to. It is the zero value for
// paths that distribution does not know, and for paths that are not clean, such as those with "..", for
// which distribution responds with a redirect.
func targetOf(r *http.Request) target {
	if r.URL.Path == tokenPath && r.Method == http.MethodGet {
		return target{token: true}
	}
	if repository, _, ok := referrersPath(r.URL.Path); ok {
		return target{repository: repository}
	}
	var match mux.RouteMatch
	if !routes.Match(r, &match) || match.Route == nil {
		return target{}
	}
	name := match.Route.GetName()
	to := target{
		repository: match.Vars["name"],
		upload:     name == v2.RouteNameBlobUpload || name == v2.RouteNameBlobUploadChunk,
		base:       name == v2.RouteNameBase,
	}
	switch name {
	case v2.RouteNameManifest:
		to.manifest = match.Vars["reference"]
	case v2.RouteNameBlob:
		to.blob = match.Vars["digest"]
	}
	return to
}
