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
	roleNone role = iota
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
}

// authorize returns nil where method is allowed on repository, which is empty for
// what belongs to none, or the error to answer with.
//
// With mutual TLS the certificate's organizations decide who the caller is:
// nodes and pushers read, and a pusher writes with a push credential besides.
// Without, the credential alone decides. The probe repositories can be reached by
// their own way only, but a pusher's certificate leads to both: they must be
// filled before their way is open. credential is called only where its
// answer matters, because it is slow; it returns roleNone where there is no
// credential or it is wrong.
func (p policy) authorize(method, repository string, organizations []string, credential func() (role, error)) error {
	read := method == http.MethodGet || method == http.MethodHead
	if p.mutualTLS {
		switch push := slices.Contains(organizations, pki.OrganizationPush); {
		case !push && !slices.Contains(organizations, pki.OrganizationNode):
			return denied("a client certificate of organization %q has no access: use one of %q or %q",
				organizations, pki.OrganizationNode, pki.OrganizationPush)
		case repository == probeNodePort && !push:
			return denied("repository %s proves the way without TLS, and this request came with TLS: the one that proves this way is %s",
				probeNodePort, probeProxy)
		case read:
			return nil
		case !push:
			return denied("a client certificate of organization %q may only read: %s needs one of %q and the push credential",
				organizations, method, pki.OrganizationPush)
		}
	} else if repository == probeProxy {
		return denied("repository %s proves the way with TLS, and this request came without: the one that proves this way is %s",
			probeProxy, probeNodePort)
	} else if read && p.anonymousPull {
		return nil
	}

	switch has, err := credential(); {
	case err != nil:
		return err
	case has == roleNone && read:
		return errcode.ErrorCodeUnauthorized.WithMessage("reading here needs a user name and a password")
	case has == roleNone:
		return errcode.ErrorCodeUnauthorized.WithMessage("writing needs the user name and the password of the push credential")
	case has < rolePush && !read:
		return denied("this user may only pull: %s needs the push credential", method)
	}
	return nil
}

// routes are distribution's own, without handlers.
var routes = v2.RouterWithPrefix("")

// repositoryOf returns the repository that distribution will take the request to,
// or "". It is "" too for a path that is not clean, such as one with "..", which
// distribution answers with a redirect to the clean one.
func repositoryOf(r *http.Request) string {
	var match mux.RouteMatch
	if !routes.Match(r, &match) {
		return ""
	}
	return match.Vars["name"]
}

func denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}
