package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// attempt is a request that reaches the handlers once it is allowed.
type attempt struct {
	path, body string
	code       int // when allowed
}

// attempts has one for every method of the distribution specification.
func attempts(existing string) map[string]attempt {
	return map[string]attempt{
		http.MethodGet:    {"/v2/a/blobs/" + existing, "", http.StatusOK},
		http.MethodHead:   {"/v2/a/blobs/" + existing, "", http.StatusOK},
		http.MethodPost:   {"/v2/a/blobs/uploads/", "", http.StatusAccepted},
		http.MethodPatch:  {"/v2/a/blobs/uploads/00000000-0000-0000-0000-000000000000", "x", http.StatusNotFound},
		http.MethodPut:    {"/v2/a/manifests/tag", "x", http.StatusBadRequest},
		http.MethodDelete: {"/v2/a/blobs/sha256:" + strings.Repeat("0", 64), "", http.StatusNotFound},
	}
}

func TestWhoMayDoWhatOverTLS(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	i := start(t, ca, t.TempDir())
	d := i.pusher().pushBlob("a", "content").String()
	clientUsage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

	const (
		refused = iota // in the handshake
		noAccess
		readOnly
		needsCredential
		everything
	)
	for sentence, tt := range map[string]struct {
		certificate    *tls.Certificate
		user, password string
		want           int
	}{
		"without a certificate there is no connection": {nil, pushUser, pushPassword, refused},
		"a certificate of another CA is refused":       {foreign.client(t, pki.OrganizationPush), pushUser, pushPassword, refused},
		"an expired certificate is refused":            {certificate(t, newExpired(t, ca)), pushUser, pushPassword, refused},
		"a certificate for servers only is refused": {certificate(t, ca.issue(t, pki.Leaf{
			Organization: pki.OrganizationPush, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, time.Now())), pushUser, pushPassword, refused},
		"a client certificate of the server's organization has no access": {ca.client(t, pki.OrganizationServer), pushUser, pushPassword, noAccess},
		"a client certificate of no organization has no access": {certificate(t, ca.issue(t, pki.Leaf{
			CommonName: pki.OrganizationPush, Usages: clientUsage,
		}, time.Now())), pushUser, pushPassword, noAccess},
		"a node reads": {ca.client(t, pki.OrganizationNode), "", "", readOnly},
		"a node with the push credential still only reads":    {ca.client(t, pki.OrganizationNode), pushUser, pushPassword, readOnly},
		"a pusher without a credential reads":                 {ca.client(t, pki.OrganizationPush), "", "", needsCredential},
		"a pusher with a wrong password reads":                {ca.client(t, pki.OrganizationPush), pushUser, pushPassword + "!", needsCredential},
		"a pusher with an empty password reads":               {ca.client(t, pki.OrganizationPush), pushUser, "", needsCredential},
		"a pusher with an unknown user reads":                 {ca.client(t, pki.OrganizationPush), "nobody", pushPassword, needsCredential},
		"a pusher with the credential of a pull user reads":   {ca.client(t, pki.OrganizationPush), pullUser, pullPassword, readOnly},
		"a pusher with the push credential may do everything": {ca.client(t, pki.OrganizationPush), pushUser, pushPassword, everything},
		"a pusher with the push user and another's password":  {ca.client(t, pki.OrganizationPush), pushUser, pullPassword, needsCredential},
	} {
		t.Run(sentence, func(t *testing.T) {
			c := i.client(tt.certificate).as(tt.user, tt.password)
			for method, request := range attempts(d) {
				a, err := c.send(method, request.path, strings.NewReader(request.body))
				if tt.want == refused {
					if err == nil {
						t.Errorf("%s was answered with %d", method, a.StatusCode)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", method, err)
					continue
				}
				read := method == http.MethodGet || method == http.MethodHead
				status, code, challenge := request.code, "", ""
				switch {
				case tt.want == noAccess, tt.want == readOnly && !read:
					status, code = http.StatusForbidden, "DENIED"
				case tt.want == needsCredential && !read:
					status, code, challenge = http.StatusUnauthorized, "UNAUTHORIZED", `Basic realm="zarf-registry"`
				}
				if a.StatusCode != status {
					t.Errorf("%s: status %d, want %d: %s", method, a.StatusCode, status, a.body)
				}
				if got := a.code(); code != "" && method != http.MethodHead && got != code {
					t.Errorf("%s: error code %q, want %q: %s", method, got, code, a.body)
				}
				if got := a.Header.Get("WWW-Authenticate"); got != challenge {
					t.Errorf("%s: WWW-Authenticate %q, want %q", method, got, challenge)
				}
			}
		})
	}
	for _, secret := range []string{pushPassword, pullPassword, "Basic ", "nobody"} {
		if strings.Contains(i.logs.String(), secret) {
			t.Errorf("the logs hold %q", secret)
		}
	}
	if !strings.Contains(i.logs.String(), `"user":"`+pushUser+`"`) {
		t.Error("the logs do not tell who pushed")
	}
}

func newExpired(t *testing.T, ca authority) pki.KeyPair {
	t.Helper()
	return ca.issue(t, pki.Leaf{
		Organization: pki.OrganizationPush, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Lifetime: time.Minute,
	}, time.Now().Add(-time.Hour))
}

func TestWhoMayDoWhatWithoutTLS(t *testing.T) {
	ca := newAuthority(t)
	for _, anonymous := range []bool{false, true} {
		t.Run(fmt.Sprintf("anonymous pull %t", anonymous), func(t *testing.T) {
			i := start(t, ca, t.TempDir(), func(o *Options) { o.AnonymousPull = anonymous })
			d := i.pusher().pushBlob("a", "content").String()
			const (
				nobody = iota
				puller
				pusher
			)
			for sentence, tt := range map[string]struct {
				user, password string
				is             int
			}{
				"without a credential":        {"", "", nobody},
				"with a wrong password":       {pushUser, "wrong", nobody},
				"with an unknown user":        {"nobody", pushPassword, nobody},
				"with the pull credential":    {pullUser, pullPassword, puller},
				"with the push credential":    {pushUser, pushPassword, pusher},
				"with a password of 73 bytes": {pushUser, strings.Repeat("x", 73), nobody},
			} {
				t.Run(sentence, func(t *testing.T) {
					c := i.plain().as(tt.user, tt.password)
					for method, request := range attempts(d) {
						read := method == http.MethodGet || method == http.MethodHead
						status := request.code
						switch {
						case read && anonymous, tt.is == pusher, read && tt.is == puller:
						case tt.is == puller:
							status = http.StatusForbidden
						default:
							status = http.StatusUnauthorized
						}
						a, err := c.send(method, request.path, strings.NewReader(request.body))
						if err != nil || a.StatusCode != status {
							t.Errorf("%s: status %d, %v, want %d", method, a.StatusCode, err, status)
						}
					}
				})
			}
		})
	}
}

func TestPushAndPullWithoutTLS(t *testing.T) {
	i := start(t, newAuthority(t), t.TempDir())
	d, manifest := i.plain().as(pushUser, pushPassword).pushImage("a", "v1", "layer")
	accept := []string{"Accept", "application/vnd.oci.image.manifest.v1+json"}
	if got := i.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/a/manifests/v1", nil, accept...); got.body != manifest {
		t.Errorf("manifest %s", got.body)
	}
	// Both listeners serve one registry.
	i.node().must(http.StatusOK, "GET", "/v2/a/manifests/"+d.String(), nil, accept...)
}

func TestRefusalsNameWhoAndWhat(t *testing.T) {
	i := start(t, newAuthority(t), t.TempDir())
	for sentence, tt := range map[string]struct {
		client client
		want   []string
	}{
		"a node that writes":            {i.node(), []string{pki.OrganizationNode, pki.OrganizationPush, "POST"}},
		"an unknown organization":       {i.client(i.ca.client(t, "acme")), []string{"acme", pki.OrganizationPush}},
		"a pusher without a credential": {i.client(i.ca.client(t, pki.OrganizationPush)), []string{"push credential"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			a, err := tt.client.send("POST", "/v2/a/blobs/uploads/", nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(a.body, want) {
					t.Errorf("%s does not name %q", a.body, want)
				}
			}
		})
	}
}

func TestAuthorize(t *testing.T) {
	mutual, plain, open := policy{mutualTLS: true}, policy{}, policy{anonymousPull: true}
	node, push := []string{pki.OrganizationNode}, []string{pki.OrganizationPush}
	const unasked = role(-1) // the credential must not be looked at: that is slow
	for sentence, tt := range map[string]struct {
		policy        policy
		method        string
		repository    string
		organizations []string
		credential    role
		want          error
	}{
		"a node reads":                                     {mutual, "GET", "a", node, unasked, nil},
		"a node asks whether something is there":           {mutual, "HEAD", "a", node, unasked, nil},
		"a node does not write":                            {mutual, "PUT", "a", node, unasked, errcode.ErrorCodeDenied},
		"a node does not delete":                           {mutual, "DELETE", "a", node, unasked, errcode.ErrorCodeDenied},
		"a stranger does not read":                         {mutual, "GET", "a", []string{"acme"}, unasked, errcode.ErrorCodeDenied},
		"a stranger does not write":                        {mutual, "PUT", "a", nil, unasked, errcode.ErrorCodeDenied},
		"a pusher reads":                                   {mutual, "GET", "a", push, unasked, nil},
		"a pusher does not write without a credential":     {mutual, "PUT", "a", push, roleNone, errcode.ErrorCodeUnauthorized},
		"a pusher does not write with a pull credential":   {mutual, "PUT", "a", push, rolePull, errcode.ErrorCodeDenied},
		"a pusher writes with the push credential":         {mutual, "PUT", "a", push, rolePush, nil},
		"one of two organizations is enough":               {mutual, "PUT", "a", []string{"acme", pki.OrganizationPush}, rolePush, nil},
		"an unknown method is a write":                     {mutual, "BREW", "a", node, unasked, errcode.ErrorCodeDenied},
		"a method in lower case is a write":                {mutual, "get", "a", node, unasked, errcode.ErrorCodeDenied},
		"anonymous pull does not open a listener with TLS": {policy{mutualTLS: true, anonymousPull: true}, "GET", "a", nil, unasked, errcode.ErrorCodeDenied},
		"without TLS nobody reads without a credential":    {plain, "GET", "a", nil, roleNone, errcode.ErrorCodeUnauthorized},
		"without TLS an organization means nothing":        {plain, "GET", "a", push, roleNone, errcode.ErrorCodeUnauthorized},
		"without TLS a pull credential reads":              {plain, "GET", "a", nil, rolePull, nil},
		"without TLS a pull credential does not write":     {plain, "PUT", "a", nil, rolePull, errcode.ErrorCodeDenied},
		"without TLS the push credential reads":            {plain, "GET", "a", nil, rolePush, nil},
		"without TLS the push credential writes":           {plain, "PUT", "a", nil, rolePush, nil},
		"an anonymous read needs no credential":            {open, "GET", "a", nil, unasked, nil},
		"a node reads the probe of the proxies":            {mutual, "GET", probeProxy, node, unasked, nil},
		"a node does not read that of the node port":       {mutual, "GET", probeNodePort, node, unasked, errcode.ErrorCodeDenied},
		"a stranger reads no probe":                        {mutual, "GET", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"a node does not write a probe":                    {mutual, "PUT", probeProxy, node, unasked, errcode.ErrorCodeDenied},
		"a pusher reads the probe of the node port":        {mutual, "HEAD", probeNodePort, push, unasked, nil},
		"a pusher writes the probe of the node port":       {mutual, "PUT", probeNodePort, push, rolePush, nil},
		"a pusher writes the probe of the proxies":         {mutual, "PUT", probeProxy, push, rolePush, nil},
		"a pusher's certificate alone writes no probe":     {mutual, "PUT", probeNodePort, push, roleNone, errcode.ErrorCodeUnauthorized},
		"a node and pusher reads every probe":              {mutual, "GET", probeNodePort, []string{pki.OrganizationNode, pki.OrganizationPush}, unasked, nil},
		"without TLS the probe of the node port is read":   {plain, "GET", probeNodePort, nil, rolePull, nil},
		"without TLS it needs a credential too":            {plain, "GET", probeNodePort, nil, roleNone, errcode.ErrorCodeUnauthorized},
		"without TLS that of the proxies is not read":      {plain, "GET", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"without TLS that of the proxies is not written":   {plain, "PUT", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"anonymous pull opens the probe of the node port":  {open, "HEAD", probeNodePort, nil, unasked, nil},
		"anonymous pull does not open that of the proxies": {open, "HEAD", probeProxy, nil, unasked, errcode.ErrorCodeDenied},
		"what is in no repository is read":                 {mutual, "GET", "", node, unasked, nil},
		"an anonymous write needs one":                     {open, "PUT", "a", nil, roleNone, errcode.ErrorCodeUnauthorized},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := tt.policy.authorize(tt.method, tt.repository, tt.organizations, func() (role, error) {
				if tt.credential == unasked {
					t.Error("the credential was looked at")
				}
				return tt.credential, nil
			})
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
		if err := plain.authorize("GET", "a", nil, func() (role, error) { return rolePush, failure }); !errors.Is(err, failure) {
			t.Errorf("authorize() = %v", err)
		}
	})
}

func TestProbesAreBoundToTheirWay(t *testing.T) {
	for _, anonymous := range []bool{false, true} {
		i := start(t, newAuthority(t), t.TempDir(), func(o *Options) { o.AnonymousPull = anonymous })
		pusher := i.pusher()
		plain := i.plain().as(pullUser, pullPassword)
		if anonymous {
			plain = i.plain()
		}
		accept := []string{"Accept", "application/vnd.oci.image.manifest.v1+json"}
		for sentence, tt := range map[string]struct {
			repository string
			node       int
			plain      int
		}{
			"the proxies' probe is read with TLS only":       {"zarf-registry/probe-proxy", http.StatusOK, http.StatusForbidden},
			"the node port's probe is read without TLS only": {"zarf-registry/probe-nodeport", http.StatusForbidden, http.StatusOK},
			"a name that begins alike is any other":          {"zarf-registry/probe-proxy2", http.StatusOK, http.StatusOK},
			"so is one that goes on":                         {"zarf-registry/probe-nodeport/manifests", http.StatusOK, http.StatusOK},
			"and one that goes on with a route":              {"zarf-registry/probe-proxy/blobs/uploads", http.StatusOK, http.StatusOK},
			"and one that ends alike":                        {"x/zarf-registry/probe-proxy", http.StatusOK, http.StatusOK},
		} {
			t.Run(fmt.Sprintf("%s, anonymous pull %t", sentence, anonymous), func(t *testing.T) {
				d, _ := pusher.pushImage(tt.repository, "dev", "layer")
				escaped := strings.ReplaceAll(tt.repository, "/", "%2F")
				for path, redirected := range map[string]bool{
					"/v2/" + tt.repository + "/manifests/dev":                                false,
					"/v2/" + tt.repository + "/manifests/dev?x=/v2/a/":                       false,
					"/v2/" + tt.repository + "/manifests/" + d.String():                      false,
					"/v2/" + tt.repository + "/blobs/" + digest.FromString("layer").String(): false,
					"/v2/" + escaped + "/manifests/dev":                                      false,
					"/v2//" + tt.repository + "/manifests/dev":                               true,
					"/v2/%7aarf-registry/../" + escaped + "/manifests/dev":                   true,
				} {
					for _, method := range []string{http.MethodGet, http.MethodHead} {
						for who, try := range map[string]struct {
							client client
							status int
						}{"a pusher": {pusher, http.StatusOK}, "a node": {i.node(), tt.node}, "without TLS": {plain, tt.plain}} {
							a, err := try.client.send(method, path, nil, accept...)
							if err != nil || a.StatusCode != try.status {
								t.Errorf("%s: %s %s: status %d, %v, want %d", who, method, path, a.StatusCode, err, try.status)
								continue
							}
							if (a.Request.Response != nil) != redirected {
								t.Errorf("%s: redirected %t: the test shows something else", path, !redirected)
							}
							if try.status == http.StatusForbidden && method == http.MethodGet &&
								(a.code() != "DENIED" || !strings.Contains(a.body, "the one that proves this way is")) {
								t.Errorf("%s: GET %s: %s", who, path, a.body)
							}
						}
					}
				}
			})
		}
		i.plain().as(pushUser, pushPassword).must(http.StatusForbidden, "POST", "/v2/zarf-registry/probe-proxy/blobs/uploads/", nil)
		i.plain().as(pushUser, pushPassword).must(http.StatusAccepted, "POST", "/v2/zarf-registry/probe-nodeport/blobs/uploads/", nil)
	}
}

func TestRequestsAreLoggedAsLoudAsTheyMatter(t *testing.T) {
	i := start(t, newAuthority(t), t.TempDir())
	pusher := i.client(i.ca.client(t, pki.OrganizationPush))
	i.node().must(http.StatusOK, "GET", "/v2/", nil)
	i.node().must(http.StatusForbidden, "DELETE", "/v2/a/manifests/x", nil)
	pusher.must(http.StatusUnauthorized, "POST", "/v2/a/blobs/uploads/", nil)
	pusher.as(pushUser, "wrong").must(http.StatusUnauthorized, "POST", "/v2/b/blobs/uploads/", nil)
	pusher.as(pushUser, pushPassword).must(http.StatusAccepted, "POST", "/v2/c/blobs/uploads/", nil)
	for sentence, want := range map[string][]string{
		"a read is debug output":                  {`"DEBUG"`, `"path":"/v2/",`, `"code":200`, pki.OrganizationNode},
		"a refusal is a warning":                  {`"WARN"`, `"path":"/v2/a/manifests/x"`, `"code":403`, pki.OrganizationNode},
		"a first try without a credential is not": {`"DEBUG"`, `"path":"/v2/a/blobs/uploads/"`, `"code":401`},
		"a wrong password is":                     {`"WARN"`, `"path":"/v2/b/blobs/uploads/"`, `"code":401`, `"user":"push"`},
		"a write is information":                  {`"INFO"`, `"path":"/v2/c/blobs/uploads/"`, `"code":202`, `"user":"push"`},
	} {
		t.Run(sentence, func(t *testing.T) {
			// The line is written after the response.
			eventually(t, "it is logged", func() bool {
				for _, line := range strings.Split(i.logs.String(), "\n") {
					if !slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(line, part) }) {
						return true
					}
				}
				return false
			})
		})
	}
}
