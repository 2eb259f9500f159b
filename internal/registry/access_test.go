package registry

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// attempt is a request to the registry.
type attempt struct {
	method, path, body string
	read               bool // read-only, so nodes are allowed to send it
	code               int  // the status if allowed
}

// attempts returns requests for each method and route of the distribution specification that
// distribution implements, and for other methods and paths. existing is a blob of repository a.
func attempts(existing string) map[string]attempt {
	const (
		get, head, put, post, patch, remove = http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost,
			http.MethodPatch, http.MethodDelete

		ok, accepted, created              = http.StatusOK, http.StatusAccepted, http.StatusCreated
		bad, missing, unsupported, notThat = http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed,
			http.StatusNotFound
	)
	absent := "sha256:" + strings.Repeat("0", 64)
	const upload = "/v2/a/blobs/uploads/00000000-0000-0000-0000-000000000000"
	return map[string]attempt{
		"get the base":              {get, "/v2/", "", true, ok},
		"head the base":             {head, "/v2/", "", true, ok},
		"get the catalog":           {get, "/v2/_catalog", "", true, ok},
		"get a page of the catalog": {get, "/v2/_catalog?n=1", "", true, ok},
		"list tags":                 {get, "/v2/a/tags/list", "", true, missing},
		"get a manifest":            {get, "/v2/a/manifests/tag", "", true, missing},
		"head a manifest":           {head, "/v2/a/manifests/tag", "", true, missing},
		"put a manifest":            {put, "/v2/a/manifests/tag", "x", false, bad},
		"put a manifest by digest":  {put, "/v2/a/manifests/" + absent, "x", false, bad},
		"delete a tag":              {remove, "/v2/a/manifests/tag", "", false, missing},
		"delete a manifest":         {remove, "/v2/a/manifests/" + absent, "", false, missing},
		"get a blob":                {get, "/v2/a/blobs/" + existing, "", true, ok},
		"head a blob":               {head, "/v2/a/blobs/" + existing, "", true, ok},
		"delete a blob":             {remove, "/v2/a/blobs/" + absent, "", false, missing},
		"list referrers":            {get, "/v2/a/referrers/" + existing, "", true, ok},
		"post to referrers":         {post, "/v2/a/referrers/" + existing, "", false, unsupported},
		"start an upload":           {post, "/v2/a/blobs/uploads/", "", false, accepted},
		"upload in one request":     {post, "/v2/a/blobs/uploads/?digest=" + absent, "x", false, bad},
		"mount a blob": {post, "/v2/b/blobs/uploads/?mount=" + existing + "&from=a", "", false,
			created},
		"mount a blob from any repository": {post, "/v2/b/blobs/uploads/?mount=" + existing, "", false, created},
		"mount a missing blob": {post, "/v2/b/blobs/uploads/?mount=" + absent + "&from=a", "", false,
			accepted},
		"continue an upload":           {patch, upload, "x", false, missing},
		"complete an upload":           {put, upload + "?digest=" + absent, "x", false, missing},
		"cancel an upload":             {remove, upload, "", false, missing},
		"get the status of an upload":  {get, upload, "", false, missing},
		"head an upload":               {head, upload, "", false, missing},
		"get an upload without its ID": {get, "/v2/a/blobs/uploads/", "", false, missing},
		"get an unknown path":          {get, "/v2/a/secrets/x", "", true, notThat},
		"get a path outside the API":   {get, "/debug/vars", "", true, notThat},
		"put to an unknown path":       {put, "/v2/a/secrets/x", "", false, notThat},
		"post to the base":             {post, "/v2/", "", false, ok},
		"delete the catalog":           {remove, "/v2/_catalog", "", false, unsupported},
		"options":                      {http.MethodOptions, "/v2/a/blobs/" + existing, "", false, unsupported},
		"trace":                        {http.MethodTrace, "/v2/a/blobs/" + existing, "", false, unsupported},
		"unknown method":               {"BREW", "/v2/a/blobs/" + existing, "", false, unsupported},
		"method in lower case":         {"put", "/v2/a/manifests/tag", "x", false, unsupported},
	}
}

// Expected access of a client.
const (
	accessNone        = iota // 403 for everything
	accessRead               // 403 for writes
	accessReadOrLogin        // 401 for writes and at the base
	accessLogin              // 401 for everything
	accessFull
	accessImages // 403 for what changes no repository
)

// outside are the attempts that change no repository.
var outside = []string{"put to an unknown path", "post to the base", "delete the catalog"}

// try makes all attempts and compares the responses with the expected access.
func (c client) try(existing string, access int) {
	c.t.Helper()
	for name, attempt := range attempts(existing) {
		a, err := c.send(attempt.method, attempt.path, strings.NewReader(attempt.body))
		if err != nil {
			c.t.Errorf("%s: %v", name, err)
			continue
		}
		status, code, challenge := attempt.code, "", ""
		switch {
		case access == accessNone, access == accessRead && !attempt.read,
			access == accessImages && slices.Contains(outside, name):
			status, code = http.StatusForbidden, "DENIED"
		case access == accessLogin, access == accessReadOrLogin && (attempt.path == "/v2/" || !attempt.read):
			status, code, challenge = http.StatusUnauthorized, "UNAUTHORIZED", `Basic realm="zarf-registry"`
		}
		if a.StatusCode != status {
			c.t.Errorf("%s, %s %s: status %d, want %d: %s", name, attempt.method, attempt.path, a.StatusCode, status, a.body)
		}
		if got := a.code(); code != "" && attempt.method != http.MethodHead && got != code {
			c.t.Errorf("%s: error code %q, want %q: %s", name, got, code, a.body)
		}
		if got := a.Header.Get("WWW-Authenticate"); got != challenge {
			c.t.Errorf("%s: WWW-Authenticate %q, want %q", name, got, challenge)
		}
	}
}

// TestHandshakes covers clients whose connection is refused.
//
// Claim (a cache with the push credential still only reads; a node with the push credential still only
// reads): The certificates of caches and nodes only read, also together with the push credential.
//
// Claim (a pusher without a credential reads): The push certificate alone only reads.
func TestAuthorizationOverTLS(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	i := start(t, ca, t.TempDir())
	d := i.pusher().pushBlob("a", "content").String()
	holder := func(change func(*x509.Certificate)) *tls.Certificate { return i.holder(t, change) }
	node, push := ca.client(t, pki.OrganizationNode), ca.client(t, pki.OrganizationPush)
	many, cache := ca.client(t, pki.OrganizationClient), ca.client(t, pki.OrganizationCache)
	both := holder(func(c *x509.Certificate) {
		c.Subject.Organization = []string{pki.OrganizationNode, pki.OrganizationPush}
	})
	uri := func(role string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			parsed := require.Value(url.Parse(role))(t)
			c.Subject.Organization, c.URIs = []string{"acme"}, []*url.URL{parsed}
		}
	}

	for name, tt := range map[string]struct {
		certificate    *tls.Certificate
		user, password string
		access         int
	}{
		"a client certificate of the server's role has no access": {ca.client(t, pki.OrganizationServer), pushUser,
			pushPassword, accessNone},
		"a role as a common name gives no access": {holder(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: pki.OrganizationPush}
		}), pushUser, pushPassword, accessNone},
		"a role as a DNS name gives no access": {holder(func(c *x509.Certificate) {
			c.Subject.Organization, c.DNSNames = nil, []string{pki.OrganizationPush}
		}), pushUser, pushPassword, accessNone},
		"a name that starts with a role gives no access": {holder(func(c *x509.Certificate) {
			c.Subject.Organization = []string{pki.OrganizationPush + "er", "x" + pki.OrganizationNode,
				strings.ToUpper(pki.OrganizationPush)}
		}), pushUser, pushPassword, accessNone},

		"a node reads":  {node, "", "", accessRead},
		"a cache reads": {cache, "", "", accessRead},
		"a cache with the push credential still only reads": {cache, pushUser, pushPassword, accessRead},
		"a node with the push credential still only reads":  {node, pushUser, pushPassword, accessRead},
		"a node with the pull credential only reads":        {node, pullUser, pullPassword, accessRead},
		"a node by its organizational unit only reads": {holder(func(c *x509.Certificate) {
			c.Subject.Organization, c.Subject.OrganizationalUnit = []string{"acme"}, []string{pki.OrganizationNode}
		}), pushUser, pushPassword, accessRead},
		"a node by a URI only reads": {holder(uri(pki.OrganizationNode)), pushUser, pushPassword, accessRead},

		"a pusher without a credential reads":                {push, "", "", accessReadOrLogin},
		"a pusher with a wrong password reads":               {push, pushUser, pushPassword + "!", accessReadOrLogin},
		"a pusher with an empty password reads":              {push, pushUser, "", accessReadOrLogin},
		"a pusher with an unknown user reads":                {push, "who-is-this", pushPassword, accessReadOrLogin},
		"a pusher with the push user and another's password": {push, pushUser, pullPassword, accessReadOrLogin},
		"a pusher with the pull credential reads":            {push, pullUser, pullPassword, accessRead},
		"a pusher with the push credential has full access":  {push, pushUser, pushPassword, accessFull},
		"a pusher by an organizational unit has full access": {holder(func(c *x509.Certificate) {
			c.Subject.Organization, c.Subject.OrganizationalUnit = []string{"acme"}, []string{"ops", pki.OrganizationPush}
		}), pushUser, pushPassword, accessFull},
		"a pusher by a URI has full access": {holder(uri(pki.OrganizationPush)), pushUser, pushPassword, accessFull},

		"a client with the push credential writes images": {many, pushUser, pushPassword, accessImages},
		"a client with the pull credential reads":         {many, pullUser, pullPassword, accessRead},

		"a node that is a pusher reads without a credential":               {both, "", "", accessReadOrLogin},
		"a node that is a pusher reads with a pull credential":             {both, pullUser, pullPassword, accessRead},
		"a node that is a pusher has full access with the push credential": {both, pushUser, pushPassword, accessFull},
	} {
		t.Run(name, func(t *testing.T) {
			c := i.client(tt.certificate).as(tt.user, tt.password)
			c.t = t
			c.try(d, tt.access)
		})
	}
	for _, secret := range []string{pushPassword, pullPassword, "Basic ", "who-is-this"} {
		if strings.Contains(i.logs.String(), secret) {
			t.Errorf("the logs contain %q", secret)
		}
	}
	if !strings.Contains(i.logs.String(), `"user":"`+pushUser+`"`) {
		t.Error("the logs do not name the user who pushed")
	}
}

// holder returns a client certificate that the server trusts, from a separate CA that can set fields
// that internal/pki does not support.
func (i *instance) holder(t testing.TB, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	if i.roleCA == nil {
		i.roleCA = tlsfilestest.NewCA(t, "strange")
		files := i.ca.serverFiles(t)
		files["ca.crt"] = append(files["ca.crt"], i.roleCA.PEM...)
		i.replaceCertificates(files)
	}
	pair, key := i.roleCA.IssueWith(t, change, "holder")
	return certificate(t, pki.KeyPair{Certificate: pair, Key: key})
}

// Claim (without a credential): In nodeport mode, reading needs a credential.
//
// Claim (with the pull credential): The pull credential does not write.
func TestAuthorizationWithoutTLS(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	for _, anonymous := range []bool{false, true} {
		i := start(t, ca, t.TempDir(), func(o *Options) { o.AnonymousPull = anonymous })
		d := i.pusher().pushBlob("a", "content").String()
		nobody := accessLogin
		if anonymous {
			nobody = accessReadOrLogin
		}
		i.plain().tryUsers(t, d, nobody, fmt.Sprintf(", anonymous pull %t", anonymous))
	}
}

// tryUsers tries to read blob d and to write, with the access of nobody unless there is a valid credential.
func (c client) tryUsers(t *testing.T, d string, nobody int, name string) {
	t.Helper()
	for desc, tt := range map[string]struct {
		user, password string
		access         int
	}{
		"without a credential":        {"", "", nobody},
		"with a wrong password":       {pushUser, "wrong", nobody},
		"with an unknown user":        {"who-is-this", pushPassword, nobody},
		"with the pull credential":    {pullUser, pullPassword, accessRead},
		"with the push credential":    {pushUser, pushPassword, accessFull},
		"with a password of 73 bytes": {pushUser, strings.Repeat("x", 73), nobody},
	} {
		t.Run(desc+name, func(t *testing.T) {
			user := c.as(tt.user, tt.password)
			user.t = t
			user.try(d, tt.access)
		})
	}
}

// Claim (a pusher with an unknown user): Logs of denials name role and operation, but no unknown user.
func TestDenialsNameRoleAndOperation(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	pusher := i.client(i.ca.client(t, pki.OrganizationPush))
	for name, tt := range map[string]struct {
		client client
		want   []string // in the response
		logged []string
	}{
		"a node that writes": {i.node(), []string{pki.OrganizationNode, pki.OrganizationPush, "POST of an upload"},
			[]string{`"code":403`, `"roles":["` + pki.OrganizationNode + `"]`}},
		"a certificate without a role": {i.client(i.ca.client(t, "acme")),
			[]string{"no access", pki.OrganizationNode, pki.OrganizationPush}, []string{`"code":403`, `O=acme`}},
		"a pusher with an unknown user": {pusher.as("a stranger", "a password"), nil,
			[]string{`"code":401`, `"roles":["` + pki.OrganizationPush + `"]`}},
		"a pusher without a credential": {pusher, []string{"push credential"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			repository := "/v2/" + strings.ReplaceAll(name, " ", "-")
			a := require.Value(tt.client.send("POST", repository+"/blobs/uploads/", nil))(t)
			mentions(t, a.body, tt.want...)
			if tt.logged != nil {
				eventually(t, "the denial is logged", func() bool {
					return i.logged(append(tt.logged, `"level":"WARN"`, `"method":"POST"`, repository)...)
				})
			}
			if strings.Contains(i.logs.String(), "stranger") {
				t.Error("the log has the name of an unknown user")
			}
		})
	}
}

func TestProbesAreServedOverTheirOwnPathOnly(t *testing.T) {
	t.Parallel()
	for _, anonymous := range []bool{false, true} {
		i := start(t, newTestCA(t), t.TempDir(), func(o *Options) { o.AnonymousPull = anonymous })
		pusher := i.pusher()
		plain := i.plain().as(pullUser, pullPassword)
		if anonymous {
			plain = i.plain()
		}
		accept := []string{"Accept", "application/vnd.oci.image.manifest.v1+json"}
		for name, tt := range map[string]struct {
			repository string
			node       int
			plain      int
		}{
			"the proxies' probe is read with TLS only": {"zarf-registry/probe-proxy", http.StatusOK, http.StatusForbidden},
			"the node port's probe is read without TLS only": {"zarf-registry/probe-nodeport", http.StatusForbidden,
				http.StatusOK},
			"a repository with a similar name":                     {"zarf-registry/probe-proxy2", http.StatusOK, http.StatusOK},
			"a repository below the probe":                         {"zarf-registry/probe-nodeport/manifests", http.StatusOK, http.StatusOK},
			"a repository below the probe that looks like a route": {"zarf-registry/probe-proxy/blobs/uploads", http.StatusOK, http.StatusOK},
			"a repository that ends with the name of the probe":    {"x/zarf-registry/probe-proxy", http.StatusOK, http.StatusOK},
		} {
			t.Run(fmt.Sprintf("%s, anonymous pull %t", name, anonymous), func(t *testing.T) {
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
								t.Errorf("%s: redirected %t: the test does not check what it should", path, !redirected)
							}
							if try.status == http.StatusForbidden && method == http.MethodGet &&
								(a.code() != "DENIED" || !strings.Contains(a.body, ": pull zarf-registry/probe-")) {
								t.Errorf("%s: GET %s: %s", who, path, a.body)
							}
						}
					}
				}
			})
		}
		i.plain().as(pushUser, pushPassword).must(http.StatusForbidden, "POST",
			"/v2/zarf-registry/probe-proxy/blobs/uploads/", nil)
		i.plain().as(pushUser, pushPassword).must(http.StatusAccepted, "POST",
			"/v2/zarf-registry/probe-nodeport/blobs/uploads/", nil)
	}
}

func TestLogLevelsOfRequests(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir())
	pusher := i.client(i.ca.client(t, pki.OrganizationPush))
	i.node().must(http.StatusOK, "GET", "/v2/", nil)
	i.node().must(http.StatusForbidden, "DELETE", "/v2/a/manifests/x", nil)
	i.client(i.holder(t, func(c *x509.Certificate) { c.Subject.Organization = []string{"acme"} })).must(
		http.StatusForbidden, "GET", "/v2/d/tags/list", nil)
	pusher.must(http.StatusUnauthorized, "POST", "/v2/a/blobs/uploads/", nil)
	pusher.as(pushUser, "wrong").must(http.StatusUnauthorized, "POST", "/v2/b/blobs/uploads/", nil)
	pusher.as(pushUser, pushPassword).must(http.StatusAccepted, "POST", "/v2/c/blobs/uploads/", nil)
	for name, want := range map[string][]string{
		"reads are logged at debug level": {`"DEBUG"`, `"path":"/v2/",`, `"code":200`, pki.OrganizationNode},
		"denials are warnings": {`"WARN"`, `"path":"/v2/a/manifests/x"`, `"code":403`,
			`"roles":["` + pki.OrganizationNode + `"]`},
		"denials without a role name the subject": {`"WARN"`, `"path":"/v2/d/tags/list"`, `"code":403`,
			`"subject":"CN=holder,O=acme"`},
		"a first request without a credential is no warning": {`"DEBUG"`, `"path":"/v2/a/blobs/uploads/"`, `"code":401`},
		"a wrong password is a warning":                      {`"WARN"`, `"path":"/v2/b/blobs/uploads/"`, `"code":401`, `"user":"push"`},
		"writes are logged at info level":                    {`"INFO"`, `"path":"/v2/c/blobs/uploads/"`, `"code":202`, `"user":"push"`},
	} {
		t.Run(name, func(t *testing.T) {
			// The request is logged after the response.
			eventually(t, "it is logged", func() bool { return i.logged(want...) })
		})
	}
	for line := range strings.Lines(i.logs.String()) {
		if strings.Contains(line, `"roles"`) && strings.Contains(line, `"subject"`) {
			t.Errorf("it names the subject in addition to roles: %s", line)
		}
	}
}
