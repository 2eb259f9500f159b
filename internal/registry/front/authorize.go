package front

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
)

// Each probe repository is served over one path only: a pull from it verifies that path and no other.
const (
	probeProxy    = "zarf-registry/probe-proxy"    // through the proxies, with mutual TLS
	probeNodePort = "zarf-registry/probe-nodeport" // through the node port, without TLS
)

// Policy is a listener's access policy.
type Policy struct {
	// MutualTLS means that the listener has verified a client certificate.
	MutualTLS bool
	// AnonymousPull lets every client read at a listener without mutual TLS.
	AnonymousPull bool
	// Exposed means that the listener serves clients outside the cluster, and no nodes.
	Exposed bool
	// Loopback means that the listener serves clients of port-forwards, and no nodes.
	Loopback bool
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
func (p Policy) open() bool { return p.MutualTLS || p.AnonymousPull }

// authorize returns nil if method is allowed on the target, or the error to respond with.
//
// With mutual TLS, the roles of the certificate (pki.Roles) identify the client: nodes, caches, pushers and clients
// read; pushers also write if they send a push credential, and clients too, but they neither collect garbage nor
// change the registry's own repositories ([catalog.Own]), because tools that prune a registry (zarf tools registry
// prune) delete every image that they do not know. Without it, only the credential counts. A probe repository is
// reachable over its own path only, except with a pusher's certificate: probes are filled before their path is open.
//
// Most clients send a credential only after a challenge at /v2/, also where they could read without one. So
// there, everyone but nodes is challenged. Clients without a credential then send an empty one, or an
// anonymous token, or go on without: these may read. A wrong credential is refused there, so that logging in
// tells, and nowhere else that is open to everyone.
//
// Because verifying a credential is slow, authorize does so only if the result matters.
func (p Policy) authorize(method string, to request.Target, roles []string, login login) error {
	op := operation{Target: to, name: method, read: !to.Upload && (method == http.MethodGet || method == http.MethodHead)}
	if to.Upload {
		op.name += " of an upload"
	}
	if p.MutualTLS {
		if allowed, err := op.checkRoles(roles); allowed || err != nil {
			return err
		}
	} else if err := op.checkListener(p); err != nil {
		return err
	}
	open := op.read && p.open()
	if open && (!to.Base && !to.Token || login.anonymous || to.Token && !login.sent) {
		return nil
	}
	user, err := login.verify()
	if err != nil {
		return err
	}
	return op.checkUser(user, open)
}

// operation is what a request wants to do.
type operation struct {
	request.Target
	name string // for messages
	read bool
}

// checkRoles refuses what the roles of a client certificate do not allow. Allowed is set if no credential is necessary.
func (op operation) checkRoles(roles []string) (allowed bool, err error) {
	push, client := slices.Contains(roles, pki.OrganizationPush), slices.Contains(roles, pki.OrganizationClient)
	reader := slices.Contains(roles, pki.OrganizationNode) || slices.Contains(roles, pki.OrganizationCache)
	switch {
	case !push && !client && !reader:
		return false, request.Denied("a client certificate with the roles %q has no access: "+
			"its organization, organizational unit or URI must be %q or %q", roles, pki.OrganizationNode, pki.OrganizationPush)
	case op.Repository == probeNodePort && !push:
		return false, request.Denied("repository %s is served without TLS only, and this request used TLS: pull %s instead",
			probeNodePort, probeProxy)
	case op.read && !push && !client:
		return true, nil
	case !push && !client:
		return false, request.Denied(
			"a client certificate with the roles %q may only read: %s needs %q and the push credential",
			roles, op.name, pki.OrganizationPush)
	case !op.read && !push && (op.Repository == "" || catalog.Own(op.Repository)):
		return false, request.Denied("a client certificate with the roles %q may not change what belongs to the registry "+
			"itself: %s in %s needs %q", roles, op.name, cmp.Or(op.Repository, "no repository"), pki.OrganizationPush)
	}
	return false, nil
}

// checkListener refuses what a listener without mutual TLS serves to nobody.
func (op operation) checkListener(p Policy) error {
	probe := op.Repository == probeProxy || op.Repository == probeNodePort
	switch {
	case probe && (p.Exposed || p.Loopback):
		return request.Denied("repository %s is served to nodes only, and this request came from outside the cluster",
			op.Repository)
	case !op.read && p.Loopback && catalog.Own(op.Repository):
		return request.Denied("repository %s belongs to the registry itself: only zarf-registry changes it", op.Repository)
	case op.Repository == probeProxy:
		return request.Denied("repository %s is served with TLS only, and this request did not use TLS: pull %s instead",
			probeProxy, probeNodePort)
	}
	return nil
}

// checkUser refuses what a user may not do. The user is nil without a valid credential; open means that everyone reads.
func (op operation) checkUser(user *users.User, open bool) error {
	switch {
	case user == nil && open:
		return errcode.ErrorCodeUnauthorized.WithMessage("logging in requires a valid user name and password; " +
			"reading requires none")
	case user == nil && op.read:
		return errcode.ErrorCodeUnauthorized.WithMessage("reading requires a user name and a password")
	case user == nil:
		return errcode.ErrorCodeUnauthorized.WithMessage("writing requires the push credential's user name and password")
	case op.read:
		return nil
	case user.Role < users.RolePush:
		return request.Denied("this user may only pull: %s needs the push credential", op.name)
	}
	return nil
}
