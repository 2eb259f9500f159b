package front

import (
	"errors"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
)

// Claim (a client without a credential writes nothing): The certificate of Zarf's clients alone only reads.
//
// Claim (a client does not write a probe; a client does not collect garbage): Zarf's clients cannot change
// the project's own images or collect garbage.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	mutual, plain, open := Policy{MutualTLS: true}, Policy{}, Policy{AnonymousPull: true}
	node, push, client := []string{pki.OrganizationNode}, []string{pki.OrganizationPush}, []string{pki.OrganizationClient}
	both := []string{pki.OrganizationNode, pki.OrganizationPush}
	const uploads = "/uploads/" // suffix of a repository
	const base, token = "/v2/", "/v2/token"
	const (
		unasked   = users.Role(-1) - iota // the credential must not be checked, because that is slow
		absent                            // no Authorization header
		anonymous                         // an empty credential
	)
	for name, tt := range map[string]struct {
		policy     Policy
		method     string
		repository string
		roles      []string
		credential users.Role
		want       error
	}{
		"a node reads":           {mutual, "GET", "a", node, unasked, nil},
		"a node sends HEAD":      {mutual, "HEAD", "a", node, unasked, nil},
		"a node does not write":  {mutual, "PUT", "a", node, unasked, errcode.ErrorCodeDenied},
		"a node does not delete": {mutual, "DELETE", "a", node, unasked, errcode.ErrorCodeDenied},
		"a client without a role does not read": {mutual, "GET", "a", []string{"acme"}, unasked,
			errcode.ErrorCodeDenied},
		"a client without a role does not write": {mutual, "PUT", "a", nil, unasked, errcode.ErrorCodeDenied},
		"a pusher reads":                         {mutual, "GET", "a", push, unasked, nil},
		"a pusher does not write without a credential": {mutual, "PUT", "a", push, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"a pusher does not write with a pull credential": {mutual, "PUT", "a", push, users.RolePull, errcode.ErrorCodeDenied},
		"a pusher writes with the push credential":       {mutual, "PUT", "a", push, users.RolePush, nil},
		"one of two roles is enough":                     {mutual, "PUT", "a", both, users.RolePush, nil},
		"two roles do not write without a credential": {mutual, "PUT", "a", both, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"two roles do not write with a pull credential": {mutual, "DELETE", "a", both, users.RolePull, errcode.ErrorCodeDenied},
		"a node cannot read an upload": {mutual, "GET", "a" + uploads, node, unasked,
			errcode.ErrorCodeDenied},
		"a pusher reads an upload with the credential": {mutual, "GET", "a" + uploads, push, users.RolePush, nil},
		"a pusher cannot read an upload without the credential": {mutual, "HEAD", "a" + uploads, push, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"anonymous pull shows no upload": {open, "GET", "a" + uploads, nil, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"a pull credential shows no upload": {plain, "GET", "a" + uploads, nil, users.RolePull,
			errcode.ErrorCodeDenied},
		"a probe's upload is bound to its path": {plain, "GET", probeProxy + uploads, nil, unasked,
			errcode.ErrorCodeDenied},
		"an unknown method is a write":      {mutual, "BREW", "a", node, unasked, errcode.ErrorCodeDenied},
		"a method in lower case is a write": {mutual, "get", "a", node, unasked, errcode.ErrorCodeDenied},
		"anonymous pull does not open a listener with TLS": {Policy{MutualTLS: true, AnonymousPull: true}, "GET", "a", nil,
			unasked, errcode.ErrorCodeDenied},
		"reading without TLS needs a credential": {plain, "GET", "a", nil, users.RoleNone, errcode.ErrorCodeUnauthorized},
		"without TLS a role means nothing": {plain, "GET", "a", push, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"without TLS a pull credential reads":          {plain, "GET", "a", nil, users.RolePull, nil},
		"without TLS a pull credential does not write": {plain, "PUT", "a", nil, users.RolePull, errcode.ErrorCodeDenied},
		"without TLS the push credential reads":        {plain, "GET", "a", nil, users.RolePush, nil},
		"without TLS the push credential writes":       {plain, "PUT", "a", nil, users.RolePush, nil},
		"an anonymous read needs no credential":        {open, "GET", "a", nil, unasked, nil},
		"a node reads the probe of the proxies":        {mutual, "GET", probeProxy, node, unasked, nil},
		"a node does not read the node port's probe": {mutual, "GET", probeNodePort, node, unasked,
			errcode.ErrorCodeDenied},
		"a client without a role reads no probe": {mutual, "GET", probeProxy, nil, unasked,
			errcode.ErrorCodeDenied},
		"a node does not write a probe": {mutual, "PUT", probeProxy, node, unasked,
			errcode.ErrorCodeDenied},
		"a client without a credential reads": {mutual, "GET", "a", client, unasked, nil},
		"a client without a credential writes nothing": {mutual, "PUT", "a", client, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"a client does not read the node port's probe": {mutual, "GET", probeNodePort, client, unasked,
			errcode.ErrorCodeDenied},
		"a client does not write a probe":            {mutual, "PUT", probeProxy, client, unasked, errcode.ErrorCodeDenied},
		"a client does not collect garbage":          {mutual, "POST", "", client, unasked, errcode.ErrorCodeDenied},
		"a pusher reads the probe of the node port":  {mutual, "HEAD", probeNodePort, push, unasked, nil},
		"a pusher writes the probe of the node port": {mutual, "PUT", probeNodePort, push, users.RolePush, nil},
		"a pusher writes the probe of the proxies":   {mutual, "PUT", probeProxy, push, users.RolePush, nil},
		"a pusher's certificate alone writes no probe": {mutual, "PUT", probeNodePort, push, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"a node and pusher reads every probe":            {mutual, "GET", probeNodePort, both, unasked, nil},
		"without TLS the probe of the node port is read": {plain, "GET", probeNodePort, nil, users.RolePull, nil},
		"without TLS the probe of the node port needs a credential": {plain, "GET", probeNodePort, nil, users.RoleNone,
			errcode.ErrorCodeUnauthorized},
		"without TLS the probe of the proxies is not read":      {plain, "GET", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"without TLS the probe of the proxies is not written":   {plain, "PUT", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"anonymous pull opens the probe of the node port":       {open, "HEAD", probeNodePort, nil, unasked, nil},
		"anonymous pull does not open the probe of the proxies": {open, "HEAD", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"outside the cluster, no probe is served": {Policy{Exposed: true, AnonymousPull: true}, "GET", probeProxy, nil, unasked,
			errcode.ErrorCodeDenied},
		"a port-forward serves no probe":             {Policy{Loopback: true}, "GET", probeNodePort, nil, unasked, errcode.ErrorCodeDenied},
		"a node sends requests outside repositories": {mutual, "GET", "", node, unasked, nil},
		"an anonymous write needs a credential":      {open, "PUT", "a", nil, users.RoleNone, errcode.ErrorCodeUnauthorized},

		"a node is not challenged":                            {mutual, "GET", base, node, absent, nil},
		"a node's credential is not checked":                  {mutual, "GET", base, node, unasked, nil},
		"a pusher is challenged":                              {mutual, "GET", base, push, absent, errcode.ErrorCodeUnauthorized},
		"a client is challenged":                              {mutual, "HEAD", base, client, absent, errcode.ErrorCodeUnauthorized},
		"a node and pusher is challenged":                     {mutual, "GET", base, both, absent, errcode.ErrorCodeUnauthorized},
		"a pusher logs in":                                    {mutual, "GET", base, push, users.RolePush, nil},
		"a pusher logs in with the pull credential":           {mutual, "GET", base, push, users.RolePull, nil},
		"a pusher does not log in with a wrong one":           {mutual, "GET", base, push, users.RoleNone, errcode.ErrorCodeUnauthorized},
		"a pusher without a credential goes on":               {mutual, "GET", base, push, anonymous, nil},
		"a client without a credential goes on":               {mutual, "GET", base, client, anonymous, nil},
		"a client without a role does not log in":             {mutual, "GET", base, nil, unasked, errcode.ErrorCodeDenied},
		"with anonymous pull, clients are challenged":         {open, "GET", base, nil, absent, errcode.ErrorCodeUnauthorized},
		"with anonymous pull, an empty one is enough":         {open, "GET", base, nil, anonymous, nil},
		"with anonymous pull, a wrong one is refused":         {open, "GET", base, nil, users.RoleNone, errcode.ErrorCodeUnauthorized},
		"with anonymous pull, the pull user logs in":          {open, "GET", base, nil, users.RolePull, nil},
		"without anonymous pull, an empty one does not count": {plain, "GET", base, nil, anonymous, errcode.ErrorCodeUnauthorized},
		"an empty credential does not write":                  {open, "PUT", "a", nil, anonymous, errcode.ErrorCodeUnauthorized},
		"a client gets an anonymous token":                    {open, "GET", token, nil, absent, nil},
		"… also with an empty credential":                     {open, "GET", token, nil, anonymous, nil},
		"a wrong credential gets no token":                    {open, "GET", token, nil, users.RoleNone, errcode.ErrorCodeUnauthorized},
		"a pull credential gets a token":                      {plain, "GET", token, nil, users.RolePull, nil},
		"without anonymous pull, there is no anonymous token": {plain, "GET", token, nil, absent,
			errcode.ErrorCodeUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			repository, upload := strings.CutSuffix(tt.repository, uploads)
			to := request.Target{Repository: repository, Upload: upload}
			switch tt.repository {
			case base:
				to = request.Target{Base: true}
			case token:
				to = request.Target{Token: true}
			}
			sent := login{sent: tt.credential != absent, anonymous: tt.credential == anonymous}
			sent.verify = func() (*users.User, error) {
				switch tt.credential {
				case unasked:
					t.Error("the credential was checked")
				case users.RoleNone, absent, anonymous:
					return nil, nil
				}
				return &users.User{Role: tt.credential}, nil
			}
			err := tt.policy.authorize(tt.method, to, tt.roles, sent)
			var coded errcode.Error
			if errors.As(err, &coded) {
				err = coded.Code
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("authorize() = %v, want %v", err, tt.want)
			}
		})
	}
	t.Run("an error of the check is passed on", func(t *testing.T) {
		failure := errors.New("busy")
		if err := plain.authorize("GET", request.Target{Repository: "a"}, nil,
			login{verify: func() (*users.User, error) { return nil, failure }}); !errors.Is(err, failure) {
			t.Errorf("authorize() = %v", err)
		}
	})
}
