package registry

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/gorilla/mux"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// role is what a credential entitles to.
type role int

const (
	roleNone        role = iota
	roleExposedPull      // to pull, at the exposed listener only
	rolePull
	rolePush
)

// The probe repositories are each bound to one way to the registry: a pull from
// one of them proves that way, and no other.
const (
	probeProxy    = "zarf-registry/probe-proxy"    // through the proxies: with mutual TLS
	probeNodePort = "zarf-registry/probe-nodeport" // through the node port: without TLS
)

// policy is how one listener decides.
type policy struct {
	// mutualTLS tells that the listener has verified a client certificate.
	mutualTLS bool
	// anonymousPull lets anyone read on a listener without mutual TLS.
	anonymousPull bool
	// exposed tells that the listener is for clients outside of the cluster, who are
	// no way of the nodes.
	exposed bool
}

// target is what a request is about.
type target struct {
	// repository is empty for what belongs to none, such as the catalog.
	repository string
	// upload tells that it is a repository's upload, under way or to begin. To look
	// at one is part of writing: the answer has the signed state that continues it.
	upload bool
}

func (t target) describe(method string) string {
	if t.upload {
		return method + " of an upload"
	}
	return method
}

// authorize returns nil where method is allowed on a target, or the error to answer
// with.
//
// With mutual TLS the certificate's roles, those of pki.Roles, decide who the caller
// is: nodes and pushers read, and a pusher writes with a push credential besides.
// Without, the credential alone decides. Whoever may write may write and delete
// everything: there are no rights on single repositories, so a mount from another one
// needs no more than a write. The probe repositories can be reached by
// their own way only, but a pusher's certificate leads to both: they must be
// filled before their way is open. credential is called only where its
// answer matters, because it is slow; it returns roleNone where there is no
// credential or it is wrong.
func (p policy) authorize(method string, to target, roles []string, credential func() (role, error)) error {
	read := !to.upload && (method == http.MethodGet || method == http.MethodHead)
	if p.mutualTLS {
		switch push := slices.Contains(roles, pki.OrganizationPush); {
		case !push && !slices.Contains(roles, pki.OrganizationNode):
			return denied("a client certificate with the roles %q has no access: its organization, organizational unit or URI must be %q or %q",
				roles, pki.OrganizationNode, pki.OrganizationPush)
		case to.repository == probeNodePort && !push:
			return denied("repository %s proves the way without TLS, and this request came with TLS: the one that proves this way is %s",
				probeNodePort, probeProxy)
		case read:
			return nil
		case !push:
			return denied("a client certificate with the roles %q may only read: %s needs %q and the push credential",
				roles, to.describe(method), pki.OrganizationPush)
		}
	} else if p.exposed && (to.repository == probeProxy || to.repository == probeNodePort) {
		return denied("repository %s proves a way of the nodes, and this request came from outside", to.repository)
	} else if to.repository == probeProxy {
		return denied("repository %s proves the way with TLS, and this request came without: the one that proves this way is %s",
			probeProxy, probeNodePort)
	} else if read && p.anonymousPull {
		return nil
	}

	has, err := credential()
	if has == roleExposedPull {
		has = roleNone
		if p.exposed {
			has = rolePull
		}
	}
	switch {
	case err != nil:
		return err
	case has == roleNone && read:
		return errcode.ErrorCodeUnauthorized.WithMessage("reading here needs a user name and a password")
	case has == roleNone:
		return errcode.ErrorCodeUnauthorized.WithMessage("writing needs the user name and the password of the push credential")
	case has < rolePush && !read:
		return denied("this user may only pull: %s needs the push credential", to.describe(method))
	}
	return nil
}

// routes are distribution's own, without handlers.
var routes = v2.RouterWithPrefix("")

// targetOf returns what distribution will take the request to. It is the zero value
// for a path that distribution does not know, and for one that is not clean, such as
// one with "..", which distribution answers with a redirect to the clean one.
func targetOf(r *http.Request) target {
	var match mux.RouteMatch
	if !routes.Match(r, &match) || match.Route == nil {
		return target{}
	}
	name := match.Route.GetName()
	return target{
		repository: match.Vars["name"],
		upload:     name == v2.RouteNameBlobUpload || name == v2.RouteNameBlobUploadChunk,
	}
}

func denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}
