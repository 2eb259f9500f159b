package registry

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// role is what a credential entitles to.
type role int

const (
	roleNone role = iota
	rolePull
	rolePush
)

// policy is how one listener decides.
type policy struct {
	// mutualTLS tells that the listener has verified a client certificate.
	mutualTLS bool
	// anonymousPull lets anyone read on a listener without mutual TLS.
	anonymousPull bool
}

// authorize returns nil where method is allowed, or the error to answer with.
//
// With mutual TLS the certificate's organizations decide who the caller is:
// nodes and pushers read, and a pusher writes with a push credential besides.
// Without, the credential alone decides. credential is called only where its
// answer matters, because it is slow; it returns roleNone where there is no
// credential or it is wrong.
func (p policy) authorize(method string, organizations []string, credential func() (role, error)) error {
	read := method == http.MethodGet || method == http.MethodHead
	if p.mutualTLS {
		switch push := slices.Contains(organizations, pki.OrganizationPush); {
		case !push && !slices.Contains(organizations, pki.OrganizationNode):
			return denied("a client certificate of organization %q has no access: use one of %q or %q",
				organizations, pki.OrganizationNode, pki.OrganizationPush)
		case read:
			return nil
		case !push:
			return denied("a client certificate of organization %q may only read: %s needs one of %q and the push credential",
				organizations, method, pki.OrganizationPush)
		}
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

func denied(format string, args ...any) error {
	return errcode.ErrorCodeDenied.WithMessage(fmt.Sprintf(format, args...))
}
